"""Every statement and example of the proposal "Allow AccessPolicy to Target Gateway Objects", in both its versions."""

from __future__ import annotations

import pytest

from tests.worlds.tool_objects import (
    AGENT,
    PROTOTYPE,
    T1,
    T2,
    T3,
    Object,
    asked,
    backend,
    gateway,
    inline,
    manifest,
    on_backend,
    on_gateway,
    prototype,
    sa,
    verdict,
)
from tierwall.resources.admission.admit import admit

AUDIT, REGION, ADMIN = (
    "AccessPolicy/prod/gateway-policy-audit",
    "AccessPolicy/prod/gateway-policy-region",
    "AccessPolicy/prod/backend-policy-admin",
)
SERVICE = on_backend(group=PROTOTYPE)


def rule(*tools: str) -> Object:
    return {"source": sa(), "authorization": inline(*tools)}


def example(audit: str = "pay", region: str = "pay", admin: str = "pay", audited: str = T1) -> list[Object]:
    """The setup of the example: each policy allows `pay`, or another tool given to it."""
    route = {
        "parentRefs": [{"name": "prod-gateway"}],
        "rules": [{"backendRefs": [{"group": PROTOTYPE, "kind": "XBackend", "name": "payment-service", "port": 80}]}],
    }
    return [
        gateway(),
        manifest("gateway.networking.k8s.io/v1", "HTTPRoute", "payment-route", route),
        backend(group=PROTOTYPE),
        prototype("gateway-policy-region", on_gateway(), rule(region), created=T2),
        prototype("backend-policy-admin", SERVICE, rule(admin), created="2025-01-01T00:00:00Z"),
        prototype("gateway-policy-audit", on_gateway(), rule(audit), created=audited),
    ]


def refused(*targets: Object) -> list[str]:
    return [problem.message for problem in admit(prototype("p", list(targets), rule("pay"))) if problem.refuses]


# "This proposal allows AccessPolicy to target Gateway objects, in addition to Backend objects"


def test_a_policy_may_target_a_gateway() -> None:
    assert refused(on_gateway()) == []
    assert verdict([gateway(), backend(), prototype("p", on_gateway(), rule("pay"))], tool="refund") == "Deny"


def test_a_policy_may_target_a_backend() -> None:
    assert refused(SERVICE) == []
    objects = [gateway(), backend(group=PROTOTYPE), prototype("p", SERVICE, rule("pay"))]
    assert verdict(objects, tool="refund") == "Deny"


def test_a_policy_on_a_gateway_guards_all_the_traffic_that_the_gateway_manages() -> None:
    backends = [backend(name) for name in ("one", "two", "three")]
    objects = [gateway(), *backends, prototype("p", on_gateway(), rule("pay"))]
    for name in ("one", "two", "three"):
        assert verdict(objects, backend=f"prod/{name}", tool="pay") == "Allow"
        assert verdict(objects, backend=f"prod/{name}", tool="refund") == "Deny"


# Restriction 1: "A single AccessPolicy object targeting a Gateway and a Backend at the same time is NOT allowed."


def test_a_policy_may_not_target_a_gateway_and_a_backend() -> None:
    assert any("All targetRefs must have the same Kind" in message for message in refused(on_gateway(), SERVICE))


def test_a_policy_that_targets_both_denies_on_both() -> None:
    objects = [gateway(), backend(group=PROTOTYPE), prototype("p", [on_gateway(), SERVICE], rule("pay"))]
    got = asked(objects, tool="pay")
    assert (got["verdict"], got["level"]) == ("Deny", "Gateway")
    got = asked([*objects, gateway("other")], gateway="prod/other", tool="pay")
    assert (got["verdict"], got["level"]) == ("Deny", "Backend")


# Restriction 2 and "Evaluation Flow"


def test_policies_on_both_are_allowed_and_those_on_the_gateway_come_first() -> None:
    got = asked(example(), tool="pay")
    assert got["evaluated"] == [AUDIT, REGION, ADMIN]


def test_among_gateway_policies_the_earlier_comes_first() -> None:
    assert asked(example(), tool="pay")["evaluated"][:2] == [AUDIT, REGION]
    assert asked(example(audited=T3), tool="pay")["evaluated"][:2] == [REGION, AUDIT]


@pytest.mark.parametrize("target", [on_gateway(), SERVICE], ids=["Gateway", "Backend"])
def test_of_one_age_the_one_first_in_alphabetical_order_by_namespace_and_name_comes_first(target: Object) -> None:
    names = ["p-9", "p-10", "b", "a0", "a.b", "a-b"]
    policies = [prototype(name, target, rule("pay"), created=T1) for name in names[1:]]
    got = asked([gateway(), backend(group=PROTOTYPE), *policies], tool="pay")
    assert got["evaluated"] == [f"AccessPolicy/prod/{name}" for name in ("a-b", "a.b", "a0", "b", "p-10")]


def test_among_backend_policies_the_earlier_comes_first() -> None:
    policies = [prototype(name, SERVICE, rule("pay"), created=when) for name, when in (("a", T3), ("b", T1), ("c", T2))]
    got = asked([gateway(), backend(group=PROTOTYPE), *policies], tool="pay")
    assert got["evaluated"] == ["AccessPolicy/prod/b", "AccessPolicy/prod/c", "AccessPolicy/prod/a"]


def test_if_any_gateway_policy_denies_the_request_is_denied_and_backend_policies_are_not_evaluated() -> None:
    got = asked(example(region="refund"), tool="pay")
    assert (got["verdict"], got["level"]) == ("Deny", "Gateway")
    assert got["evaluated"] == [AUDIT, REGION]
    assert [decider["policy"] for decider in got["decidedBy"]] == [REGION]


def test_if_the_audit_policy_denies_the_request_is_rejected_immediately_and_subsequent_policies_are_skipped() -> None:
    got = asked(example(audit="refund"), tool="pay")
    assert (got["verdict"], got["evaluated"]) == ("Deny", [AUDIT])


def test_if_all_gateway_policies_allow_the_backend_policies_are_evaluated() -> None:
    assert asked(example(), tool="pay")["evaluated"] == [AUDIT, REGION, ADMIN]


def test_if_any_backend_policy_denies_the_request_is_denied() -> None:
    got = asked(example(admin="refund"), tool="pay")
    assert (got["verdict"], got["level"]) == ("Deny", "Backend")
    assert [decider["policy"] for decider in got["decidedBy"]] == [ADMIN]


def test_if_all_backend_policies_allow_the_request_is_allowed() -> None:
    got = asked(example(), tool="pay")
    assert (got["verdict"], got["level"]) == ("Allow", "Backend")
    assert got["decidedBy"][-1]["policy"] == ADMIN


@pytest.mark.parametrize("denying", ["", "audit", "region", "admin"])
def test_the_request_is_allowed_only_if_it_is_allowed_by_all_three_policies(denying: str) -> None:
    objects = example(**({denying: "refund"} if denying else {}))
    assert verdict(objects, tool="pay") == ("Deny" if denying else "Allow")


# "API Changes"


@pytest.mark.parametrize("kind", ["HTTPRoute", "Service", "Backend"])
def test_a_target_must_be_a_gateway_or_a_backend(kind: str) -> None:
    message = (
        "TargetRef must have group agentic.prototype.x-k8s.io and kind XBackend, or group gateway.networking.k8s.io"
    )
    assert any(
        message in problem for problem in refused({"group": "gateway.networking.k8s.io", "kind": kind, "name": "x"})
    )


def test_a_backend_of_another_group_is_not_a_target() -> None:
    assert refused(on_backend())


def test_all_targets_must_have_the_same_kind() -> None:
    assert refused(on_gateway(), on_gateway("other")) == []
    assert refused(SERVICE, on_backend("other", PROTOTYPE)) == []
    assert refused(on_gateway(), SERVICE)


def test_a_policy_must_target_at_least_one_resource() -> None:
    assert refused()


# The proposal's second version: tool names conflict between the backends behind one Gateway


def shared_name(*tools: str) -> list[Object]:
    backends = [backend("bank", PROTOTYPE), backend("shop", PROTOTYPE)]
    return [gateway(), *backends, prototype("p", on_gateway(), rule(*tools))]


def test_a_list_of_tool_names_works_well_on_a_backend() -> None:
    objects = [gateway(), backend("bank", PROTOTYPE), backend("shop", PROTOTYPE)]
    objects.append(prototype("p", on_backend("bank", PROTOTYPE), rule("pay")))
    assert verdict(objects, backend="prod/bank", tool="refund") == "Deny"
    assert verdict(objects, backend="prod/shop", tool="refund") == "Allow"


def test_a_bare_name_on_a_gateway_is_the_tool_of_every_backend() -> None:
    assert verdict(shared_name("pay"), backend="prod/bank", tool="pay") == "Allow"
    assert verdict(shared_name("pay"), backend="prod/shop", tool="pay") == "Allow"


def test_a_scoped_name_on_a_gateway_is_the_tool_of_one_backend() -> None:
    for name in ("bank/pay", "prod/bank/pay"):
        assert verdict(shared_name(name), backend="prod/bank", tool="pay") == "Allow"
        assert verdict(shared_name(name), backend="prod/shop", tool="pay") == "Deny"
        assert verdict(shared_name(name), backend="prod/bank", tool="refund") == "Deny"
        assert verdict(shared_name(name), backend="prod/shop", tool=name) == "Deny"


def test_a_slash_without_a_backend_before_it_is_part_of_the_tool_name() -> None:
    assert verdict(shared_name("files/read"), backend="prod/bank", tool="files/read") == "Allow"
    assert verdict(shared_name("files/read"), backend="prod/bank", tool="read") == "Deny"


def test_names_in_a_policy_on_a_backend_have_no_scope() -> None:
    objects = [gateway(), backend("bank", PROTOTYPE), prototype("p", on_backend("bank", PROTOTYPE), rule("bank/pay"))]
    assert verdict(objects, backend="prod/bank", tool="pay") == "Deny"
    assert verdict(objects, backend="prod/bank", tool="bank/pay") == "Allow"


# "Support requirements": both kinds of target, and the evaluation flow, hold together


def test_both_kinds_of_target_are_supported_together() -> None:
    assert asked(example(), tool="pay")["request"]["caller"] == AGENT
    assert {step["tier"] for step in asked(example(), tool="pay")["trace"]} == {"Gateway", "Backend"}
