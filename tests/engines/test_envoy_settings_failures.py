"""A real Envoy does as policies say if a service does not answer: `failureMode` (docs/gateway.md#obeyed-by-run)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.labs.envoy_services import EnvoyServices
from tests.labs.settings_lab import SettingsLab, settings_lab
from tests.worlds.gateway_settings import gateway, policy, route, service, to

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
UP, DOWN = ({"backendRef": {"name": name, "port": 80}} for name in ("ask", "down"))
OPEN = {"failureMode": "FailOpen"}
HTTP: dict[str, Any] = {"http": {"path": "'/check'"}}
GRPC: dict[str, Any] = {"grpc": {}}
COUNTED = {"domain": "shop", "descriptors": [{"entries": [{"name": "who", "expression": "'all'"}]}]}


def listed(value: dict[str, Any]) -> dict[str, Any]:
    return {"conditional": [{"condition": "request.method == 'GET'", "policy": value}]}


# Settings of the service that is asked, by how it is asked.
ASKING: dict[str, dict[str, Any]] = {
    "http": {"extAuth": HTTP},
    "grpc": {"extAuth": GRPC},
    "process": {"extProc": {}},
    "count": {"rateLimit": {"global": COUNTED}},
}


def asking(kind: str, reference: dict[str, Any], *, listing: bool = False) -> dict[str, Any]:
    """The traffic settings that ask a service."""
    ((field, value),) = ASKING[kind].items()
    value = {"global": {**value["global"], **reference}} if field == "rateLimit" else {**value, **reference}
    return {field: listed(value) if listing else value}


TRAFFIC = {
    f"{kind}-{mode}-{listing}": asking(kind, {**DOWN, **failing}, listing=listing == "list")
    for kind in ASKING
    for mode, failing in (("open", OPEN), ("closed", {}))
    for listing in ("list", "flat")
}
UNTOLD = {**DOWN, **OPEN, "grpc": {"contextExtensions": {"a": "b"}}}
BACKEND = {
    "of-backend-open": {"extAuth": {**DOWN, **OPEN, **GRPC}},
    "of-backend-closed": {"extAuth": {**DOWN, **GRPC}},
    "of-backend-asked": {"extAuth": {**UP, **OPEN, **GRPC}},
}


@pytest.fixture(scope="module")
def services() -> Iterator[EnvoyServices]:
    with closing(EnvoyServices()) as running:
        yield running


@pytest.fixture(scope="module")
def lab(services: EnvoyServices) -> Iterator[SettingsLab]:
    settings: dict[str, dict[str, Any]] = {name: {"traffic": value} for name, value in TRAFFIC.items()}
    settings |= {name: {"backend": value} for name, value in BACKEND.items()}
    settings["grpc-asked"] = {"traffic": {"extAuth": {**UP, **OPEN, **GRPC}}}
    settings["process-asked"] = {"traffic": {"extProc": {**UP, "processingOptions": {"allowModeOverride": True}}}}
    settings["untold"] = {"traffic": {"extAuth": UNTOLD}}
    routes = [
        route(name, [{"name": name, "matches": [{"path": {"value": f"/{name}"}}], "backendRefs": to("one")}])
        for name in settings
    ]
    policies = [policy(name, f"HTTPRoute/{name}", **value) for name, value in settings.items()]
    objects = [gateway(), service("one"), service("ask"), service("down"), *routes, *policies]
    with closing(socket.socket()) as taken:
        # A port where nobody listens.
        taken.bind(("127.0.0.1", 0))
        down = type(services.address)("127.0.0.1", taken.getsockname()[1])
        with settings_lab(objects, elsewhere={"ask": services.address, "down": down}) as running:
            yield running


@pytest.mark.parametrize("name", [*TRAFFIC, "of-backend-open", "of-backend-closed"])
def test_requests_pass_without_an_answer_only_if_the_policy_says_so(lab: SettingsLab, name: str) -> None:
    before = len(lab.backend.paths)
    answer = lab.send(f"/{name}")
    passed = "open" in name
    assert (answer.status == 200) is passed
    assert (len(lab.backend.paths) > before) is passed


@pytest.mark.parametrize("name", ["grpc-asked", "of-backend-asked"])
def test_a_service_that_answers_is_asked(lab: SettingsLab, name: str) -> None:
    assert lab.send(f"/{name}", x_wanted="x-team").seen["x-team"] == "granted"
    # No service may set this header, so its answer does not count.
    before = len(lab.backend.paths)
    assert lab.send(f"/{name}", x_wanted="x-tierwall-caller").status >= 400
    assert len(lab.backend.paths) == before


def test_a_service_that_may_change_what_it_gets_is_asked(lab: SettingsLab) -> None:
    assert lab.send("/process-asked", "POST", b"abc").seen["x-processed"] == "yes"
    assert lab.send("/process-asked", x_block="1").status == 403


def test_what_a_service_would_not_be_told_closes(lab: SettingsLab) -> None:
    assert lab.send("/untold").status == 500
    said = [str(problem.message) for problem in lab.diagnostics]
    assert any("does not send `contextExtensions`" in message for message in said)
