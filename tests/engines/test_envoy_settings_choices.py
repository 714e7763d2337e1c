"""A real Envoy chooses the entries of conditional lists as the merge does (docs/gateway.md#obeyed-by-run)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Literal

import pytest

from tests.engines.test_envoy_settings import jwt, token
from tests.labs.settings_lab import EchoBackend, SettingsLab, settings_lab
from tests.worlds.gateway_settings import Object, gateway, policy, route, service, to
from tierwall.gateway.detail import GatewayDetail
from tierwall.gateway.question import GatewayQuestion, ask
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
_CONDITIONS = ("request.headers['x-a'] == '1'", "request.headers['x-b'] == '1'", "'x-a' in request.headers", "x y")
_REQUESTS: tuple[dict[str, str], ...] = ({}, {"x-a": "1"}, {"x-a": "2"}, {"x-b": "1"}, {"x-a": "1", "x-b": "1"})


def listed(*entries: tuple[str | None, Object]) -> Object:
    return {
        "conditional": [
            {"policy": value, **({"condition": condition} if condition is not None else {})}
            for condition, value in entries
        ]
    }


def says(text: str) -> Object:
    return {"request": {"set": [{"name": "x-said", "value": f"'{text}'"}]}}


def drawn_transformation(draw: random.Random, name: str) -> Object:
    if draw.random() < 0.3:
        return says(name)
    count = draw.randint(1, 3)
    entries: list[tuple[str | None, Object]] = [
        (draw.choice(_CONDITIONS), says(f"{name}-{number}")) for number in range(count)
    ]
    return listed(*entries, *([(None, says(f"{name}-last"))] if draw.random() < 0.3 else []))


def drawn_world(seed: int) -> list[Object]:
    """A Gateway and routes whose levels set transformations, some of them as lists."""
    draw = random.Random(seed)
    objects = [gateway(), service("one")]
    if draw.random() < 0.7:
        objects.append(policy("g", "Gateway/edge", traffic={"transformation": drawn_transformation(draw, "g")}))
    for number in range(8):
        way = {"name": "a", "matches": [{"path": {"value": f"/{number}"}}], "backendRefs": to("one")}
        objects.append(route(f"r{number}", [way]))
        for name, section in ((f"route{number}", None), (f"rule{number}", "a")):
            if draw.random() < 0.6:
                settings = {"transformation": drawn_transformation(draw, name)}
                objects.append(policy(name, f"HTTPRoute/r{number}", section=section, traffic=settings))
    return objects


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("profile", ["docs", "agentgateway"])
def test_envoy_chooses_as_the_merge(seed: int, profile: Literal["docs", "agentgateway"]) -> None:
    objects = drawn_world(seed)
    snapshot = Snapshot.of(load_objects(objects))
    with settings_lab(objects, profile=profile) as lab:
        for number in range(8):
            for headers in _REQUESTS:
                asked = GatewayQuestion(
                    gateway="shop/edge",
                    listener="http",
                    route=f"HTTPRoute/shop/r{number}",
                    rule="a",
                    profile=profile,
                    request={"request.headers": headers},
                )
                detail = ask(snapshot, asked).detail
                assert isinstance(detail, GatewayDetail)
                setting = detail.effective.get("traffic.transformation")
                value: Any = setting.value if setting is not None else None
                expected = value["request"]["set"][0]["value"].strip("'") if value is not None else None
                sent = {name.replace("-", "_"): text for name, text in headers.items()}
                seen = lab.send(f"/{number}", "GET", None, **sent).seen
                assert seen.get("x-said") == expected, (number, headers)


@pytest.fixture(scope="module")
def lab() -> Iterator[SettingsLab]:
    teapot = {"status": 418, "body": 'a "quoted"\n%text\\', "headers": [{"name": "x-pot", "value": "'tea'"}]}
    settings: dict[str, Object] = {
        "answer": {
            "directResponse": listed(
                ("request.headers['x-a'] == '1'", teapot), ("'x-b' in request.headers", {"status": 403, "body": "no"})
            )
        },
        "claims": {
            "jwtAuthentication": jwt(mode="Optional"),
            "directResponse": listed(("jwt.sub == 'ann'", {"status": 204})),
        },
        "unknown": {"directResponse": listed(("source.port == 1", {"status": 204}))},
    }
    ways = [{"name": n, "matches": [{"path": {"value": f"/{n}"}}], "backendRefs": to("one")} for n in settings]
    policies = [policy(name, "HTTPRoute/r", section=name, traffic=value) for name, value in settings.items()]
    with settings_lab([gateway(), service("one"), route("r", ways), *policies]) as running:
        yield running


def test_an_answer_is_chosen(lab: SettingsLab) -> None:
    assert lab.send("/answer").status == 200
    answer = lab.send("/answer", x_a="1", x_b="1")
    assert (answer.status, answer.body, answer.headers["x-pot"]) == (418, b'a "quoted"\n%text\\', "tea")
    refused = lab.send("/answer", x_b="1")
    assert (refused.status, refused.body) == (403, b"no")


def test_a_condition_reads_claims_that_were_checked(lab: SettingsLab) -> None:
    assert lab.send("/claims").status == 200
    assert lab.send("/claims", authorization=token(sub="ann")).status == 204
    assert lab.send("/claims", authorization=token(sub="bob")).status == 200


def test_a_condition_that_envoy_does_not_know_closes_a_restriction(lab: SettingsLab) -> None:
    assert lab.send("/unknown").status == 500
    assert any("source.port" in str(problem.message) for problem in lab.diagnostics if problem.code == "TW663")


def test_a_service_is_asked_where_the_condition_says() -> None:
    with closing(EchoBackend()) as guard:
        url = f"http://127.0.0.1:{guard.address.port}"
        asks = listed(
            ("request.headers['x-a'] == '1'", {"url": f"{url}/first", "http": {}}),
            ("request.headers['x-a'] == '2'", {"url": f"{url}/second", "http": {}}),
        )
        objects = [gateway(), service("one"), route("r", [{"backendRefs": to("one")}])]
        with settings_lab([*objects, policy("p", "HTTPRoute/r", traffic={"extAuth": asks})]) as running:
            assert running.send("/").status == 200
            assert guard.paths == []
            guard.refused.add("/second")
            assert running.send("/", x_a="1").status == 200
            before = len(running.backend.paths)
            assert running.send("/", x_a="2").status == 403
            assert guard.paths == ["/first", "/second"]
            assert len(running.backend.paths) == before


def test_lists_that_compete_are_closed() -> None:
    first, second = (listed(("'x-a' in request.headers", {"status": 204})) for _ in range(2))
    objects = [gateway(), service("one"), route("r", [{"backendRefs": to("one")}])]
    policies = [
        policy(name, "HTTPRoute/r", traffic={"directResponse": value}) for name, value in (("p", first), ("q", second))
    ]
    with settings_lab([*objects, *policies]) as running:
        assert running.send("/").status == 500
    wide = policy("wide", "Gateway/edge", traffic={"directResponse": first}, inheritance="Override")
    with settings_lab([*objects, wide, policies[1]]) as running:
        assert running.send("/").status == 500


def test_conditions_that_are_constants_or_about_the_client_open_nothing() -> None:
    wanted = {
        "true": (418, 418),
        "false": (404, 200),
        "cidr('127.0.0.0/8').containsIP(source.address)": (500, 500),
        "request.method == 'POST' || source.address == '127.0.0.1'": (500, 500),
    }
    objects = [gateway(), service("one")]
    for number, condition in enumerate(wanted):
        for name in ("over", "alone"):
            way = {"name": "a", "matches": [{"path": {"value": f"/{number}/{name}"}}], "backendRefs": to("one")}
            objects.append(route(f"{name}{number}", [way]))
            above = {"directResponse": listed((condition, {"status": 418}))}
            objects.append(policy(f"above-{name}{number}", f"HTTPRoute/{name}{number}", section="a", traffic=above))
        below = {"directResponse": {"status": 404}}
        objects.append(policy(f"below{number}", f"HTTPRoute/over{number}", traffic=below))
    with settings_lab(objects) as lab:
        got = {
            condition: tuple(lab.send(f"/{number}/{name}").status for name in ("over", "alone"))
            for number, condition in enumerate(wanted)
        }
        said = [str(problem.message) for problem in lab.diagnostics]
    assert got == wanted
    assert any("Envoy does not know `source.address` where it chooses an entry" in message for message in said)
