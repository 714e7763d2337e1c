"""Each plane compares what its page says, and finds words for it (docs/compare.md#what-is-compared)."""

from __future__ import annotations

from typing import Any

import pytest

import tierwall
from tests import ROOT
from tierwall.analyze.difference import Difference, SettledVerdict
from tierwall.core.diagnostics import InputError
from tierwall.core.verdict import Verdict
from tierwall.gateway.detail import GatewayDetail
from tierwall.gateway.model.fields import PROFILES
from tierwall.gateway.question import GatewayQuestion
from tierwall.render.differences import field_summaries, grouped

OLD = ROOT / "examples" / "compare" / "old"
TOOL, GATEWAY, API = (
    ROOT / "examples" / name / folder
    for name, folder in (("tool", "manifests"), ("gateway", "manifests"), ("api", "policies"))
)


def changed(world: tierwall.World, *gone: str, planes: str = "tool", **put: Any) -> list[Difference]:
    return list(tierwall.diff(world, world.without(*gone).overlay(objects=put.get("objects", ())), planes=[planes]))


def test_a_route_that_appears_opens_a_way_that_could_not_be_asked_about_before() -> None:
    new = tierwall.load(OLD)
    old = new.without("HTTPRoute/shop/orders").overlay(
        objects=[
            {
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "HTTPRoute",
                "metadata": {"name": "other", "namespace": "shop"},
                "spec": {"parentRefs": [{"name": "agents"}], "rules": [{"backendRefs": [{"name": "x", "port": 1}]}]},
            },
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": "shop"}},
        ]
    )
    opened = [difference for difference in tierwall.diff(old, new, planes=["tool"]) if difference.change == "opens"]
    assert opened
    assert all(difference.before is None for difference in opened)
    assert str(opened[0]) == (
        "spiffe://cluster.local/ns/shop/sa/assistant may now call status at shop/orders through shop/agents#mcp "
        "(no route led there before)"
    )


def test_an_authorizer_that_is_no_longer_asked_is_named() -> None:
    differences = changed(tierwall.load(TOOL), "XAccessPolicy/prod/fraud-desk")
    # Tasks follow the call.
    assert [difference.words[1] for difference in differences] == ["call pay", "use tasks/get"]
    for difference in differences:
        assert str(difference).endswith("without the approval of XAccessPolicy/prod/fraud-desk")
        assert difference.change == "opens"


def test_conditions_are_compared_where_no_plain_request_shows_the_difference() -> None:
    listed = changed(tierwall.load(TOOL), "XAccessPolicy/prod/gateway-policy-region")
    (search,) = [difference for difference in listed if difference.words[1] == "call search"]
    assert isinstance(search.before, SettledVerdict)
    assert isinstance(search.after, SettledVerdict)
    assert (search.change, search.before.verdict, search.after.verdict) == (
        "alters",
        Verdict.CONDITIONAL,
        Verdict.ALLOW,
    )
    assert search.before.conditions == (
        '!("x-region" in request.headers) || request.headers["x-region"].startsWith("eu-")',
    )
    assert "without conditions" in str(search)


def test_any_other_caller_and_any_other_tool_are_compared() -> None:
    listed = changed(tierwall.load(TOOL), "XAccessPolicy/prod/gateway-policy-audit")
    others = [difference for difference in listed if "caller" not in difference.question]
    assert {"any other caller"} == {difference.covers["caller"] for difference in others}
    assert "call any other tool" in {difference.words[1] for difference in others}


def test_backends_of_two_groups_with_one_name_are_told_apart() -> None:
    world = tierwall.load(OLD).without("HTTPRoute/shop/orders")
    other = "agentic.networking.x-k8s.io"
    twin = {
        "apiVersion": f"{other}/v0alpha0",
        "kind": "XBackend",
        "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {"mcp": {"serviceName": "orders", "port": 8080}},
    }
    world = world.overlay(objects=[twin])
    listed = changed(world, "XAccessPolicy/shop/orders")
    assert {difference.question["backend"] for difference in listed} == {
        "XBackend.agentic.prototype.x-k8s.io/shop/orders"
    }
    for difference in listed:
        world.ask(tierwall.ToolQuestion.from_dict(difference.question))


def conditional(status: int) -> dict[str, Any]:
    entries = [{"condition": 'request.path == "/x"', "policy": {"status": status}}]
    return {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayPolicy",
        "metadata": {"name": "limits", "namespace": "shop"},
        "spec": {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "agents"}],
            "traffic": {"directResponse": {"conditional": entries}},
        },
    }


def test_conditional_settings_differ_as_whole_lists() -> None:
    world = tierwall.load(OLD)
    old, new = (world.overlay(objects=[conditional(status)]) for status in (403, 404))
    assert list(tierwall.diff(old, old, planes=["gateway"])) == []
    (difference,) = tierwall.diff(old, new, planes=["gateway"])
    assert difference.field == "traffic.directResponse"
    assert difference.after is not None
    assert "'status': 404" in str(difference.after)


def test_a_profile_is_named_only_where_it_differs_from_the_documentation() -> None:
    listed = changed(tierwall.load(GATEWAY), "AgentgatewayPolicy/team/chat", planes="gateway")
    profiles = {(difference.field, difference.question.get("profile")) for difference in listed}
    assert profiles == {("traffic.timeouts", None), ("backend.tls", None), ("backend.tls", "agentgateway")}


@pytest.mark.parametrize("profile", PROFILES)
def test_one_profile_is_compared_as_if_there_were_no_other(profile: str) -> None:
    old = tierwall.load(GATEWAY)
    new = old.without("AgentgatewayPolicy/team/chat")
    listed = list(tierwall.diff(old, new, planes=["gateway"], profile=profile))
    # Removing the policy changes `backend.tls` under both, each time something else.
    assert {difference.field for difference in listed} == {"traffic.timeouts", "backend.tls"}
    for difference in listed:
        assert difference.question.get("profile", "docs") == profile
        details = [world.ask(GatewayQuestion.from_dict(difference.question)).detail for world in (old, new)]
        settings = [detail.effective.get(difference.field) for detail in details if isinstance(detail, GatewayDetail)]
        assert settings == [difference.before, difference.after]


def test_a_profile_that_does_not_exist_is_an_error() -> None:
    world = tierwall.load(GATEWAY)
    with pytest.raises(InputError, match="expected one of docs, agentgateway as profile, found `doc`"):
        tierwall.diff(world, world, profile="doc")


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        (
            "ClusterAuthorizationPolicy/alice-dev-claims",
            "alice may no longer create persistentvolumeclaims everywhere",
        ),
        (
            "ClusterAuthorizationPolicy/admin-access",
            "a member of shop-developers may create resourceclaims.resource.k8s.io everywhere without conditions "
            "(RBAC: allowed by ClusterRoleBinding/developers-use-claims of ClusterRole/claim-user)",
        ),
    ],
)
def test_permissions_are_told_with_their_conditions(gone: str, sentence: str) -> None:
    (difference,) = changed(tierwall.load(API), gone, planes="api")
    assert str(difference) == sentence


def rbac(kind: str, name: str, **more: Any) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": name}, **more}


def test_a_wildcard_stands_for_everything_that_has_no_name() -> None:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["get"]}]
    objects = [
        rbac("ClusterRole", "admin", rules=rules),
        rbac("ClusterRoleBinding", "admins", roleRef=role, subjects=[subject]),
    ]
    listed = list(tierwall.diff(tierwall.load(), tierwall.load(objects=objects), planes=["api"]))
    assert [difference.words[1] for difference in listed] == [
        "use any other verb on any other resource of any group",
        "get *",
    ]
    assert {difference.change for difference in listed} == {"opens"}


def test_a_service_account_has_the_permissions_of_its_groups() -> None:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "read"}
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts:shop"}
    account = {"kind": "ServiceAccount", "name": "bot", "namespace": "shop"}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    base = [
        rbac("ClusterRole", "read", rules=rules),
        rbac("ClusterRole", "none"),
        rbac("ClusterRoleBinding", "bot", roleRef={**role, "name": "none"}, subjects=[account]),
    ]
    all_accounts = rbac("ClusterRoleBinding", "all", roleRef=role, subjects=[group])
    old = tierwall.load(objects=base)
    users = {difference.question["user"] for difference in changed(old, planes="api", objects=[all_accounts])}
    assert users == {"system:serviceaccount:shop:bot", "any-other-user"}


def gateway_world(*policies: tuple[str, str, dict[str, Any]]) -> tierwall.World:
    """Return a Gateway with three routes of two rules each, and policies on a kind and name."""
    api = "gateway.networking.k8s.io"
    listener = {"name": "web", "port": 80, "protocol": "HTTP"}
    specs: list[tuple[str, str, str, dict[str, Any]]] = [
        (f"{api}/v1", "Gateway", "gw", {"gatewayClassName": "c", "listeners": [listener]})
    ]
    route = {"parentRefs": [{"name": "gw"}], "rules": [{}, {}]}
    specs += [(f"{api}/v1", "HTTPRoute", f"r{number}", route) for number in range(3)]
    for kind, name, traffic in policies:
        ref = {"group": api, "kind": kind, "name": name}
        specs.append(
            ("agentgateway.dev/v1alpha1", "AgentgatewayPolicy", name, {"targetRefs": [ref], "traffic": traffic})
        )
    return tierwall.load(
        objects=[
            {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "ns"}, "spec": spec}
            for version, kind, name, spec in specs
        ]
    )


def test_settings_are_grouped_by_field_with_the_number_of_routes() -> None:
    old = gateway_world(("Gateway", "gw", {"timeouts": {"request": "1s"}, "retry": {"attempts": 1}}))
    new = gateway_world(("HTTPRoute", "r1", {"timeouts": {"request": "2s"}, "hostRewrite": {"mode": "Auto"}}))
    differences = list(tierwall.diff(old, new, planes=["gateway"]))
    assert field_summaries(differences) == {
        "traffic.timeouts": "traffic.timeouts: 2 routes lose it, 1 route changes it",
        "traffic.retry": "traffic.retry: 3 routes lose it",
        "traffic.hostRewrite": "traffic.hostRewrite: 1 route gets it",
    }
    fields = [together[0].field for together in grouped(differences)]
    assert fields == sorted(fields, key=list(dict.fromkeys(fields)).index)
