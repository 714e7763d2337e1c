"""Faults: whatever dies, hangs or refuses, no call passes that the policies in force deny.

A backend behind Envoy records every tool that reaches it. No state in these tests ever allows the tool `forbidden`.
Calls continue through every fault, and the record must never contain it. After a revocation, the revoked tool is only
called once Envoy's single worker has answered by the new state. `allowed` is called, too: a proxy that lets nothing
pass would prove nothing.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from envoy.service.discovery.v3 import discovery_pb2
from msgspec.structs import replace

from tests.labs.envoy_lab import Lab, lab, later, policy
from tests.labs.waiting import eventually
from tests.randomness import rounds
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.control.cache import EXTENSION
from tierwall.engines.envoy.control.server import SERVICE

# A connection that is reset before its handshake: CPython 3.11 raises without closing the socket (`SSLSocket._create`).
NEVER_CONNECTED = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
pytestmark = [pytest.mark.engine, NEVER_CONNECTED]
BASE = policy("base", "allowed")


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    with lab() as envoy_lab:
        yield envoy_lab


@pytest.fixture
def running(shared_lab: Lab) -> Lab:
    shared_lab.publish([BASE])
    shared_lab.programmed()
    shared_lab.until_ready(shared_lab.caller(), "allowed")
    shared_lab.backend.calls.clear()
    return shared_lab


@contextmanager
def hammering(running: Lab) -> Iterator[dict[str, list[str]]]:
    """Call both tools on two connections, without a pause, until the block ends."""
    stop = threading.Event()
    answers: dict[str, list[str]] = {"allowed": [], "forbidden": []}

    def hammer(tool: str) -> None:
        caller = running.caller()
        while not stop.is_set():
            answers[tool].append(caller.call(tool))

    threads = [threading.Thread(target=hammer, args=(tool,)) for tool in answers]
    for thread in threads:
        thread.start()
    try:
        yield answers
        # There must be traffic after the fault, too.
        seen = {tool: len(those) for tool, those in answers.items()}
        eventually(lambda: all(len(answers[tool]) > seen[tool] + 20 for tool in seen), "traffic after the fault")
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def held(running: Lab, answers: dict[str, list[str]]) -> None:
    """Check that `forbidden` never reached the backend or was reported as allowed, under enough traffic."""
    assert "forbidden" not in running.backend.calls
    assert "allowed" not in answers["forbidden"]
    assert answers["forbidden"].count("denied by XAccessPolicy/shop/base") > 10
    assert running.backend.calls.count("allowed") > 10


def test_envoy_is_killed_and_started_again(running: Lab) -> None:
    with hammering(running) as answers:
        before, pid = running.process.restarts, running.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        caller = running.caller()
        eventually(lambda: running.process.restarts > before, "a restart of Envoy")
        running.until_ready(caller, "allowed")
    assert running.process.restarts == before + 1
    assert any("SIGKILL" in line for line in running.said)
    held(running, answers)


def test_the_control_plane_restarts_with_other_policies(running: Lab) -> None:
    with hammering(running) as answers:
        running.do(running.server.stop(0))
        # Without a control plane, Envoy continues with its configuration.
        caller = running.caller()
        for _ in range(50):
            assert caller.call("allowed") == "allowed"
            assert caller.call("forbidden") == "denied by XAccessPolicy/shop/base"
        running.server = running.do(running._serve())
        # The new control plane has no configuration yet, and must not make Envoy drop its own.
        assert running.comes(lambda: running.server.proxy_statuses)
        for _ in range(50):
            assert caller.call("allowed") == "allowed"
        running.publish([policy("base", "allowed", "more")])
        running.programmed()
        running.until_ready(running.caller(), "more")
    held(running, answers)


@pytest.mark.parametrize("follows", [False, True])
def test_a_control_plane_that_never_had_the_routes_of_an_envoy_takes_it_over(running: Lab, follows: bool) -> None:
    """It starts anew, or has followed the changes without an Envoy, so that it takes each for acknowledged."""
    both, allowed = ("allowed", "forbidden"), ("allowed",)
    # Some policy always denies `forbidden`, and none ever `allowed`.
    base, team = policy("base", *allowed), policy("team", *both, on="XBackend")
    loose, strict = policy("base", *both), policy("team", *allowed, on="XBackend")
    moves = [[base, team], [base, strict], [loose, strict], [loose, strict, policy("other", *both)], [base]]
    with hammering(running) as answers:
        for number in range(rounds(20)):
            last, *skipped, news = (moves[(number + step) % len(moves)] for step in range(3 if follows else 2))
            running.publish([*last, policy(f"quick-{number}", *both)])
            running.programmed()
            running.do(running.server.stop(0))
            running.controller = running.new_controller()
            running.server = running.do(running._serve())
            running.do(running.server.stop(0))
            for state in [last, *skipped] if follows else []:
                running.publish(state)
                running.controller.acknowledge()
            running.publish(news)
            running.do(running.server._server.start(running.socket))
            running.programmed()
    assert set(answers["allowed"]) == {"allowed"}, "no moment in which Envoy denies what it does not know"
    assert {
        answer for answer in answers["forbidden"] if not answer.startswith("denied by XAccessPolicy/shop/")
    } == set()
    assert "forbidden" not in running.backend.calls


def test_a_later_restart_of_the_control_plane_interrupts_nothing(running: Lab) -> None:
    running.publish([policy("base", "allowed", "one")])
    running.programmed()
    running.publish([policy("base", "allowed", "two")])
    running.programmed()
    assert running.controller.has_noncanonical_names

    with hammering(running) as answers:
        running.do(later(lambda: running.controller.put(running.controller.canonicalize())))
        running.programmed()
        running.do(running.server.stop(0))
        running.controller = running.new_controller()
        running.server = running.do(running._serve())
        running.publish([policy("base", "allowed", "two")])
        running.programmed()
    assert set(answers["allowed"]) == {"allowed"}
    held(running, answers)


def test_a_configuration_that_envoy_refuses_leaves_the_last_good_one_in_force(running: Lab) -> None:
    good = running.controller.in_force
    assert good is not None
    assert good.state is not None
    resources = good.state.resources
    [(name, routes)] = resources.routes.items()
    broken = type(routes)()
    broken.CopyFrom(routes)
    broken.virtual_hosts.add(name="again", domains=["*"])
    with hammering(running) as answers:
        running.do(_publish(running, replace(resources, routes={name: broken})))
        assert running.comes(lambda: running.server.programmed.reason == "Invalid")
        condition = running.server.programmed
        assert condition.status == "False"
        assert "Only a single wildcard domain is permitted" in condition.message
        caller = running.caller()
        for _ in range(50):
            assert caller.call("allowed") == "allowed"
        running.publish([policy("base", "allowed", "mended")])
        running.programmed()
        running.until_ready(caller, "mended")
    held(running, answers)


async def _publish(running: Lab, resources: Any) -> None:
    running.server.publish(resources)


@pytest.mark.storm
def test_two_hundred_changes_without_a_pause(running: Lab) -> None:
    with hammering(running) as answers:
        for number in range(rounds(200)):
            running.publish([policy("base", "allowed", f"tool-{number}")])
        running.publish([policy("base", "allowed", "last")])
        running.until_ready(running.caller(), "last")
        running.programmed()
    assert set(answers["allowed"]) == {"allowed"}, "no change interrupts what stays allowed"
    held(running, answers)


@pytest.mark.storm
def test_two_hundred_changes_a_second_that_move_a_restriction_from_policy_to_policy(running: Lab) -> None:
    """Some policy always denies `forbidden`. Each state moves the denial by a change, a creation or a deletion."""
    both, allowed = ("allowed", "forbidden"), ("allowed",)
    states = [
        [policy("base", *both), policy("team", *allowed, on="XBackend")],
        [policy("base", *allowed), policy("team", *both, on="XBackend")],
        [policy("base", *both), policy("other", *allowed)],
        [policy("base", *both), policy("team", *allowed, on="XBackend"), policy("other", *both)],
        [policy("base", *allowed)],
        [policy("other", *allowed, on="XBackend"), policy("base", *both), policy("team", *both, on="XBackend")],
    ]
    rate, start = 200, time.monotonic()
    with hammering(running) as answers:
        for number in range(rounds(300)):
            time.sleep(max(0.0, start + number / rate - time.monotonic()))
            running.publish(states[number % len(states)])
        running.publish([policy("base", "allowed", "last")])
        running.until_ready(running.caller(), "last")
        running.programmed()
    assert set(answers["allowed"]) == {"allowed"}, "no change interrupts what stays allowed"
    assert {
        answer for answer in answers["forbidden"] if not answer.startswith("denied by XAccessPolicy/shop/")
    } == set()
    assert "forbidden" not in running.backend.calls
    assert min(map(len, answers.values())) > 20


@pytest.mark.storm
def test_a_revocation_applies_to_open_connections_as_soon_as_the_new_state_answers(running: Lab) -> None:
    caller = running.caller()
    for number in range(rounds(30)):
        running.publish([policy("base", f"this-{number}")])
        running.until_ready(caller, f"this-{number}")
        assert caller.call(f"this-{number - 1}") == "denied by XAccessPolicy/shop/base"
    assert [call for call in running.backend.calls if call.startswith("this-")] == sorted(
        (call for call in running.backend.calls if call.startswith("this-")), key=lambda call: int(call[5:])
    )


def test_connections_to_a_removed_port_are_closed(running: Lab) -> None:
    """Envoy keeps their last routes, which no later policy changes."""
    caller = running.caller()
    assert caller.call("allowed") == "allowed"
    fixed = running.fixed
    running._fixed = [manifest for manifest in fixed if manifest["kind"] != "Gateway"]
    try:
        running.publish([BASE])
        eventually(lambda: "refused" in running.caller().call("allowed"), "the end of the port")
        eventually(lambda: "refused" in caller.call("allowed"), "the end of the connection")
    finally:
        running._fixed = fixed
        running.publish([BASE])
        running.until_ready(running.caller(), "allowed")


def test_a_proxy_that_never_acknowledges_delays_no_other(running: Lab) -> None:
    assert running.controller.in_force is not None
    filters = compile(running.controller.in_force.snapshot, running.options)[0].extension_configs
    asked = discovery_pb2.DeltaDiscoveryRequest(type_url=EXTENSION, resource_names_subscribe=filters)
    asked.node.id = "silent"
    stop = threading.Event()

    def requests() -> Iterator[Any]:
        yield asked
        stop.wait()

    with grpc.insecure_channel(f"unix:{running.socket}") as channel:
        talk = channel.stream_stream(
            f"/{SERVICE}/DeltaAggregatedResources",
            discovery_pb2.DeltaDiscoveryRequest.SerializeToString,
            discovery_pb2.DeltaDiscoveryResponse.FromString,
        )
        answers = talk(requests())
        [first, *_] = next(answers).resources
        assert first.name in filters
        with hammering(running) as said:
            for number in range(20):
                running.publish([policy("base", "allowed", f"new-{number}")])
                running.until_ready(running.caller(), f"new-{number}")
        condition = running.server.programmed
        assert (condition.status, condition.message) == ("False", "not acknowledged yet by silent")
        stop.set()
        answers.cancel()
    running.programmed()
    held(running, said)


def test_both_levels_must_allow_and_the_first_that_denies_is_named(running: Lab) -> None:
    running.publish([policy("base", "allowed", "half"), policy("team", "allowed", "other", on="XBackend")])
    caller = running.caller()
    running.until_ready(caller, "half", "denied by XAccessPolicy/shop/team")
    assert caller.call("allowed") == "allowed"
    assert caller.call("other") == "denied by XAccessPolicy/shop/base"
    assert "half" not in running.backend.calls

    def halves() -> list[dict[str, Any]]:
        of_team = [decision for decision in running.decisions if decision.get("policy") == "XAccessPolicy/shop/team"]
        return [decision for decision in of_team if decision.get("tool") == "half"]

    eventually(halves, "the decision in the log")
    latest = halves()[-1]
    wanted = {
        "caller": "spiffe://cluster.local/ns/agents/sa/shopper",
        "gateway": "shop/agents",
        "listener": "mcp",
        "backend": "XBackend/shop/orders",
        "method": "tools/call",
        "tool": "half",
        "verdict": "Deny",
        "level": "Backend",
        "policy": "XAccessPolicy/shop/team",
    }
    assert {key: latest.get(key) for key in wanted} == wanted


def test_a_list_shows_only_callable_tools_and_follows_changes(running: Lab) -> None:
    caller = running.caller()

    def shown() -> list[str]:
        got = caller.send("tools/list", {})
        assert isinstance(got, dict), got
        return [tool["name"] for tool in got["result"]["tools"]]

    assert shown() == ["allowed"]
    running.publish([policy("base", "allowed", "half")])
    eventually(lambda: shown() == ["allowed", "half"], shown)
    running.publish([policy("base", "allowed", "half"), policy("team", "half", on="XBackend")])
    eventually(lambda: shown() == ["half"], shown)


def test_without_a_control_plane_lists_fail_and_calls_continue(running: Lab) -> None:
    caller = running.caller()
    running.do(running.server.stop(0))
    try:
        assert isinstance(caller.send("tools/list", {}), str)
        assert caller.call("allowed") == "allowed"
        assert caller.call("forbidden") == "denied by XAccessPolicy/shop/base"
    finally:
        running.server = running.do(running._serve())
        running.publish([BASE])


def test_long_messages_hide_no_decision(running: Lab) -> None:
    callers = [running.caller() for _ in range(16)]
    running.decisions.clear()
    threads = [threading.Thread(target=caller.call, args=("x" * 900_000,)) for caller in callers]
    for thread in threads:
        thread.start()
    caller = running.caller()
    for _ in range(20):
        assert caller.call("allowed") == "allowed"
    for thread in threads:
        thread.join()

    def logged() -> int:
        return sum(entry.get("tool") == "allowed" for entry in running.decisions)

    eventually(lambda: logged() >= 20 and len(running.decisions) >= 36, lambda: (logged(), len(running.decisions)))
