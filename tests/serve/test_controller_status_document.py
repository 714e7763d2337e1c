"""A status with our parts as wanted: whatever is not ours stays, and times change only with `status`."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tierwall.serve.controller.desired import (
    CONDITION_PREFIX,
    CONTROLLER_NAME,
    DesiredStatus,
    WantedAncestor,
    WantedCondition,
    WantedListener,
    WantedRef,
)
from tierwall.serve.controller.status_document import observed_generation, status_with

Document = dict[str, Any]
GATEWAY = ("gateway.networking.k8s.io", "Gateway", "shop", "gw")
NOW, THEN = "2026-05-05T00:00:00Z", "2026-01-01T00:00:00Z"


def desired(**parts: Any) -> DesiredStatus:
    return DesiredStatus(identity=GATEWAY, version="v1", uid="u", generation=parts.pop("generation", 3), **parts)


def condition(type: str, status: str = "True", **more: Any) -> Document:
    values = {"type": type, "status": status, "reason": "R", "message": "m", "observedGeneration": 3}
    return values | {"lastTransitionTime": THEN} | more


def entry(name: str, *conditions: Document, controller: str = CONTROLLER_NAME, ref: str = "ancestorRef") -> Document:
    named = {"group": "", "kind": "Service", "name": name, "namespace": "shop"}
    return {ref: named, "controllerName": controller, "conditions": list(conditions)}


def wanted(name: str, *types: tuple[str, str]) -> WantedAncestor:
    conditions = tuple(WantedCondition(type, status, "R", "m") for type, status in types)
    return WantedAncestor(WantedRef("", "Service", "shop", name), conditions)


# A reference that reads like the rule, without regard to order.

TYPES = st.sampled_from(["Accepted", "Programmed", f"{CONDITION_PREFIX}Accepted", f"{CONDITION_PREFIX}Old", "Ready"])
STATUSES = st.sampled_from(["True", "False"])
CONDITIONS = st.dictionaries(TYPES, STATUSES, max_size=4)
ENTRIES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([CONTROLLER_NAME, "example.com/other"]), CONDITIONS),
    max_size=18,
    unique_by=lambda each: each[:2],
)
WANTED = st.dictionaries(st.sampled_from("abcd"), CONDITIONS.filter(bool), max_size=4)


def reference(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str, str]]:
    return {type: (status, THEN if before.get(type) == status else NOW) for type, status in after.items()}


def shown(conditions: list[Document]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["lastTransitionTime"]) for each in conditions}


@given(ENTRIES, WANTED)
def test_entries_of_others_stay_and_ours_are_as_wanted(
    before: list[tuple[str, str, dict[str, str]]], after: dict[str, dict[str, str]]
) -> None:
    entries = [
        entry(name, *(condition(*each) for each in conditions.items()), controller=controller)
        for name, controller, conditions in before
    ]
    status: Document = {"ancestors": entries, "else": [1]}
    kept = copy.deepcopy(status)
    plan = desired(ancestors=tuple(wanted(name, *conditions.items()) for name, conditions in after.items()))
    result = status_with(status, plan, NOW)
    assert status == kept, "what was read does not change"
    assert result["else"] == [1]
    foreign = [each for each in result["ancestors"] if each["controllerName"] != CONTROLLER_NAME]
    assert foreign == [each for each in entries if each["controllerName"] != CONTROLLER_NAME]
    known = {name: conditions for name, controller, conditions in before if controller == CONTROLLER_NAME}
    ours = [each for each in result["ancestors"] if each["controllerName"] == CONTROLLER_NAME]
    assert {each["ancestorRef"]["name"]: shown(each["conditions"]) for each in ours} == {
        name: reference(known.get(name, {}), conditions) for name, conditions in after.items()
    }
    assert status_with(result, plan, "later") == result, "the second time nothing changes"


@given(CONDITIONS, CONDITIONS)
def test_in_shared_conditions_only_wanted_types_and_those_with_our_prefix_change(
    before: dict[str, str], after: dict[str, str]
) -> None:
    status = {"conditions": [condition(*each) for each in before.items()]}
    plan = desired(conditions=tuple(WantedCondition(*each, "R", "m") for each in after.items()))
    result = status_with(status, plan, NOW)
    left = {type: status for type, status in before.items() if not type.startswith(CONDITION_PREFIX)}
    expected = {type: (status, THEN) for type, status in left.items()} | reference(before, after)
    assert shown(result.get("conditions", [])) == expected
    assert status_with(result, plan, "later") == result


def test_another_message_or_generation_changes_no_time() -> None:
    status = {"conditions": [condition("Accepted", message="old", observedGeneration=2)]}
    plan = desired(conditions=(WantedCondition("Accepted", "True", "R", "m"),))
    assert status_with(status, plan, NOW) == {"conditions": [condition("Accepted")]}


def test_listener_sets_are_counted_where_the_field_may_be() -> None:
    assert status_with({}, desired(attached_listener_sets=2), NOW) == {"attachedListenerSets": 2}
    before = {"attachedListenerSets": 2}
    assert status_with(before, desired(attached_listener_sets=0), NOW) == {"attachedListenerSets": 0}
    assert status_with(before, desired(), NOW) == before
    # A release that does not know the field drops it: the status must not be written again and again.
    assert status_with({}, desired(attached_listener_sets=0), NOW) == {}


def test_what_does_not_fit_into_the_list_is_left_out() -> None:
    others = [entry(str(number), condition("Accepted"), controller="x/y") for number in range(15)]
    plan = desired(ancestors=(wanted("a", ("Accepted", "True")), wanted("b", ("Accepted", "True"))))
    names = [each["ancestorRef"]["name"] for each in status_with({"ancestors": others}, plan, NOW)["ancestors"]]
    assert names == [*map(str, range(15)), "a"]


def test_a_core_group_is_written_because_it_is_not_the_default() -> None:
    plan = desired(parents=(wanted("a", ("Accepted", "True")),))
    (parent,) = status_with({}, plan, NOW)["parents"]
    assert parent["parentRef"] == {"group": "", "kind": "Service", "name": "a", "namespace": "shop"}


def test_a_gateway_has_listeners_addresses_and_features() -> None:
    accepted = (WantedCondition("Accepted", "True", "R", "m"),)
    plan = desired(
        listeners=(WantedListener("web", 2, (("g", "HTTPRoute"),), accepted),),
        addresses=(("IPAddress", "192.0.2.1"),),
        supported_features=("HTTPRoute", "Gateway"),
    )
    before = {"listeners": [{"name": "web", "conditions": [condition("Accepted")]}, {"name": "gone"}]}
    result = status_with(before, plan, NOW)
    listener = {
        "name": "web",
        "attachedRoutes": 2,
        "supportedKinds": [{"group": "g", "kind": "HTTPRoute"}],
        "conditions": [condition("Accepted")],
    }
    assert result == {
        "listeners": [listener],
        "addresses": [{"type": "IPAddress", "value": "192.0.2.1"}],
        "supportedFeatures": [{"name": "Gateway"}, {"name": "HTTPRoute"}],
    }
    assert status_with(result, desired(listeners=(), addresses=()), NOW)["listeners"] == []
    assert status_with({}, desired(listeners=(), addresses=(), conditions=()), NOW) == {}


def test_the_observed_generation_is_that_of_our_conditions() -> None:
    status = {
        "conditions": [condition("Accepted", observedGeneration=9), condition("tierwall.io/X", observedGeneration=4)],
        "ancestors": [
            entry("a", condition("Accepted", observedGeneration=5)),
            entry("b", condition("Accepted", observedGeneration=8), controller="x/y"),
        ],
    }
    assert observed_generation(status, desired(conditions=())) == 4
    assert observed_generation(status, desired(conditions=(), ancestors=())) == 5
    assert observed_generation(status, desired(parents=())) == 0
