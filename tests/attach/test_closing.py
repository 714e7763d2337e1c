"""An invalid policy whose targets cannot be read closes what it may have named.

docs/semantics.md#an-invalid-policy-closes-its-targets.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds import tool_objects as make
from tests.worlds.tool_objects import Object, asked, backend, gateway, on_backend, on_gateway, v1, verdict
from tests.worlds.tool_worlds import snapshot
from tierwall.attach.status import MergeStatus, ancestors
from tierwall.tool.model import model

PLACES = [
    gateway(),
    gateway("other-gateway"),
    backend(),
    backend("other-service"),
    gateway(namespace="far"),
    backend(namespace="far"),
]
ELSEWHERE = {"gateway": "far/prod-gateway", "backend": "far/payment-service"}


def broken(target_refs: Any, **spec: Any) -> Object:
    policy = v1("p", on_gateway())
    return {**policy, "spec": {**policy["spec"], "targetRefs": target_refs, **spec}}


def is_open(policy: Object, **question: Any) -> bool:
    return verdict([*PLACES, policy], tool="refund", **question) == "Allow"


OTHER = {"gateway": "prod/other-gateway", "backend": "prod/other-service"}


@pytest.mark.parametrize(
    "refs", [None, [], {}, "prod-gateway", 5, [None], ["prod-gateway"], [{}], [[]], [on_gateway(), 5]]
)
def test_targets_that_cannot_be_read_close_the_namespace(refs: Any) -> None:
    assert not is_open(broken(refs))
    assert not is_open(broken(refs), **OTHER)
    assert is_open(broken(refs), **ELSEWHERE)


@pytest.mark.parametrize("name", [None, 5, "", [], {}, "x" * 254])
def test_an_entry_without_a_name_closes_the_namespace(name: Any) -> None:
    assert not is_open(broken([{**on_gateway(), "name": name}]), **OTHER)
    assert is_open(broken([{**on_gateway(), "name": name}]), **ELSEWHERE)


@pytest.mark.parametrize(
    "change", [{"kind": 5}, {"kind": None}, {"group": None}, {"group": []}, {"kind": "no kind"}, {"group": "No Group"}]
)
def test_an_entry_of_another_kind_closes_what_has_its_name(change: Object) -> None:
    policy = broken([{**on_gateway(), **change}])
    assert not is_open(policy)
    assert is_open(policy, **OTHER)
    policy = broken([{**on_backend("other-service"), **change}])
    assert is_open(policy)
    assert not is_open(policy, **OTHER)


@pytest.mark.parametrize("section", [5, [], {}, "Not a section", ""])
def test_a_section_that_cannot_be_read_closes_the_whole_object(section: Any) -> None:
    places = [gateway("prod-gateway", "web", "tls"), backend()]
    policy = broken([{**on_gateway(), "sectionName": section}])
    for listener in ("web", "tls"):
        assert verdict([*places, policy], tool="refund", listener=listener) == "Deny"


def test_a_spec_that_is_missing_closes_the_namespace() -> None:
    specs: list[Any] = [None, [], "x"]
    for spec in specs:
        assert not is_open({**v1("p", on_gateway()), "spec": spec}, **OTHER)


def test_a_readable_entry_of_an_invalid_policy_closes_its_target_only() -> None:
    policy = broken([on_gateway()], typo=True)
    assert not is_open(policy)
    assert is_open(policy, **OTHER)


def test_a_valid_policy_with_a_missing_target_or_another_kind_protects_nothing() -> None:
    assert is_open(v1("p", on_gateway("missing")))
    route = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "prod-gateway"}
    assert is_open(v1("p", route))


def test_a_policy_of_an_older_version_does_not_name_the_backends_of_another_group() -> None:
    policy = make.v0("p", on_backend(group=make.PROTOTYPE), {"name": "r", "source": make.sa()})
    assert not is_open(policy)
    assert is_open(policy, **OTHER)


def test_the_trace_and_the_status_say_why() -> None:
    policy = broken([])
    answer = asked([*PLACES, policy], tool="refund")
    [step] = [step for step in answer["trace"] if step["reason"] == "FailsClosed"]
    assert "may have named this target" in step["note"]
    loaded = snapshot([*PLACES, policy])
    [resource] = model(loaded).resources
    status = {ancestor.ref.name: ancestor for ancestor in ancestors(loaded, resource, MergeStatus())}
    assert sorted(status) == ["other-gateway", "other-service", "payment-service", "prod-gateway"]
    said = " ".join(condition.message for condition in status["other-service"].conditions)
    assert "its targetRefs may have named: every request to them is denied" in said


def test_what_cannot_be_read_pushes_no_valid_policy_over_a_limit() -> None:
    def aged(policy: Object, day: int) -> Object:
        return {**policy, "metadata": {**policy["metadata"], "creationTimestamp": f"2026-01-{day:02}T00:00:00Z"}}

    def named(policy: Object, name: str) -> Object:
        return {**policy, "metadata": {**policy["metadata"], "name": name}}

    five = [aged(named(v1("p", on_gateway()), f"valid-{day}"), day) for day in range(10, 15)]
    invalid = [aged(named(broken([]), f"invalid-{day}"), day) for day in range(1, 9)]
    objects = [gateway(), backend(), *five, *invalid]
    assert verdict(objects, tool="refund") == "Deny"
    loaded = snapshot(objects)
    [place] = [resource for resource in loaded if resource.kind == "Gateway"]
    tiers = model(loaded).stack(place, None, None)
    assert len(tiers[0].policies) <= 5, "engines have room for five"
    assert tiers[0].policies[-1].closed
    junior = [aged(named(broken([]), "invalid"), 20)]
    tiers = model(snapshot([gateway(), backend(), *five, *junior])).stack(place, None, None)
    assert [bool(policy.closed) for policy in tiers[0].policies] == [False] * 4 + [True]
