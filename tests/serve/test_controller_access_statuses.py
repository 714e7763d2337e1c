"""Compare the statuses of AccessPolicies with a model that reads like the docs, through any sequence of changes."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite
from msgspec import Struct

from tests.worlds import tool_objects as make
from tierwall.attach.status import MAX_MESSAGE_BYTES
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.desired import CONTROLLER_NAME, WantedCondition, WantedRef
from tierwall.serve.controller.policy_statuses import PlannedStatuses, StatusPlanner

Object = dict[str, Any]
GATEWAYS, BACKENDS, SECTIONS = ("g1", "g2"), ("b1", "b2"), ("web", "mcp")
HELD = WantedCondition("Programmed", "True", "Programmed", "Every Envoy holds this policy")


class Policy(Struct, frozen=True):
    """A policy: on Gateways, each with or without a section, or on backends."""

    name: str
    day: int
    on_gateways: tuple[tuple[str, str], ...] = ()
    on_backends: tuple[str, ...] = ()
    external: bool = False
    broken: bool = False
    # Entries of other controllers in its status.
    others: int = 0
    # Whether it has an entry of ours for a target that it does not name.
    stale: bool = False


class World(Struct, frozen=True):
    """Everything that statuses depend on. A class is ours or not; Gateways have a class, and routes to backends."""

    classes: dict[str, bool]
    gateways: dict[str, tuple[str, tuple[str, ...]]]
    backends: tuple[str, ...]
    routes: tuple[tuple[str, str], ...]
    policies: tuple[Policy, ...]


@composite
def policies(draw: DrawFn, name: str) -> Policy:
    common: dict[str, Any] = {
        "name": name,
        "day": draw(st.integers(1, 3)),
        "external": draw(st.booleans()),
        "broken": draw(st.sampled_from((False, False, True))),
        "others": draw(st.sampled_from((0, 0, 2, 15, 16))),
        "stale": draw(st.booleans()),
    }
    if draw(st.booleans()):
        place = st.tuples(st.sampled_from(GATEWAYS), st.sampled_from(("", *SECTIONS)))
        return Policy(on_gateways=tuple(draw(st.lists(place, min_size=1, max_size=3, unique=True))), **common)
    return Policy(on_backends=tuple(draw(st.lists(st.sampled_from(BACKENDS), min_size=1, unique=True))), **common)


@composite
def worlds(draw: DrawFn) -> World:
    classes = draw(st.dictionaries(st.sampled_from(("tierwall", "other")), st.booleans()))
    gateway = st.tuples(
        st.sampled_from(("tierwall", "other")),
        st.lists(st.sampled_from(SECTIONS), min_size=1, unique=True).map(tuple),
    )
    route = st.tuples(st.sampled_from(GATEWAYS), st.sampled_from(BACKENDS))
    names = [f"p{number}" for number in range(draw(st.integers(1, 7)))]
    return World(
        classes,
        draw(st.dictionaries(st.sampled_from(GATEWAYS), gateway)),
        tuple(draw(st.lists(st.sampled_from(BACKENDS), unique=True))),
        tuple(draw(st.lists(route, unique=True))),
        tuple(draw(policies(name)) for name in names),
    )


def objects(world: World) -> list[Object]:
    documents: list[Object] = []
    for name, ours in world.classes.items():
        spec = {"controllerName": CONTROLLER_NAME if ours else "example.com/other"}
        documents.append(make.manifest(f"{make.GATEWAY_API}/v1", "GatewayClass", name, spec))
        del documents[-1]["metadata"]["namespace"]
    for name, (class_name, sections) in world.gateways.items():
        documents.append(make.gateway(name, *sections))
        documents[-1]["spec"]["gatewayClassName"] = class_name
    documents += [make.backend(name) for name in world.backends]
    documents += [make.route(f"{gateway}-{backend}", gateway, backend) for gateway, backend in world.routes]
    for number, policy in enumerate(world.policies):
        targets = [make.on_gateway(*place) for place in policy.on_gateways]
        targets += [make.on_backend(name) for name in policy.on_backends]
        rules = [{"authorization": make.cel("1")}] if policy.broken else []
        action = "ExternalAuth" if policy.external else "Allow"
        created = f"2026-01-0{policy.day}T00:00:00Z"
        document = make.v1(policy.name, targets, *rules, action=action, created=created)
        document["metadata"] |= {"uid": f"u{number}", "generation": 4}
        entries = [{"controllerName": "example.com/other"}] * policy.others
        document["status"] = {
            "ancestors": [*entries, {"controllerName": CONTROLLER_NAME}][: 16 if policy.stale else -1]
        }
        documents.append(document)
    return documents


def expected(world: World, policy: Policy) -> dict[tuple[str, str], str]:
    """Return the reason of `Accepted` by target and section, as docs/controller.md#status has it."""
    ours = {name for name, (class_name, _) in world.gateways.items() if world.classes.get(class_name)}
    rejected = "LimitPerTargetExceeded" if exceeds(world, policy) else "InvalidCEL" if policy.broken else ""
    reasons: dict[tuple[str, str], str] = {}
    for name, section in policy.on_gateways:
        if name not in world.gateways:
            if world.classes and all(world.classes.values()):
                reasons[name, section] = rejected or "TargetNotFound"
        elif name in ours:
            is_missing = section and section not in world.gateways[name][1]
            reasons[name, section] = rejected or ("TargetNotFound" if is_missing else "Accepted")
    for name in policy.on_backends:
        if name in world.backends and any((gateway, name) in world.routes for gateway in ours):
            reasons[name, ""] = rejected or "Accepted"
    return reasons


def exceeds(world: World, policy: Policy) -> bool:
    senior = sorted(world.policies, key=lambda each: (each.day, each.name))
    for target in {*(name for name, _ in policy.on_gateways), *policy.on_backends}:
        there = [each for each in senior if target in each.on_backends or target in dict(each.on_gateways)]
        if policy in there[5:]:
            return True
        if policy in [each for each in there if each.external][1:]:
            return True
    return False


def missing_targets(world: World, policy: Policy) -> int:
    """Return how many targets an Event must be about, because no entry can be."""
    is_ours_alone = bool(world.classes) and all(world.classes.values())
    gateways = [place for place in policy.on_gateways if place[0] not in world.gateways and not is_ours_alone]
    return len(gateways) + sum(name not in world.backends for name in policy.on_backends)


def programmed(policy: Resource, ref: WantedRef | None) -> WantedCondition | None:
    return HELD


def check(world: World, planned: PlannedStatuses) -> None:
    by_name = {identity[3]: status for identity, status in planned.statuses.items()}
    for policy in world.policies:
        reasons = expected(world, policy)
        room = 16 - policy.others
        is_ours = policy.stale and policy.others < 16
        status = by_name.pop(policy.name, None)
        if (not reasons or not room) and not is_ours:
            assert status is None
        else:
            assert status is not None
            assert (status.generation, status.conditions, status.parents) == (4, None, None)
            assert status.ancestors is not None
            got = {(entry.ref.name, entry.ref.section_name): entry.conditions for entry in status.ancestors}
            assert len(got) == len(status.ancestors) == min(len(reasons), room)
            for place, (accepted, *rest) in got.items():
                assert (accepted.type, accepted.reason) == ("Accepted", reasons[place])
                assert accepted.status == str(reasons[place] == "Accepted")
                assert rest == ([HELD] if reasons[place] == "Accepted" else [])
                assert len(accepted.message.encode()) <= MAX_MESSAGE_BYTES
                assert ("targets are closed" in accepted.message) == (reasons[place] == "InvalidCEL")
        said = [problem.reason for problem in planned.problems if problem.policy[3] == policy.name]
        assert said.count("TargetNotFound") == missing_targets(world, policy)
        assert said.count("StatusFull") == (len(reasons) > room)
    assert not by_name
    full = [policy for policy in world.policies if len(expected(world, policy)) > 16 - policy.others]
    targets = {name for policy in full for name, _ in expected(world, policy)}
    leading = {gateway for gateway, backend in world.routes if backend in targets} | targets
    ours = {name for name, (class_name, _) in world.gateways.items() if world.classes.get(class_name)}
    assert {identity[3] for identity in planned.affected} == leading & ours


@settings(max_examples=60)
@given(st.lists(worlds(), min_size=1, max_size=3))
def test_statuses_are_those_of_the_model_after_any_change(sequence: list[World]) -> None:
    planner, snapshot = StatusPlanner(), Snapshot({})
    for world in sequence:
        wanted = {resource.identity: resource for resource in load_objects(objects(world))}
        known = {resource.identity: resource for resource in snapshot}
        put = [new for identity, new in wanted.items() if not _alike(known.get(identity), new)]
        snapshot = snapshot.with_changes(put, [old for identity, old in known.items() if identity not in wanted])
        planned = planner.plan(snapshot, snapshot, programmed)
        check(world, planned)
        again = planner.plan(snapshot, snapshot, programmed)
        assert all(again.statuses[identity] is status for identity, status in planned.statuses.items())


def _alike(before: Resource | None, after: Resource) -> bool:
    return before is not None and before.has_same_content(after)
