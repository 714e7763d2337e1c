"""Envoys that go to another control plane: a call meets the old state or the new one, whatever has changed meanwhile.

A real Envoy has routes that carry their policies (`control/crossing.py`), and calls meet them. The same with a model of
a proxy, and many more states, is in `test_envoy_checkpoints.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from tests.engines.test_envoy_faults import NEVER_CONNECTED, hammering
from tests.labs.envoy_lab import NETWORKING, Lab, Object, lab, later, policy
from tests.labs.loopback_server import LoopbackServer, QuietHandler
from tests.randomness import rounds
from tests.worlds.tool_objects import manifest
from tierwall.engines.envoy.config.compile import XdsResources, compile
from tierwall.engines.envoy.control.crossing import crossing_routes
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

pytestmark = [pytest.mark.engine, NEVER_CONNECTED]
BOTH, ALLOWED = ("allowed", "forbidden"), ("allowed",)
ASKED = manifest("v1", "Service", "asked", {"ports": [{"port": 9000}]}, namespace="shop")


class _Authorizer(LoopbackServer):
    """An HTTP authorizer that gives everybody the same answer, and counts."""

    def __init__(self) -> None:
        self.status, self.asked = 200, 0
        outer = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.asked += 1
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.send_response(outer.status)
                self.send_header("content-length", "0")
                self.end_headers()

        super().__init__(Handler)


@contextmanager
def asking_lab() -> Iterator[tuple[Lab, _Authorizer]]:
    authorizer = _Authorizer()
    try:
        with lab(endpoints={"Service/shop/asked": authorizer.address}) as running:
            yield running, authorizer
    finally:
        authorizer.close()


@pytest.fixture(scope="module")
def asking() -> Iterator[tuple[Lab, _Authorizer]]:
    with asking_lab() as both:
        yield both


def asks(name: str, on: str = "Gateway", path: str = "/check") -> Object:
    """Return a policy that asks the authorizer about every call of a tool."""
    out = policy(name, *BOTH, on=on)
    out["apiVersion"] = f"{NETWORKING}/v1alpha1"
    settings = {"protocol": "HTTP", "http": {"path": path}, "backendRef": {"name": "asked", "port": 9000}}
    authorization = {"type": "Inline", "mcp": {"methods": [{"name": "tools/call"}]}}
    rules = [{"name": "all", "authorization": authorization}]
    out["spec"] |= {"action": "ExternalAuth", "externalAuth": settings, "rules": rules}
    return out


def in_force(running: Lab) -> XdsResources:
    controller = running.controller.in_force
    assert controller is not None
    assert controller.state is not None
    return controller.state.resources


def put(running: Lab, resources: XdsResources) -> None:
    running.do(later(lambda: running.server.publish(resources)))
    running.programmed()


def test_routes_that_carry_their_policies_decide_without_filters(asking: tuple[Lab, _Authorizer]) -> None:
    running, authorizer = asking
    running.publish([ASKED, asks("asks"), policy("team", *ALLOWED, on="XBackend"), asks("later", on="XBackend")])
    running.programmed()
    caller = running.caller()
    running.until_ready(caller, "allowed")

    def answer(status: int, tool: str) -> str:
        authorizer.status, authorizer.asked = status, 0
        return f"{caller.call(tool)}, {authorizer.asked} asked"

    def answers() -> list[str]:
        return [answer(status, tool) for status in (200, 403) for tool in (*BOTH, "half")]

    expected = answers()
    assert expected == [
        "allowed, 2 asked",
        *["denied by XAccessPolicy/shop/team, 2 asked"] * 2,
        *["denied by XAccessPolicy/shop/asks rules[0] all, 1 asked"] * 3,
    ]
    resources = in_force(running)
    nothing, _ = compile(Snapshot.of(load_objects(running.fixed)), running.options)
    without = replace(resources, extension_configs=nothing.extension_configs)
    put(running, without)
    assert set(answers()) == {"denied by Default, 0 asked"}
    put(running, replace(without, routes=crossing_routes(resources.routes, resources.extension_configs)))
    assert answers() == expected


def with_listener(fixed: list[Object], number: int) -> list[Object]:
    """Return the objects with another listener of the Gateway; its host name tells it from others."""
    out = []
    for each in fixed:
        if each["kind"] == "Gateway":
            first, *_ = each["spec"]["listeners"]
            more = {**first, "name": "more", "hostname": f"more-{number}.example"}
            each = {**each, "spec": {**each["spec"], "listeners": [first, more]}}
        out.append(each)
    return out


@pytest.mark.parametrize("follows", [False, True])
def test_an_envoy_moves_while_policies_ask_and_listeners_change(asking: tuple[Lab, _Authorizer], follows: bool) -> None:
    """As in `test_envoy_faults`, but with what needs other listeners, and what is not in filters alone.

    Some policy always asks: Envoy denies calls about which it asks a service while the last policy that asks it goes.
    """
    running, authorizer = asking
    authorizer.status = 200
    base, team = policy("base", *ALLOWED), asks("team", on="XBackend")
    loose, strict = policy("base", *BOTH), policy("team", *ALLOWED, on="XBackend")
    here, there = asks("asks"), asks("asks", path="/other")
    moves = [[base, team], [base, strict, here], [here, loose, strict], [loose, strict, there], [base, team, there]]
    fixed = [*running.fixed, ASKED]
    running._fixed = fixed
    running.publish([base, team])
    running.until_ready(running.caller(), "allowed")
    running.backend.calls.clear()
    with hammering(running) as answers:
        for number in range(rounds(8)):
            last, *skipped, news = (moves[(number + step) % len(moves)] for step in range(3 if follows else 2))
            running._fixed = with_listener(fixed, number)
            running.publish([*last, policy(f"quick-{number}", *BOTH)])
            running.programmed()
            running.do(running.server.stop(0))
            running.controller = running.new_controller()
            running.server = running.do(running._serve())
            running.do(running.server.stop(0))
            for state in [last, *skipped] if follows else []:
                running.publish(state)
                running.controller.acknowledge()
            running._fixed = with_listener(fixed, number + 1)
            running.publish(news)
            running.do(running.server._server.start(running.socket))
            running.programmed()
    assert set(answers["allowed"]) == {"allowed"}
    denied = {answer for answer in answers["forbidden"] if answer.startswith("denied by XAccessPolicy/shop/")}
    assert set(answers["forbidden"]) == denied
    assert "forbidden" not in running.backend.calls
    assert authorizer.asked > 0
