"""The grid of findings: objects or a text, and every code that `tierwall check` has for them.

There is a row for each code that `check` can give, named by it. A row says everything that is found in its objects, so
one finding too many fails as well as one that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.worlds import gateway_objects as gateway
from tests.worlds import tool_objects as tool
from tests.worlds.gateway_objects import ALLOW, TCP, TIMEOUT
from tests.worlds.network_objects import admin, namespace, network_policy, pod, rule
from tests.worlds.newer_definitions import newer

Object = dict[str, Any]


class Row(NamedTuple):
    """Objects to check and the codes of all findings in order. A string is the content of a file."""

    codes: str
    given: Sequence[Object] | bytes


# reading and admission


def cluster(kind: str, name: str, spec: Object, version: str = "policy.networking.k8s.io/v1alpha1") -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def namespaced(version: str, kind: str, name: str, spec: Object, **metadata: Any) -> Object:
    metadata = {"name": name, "namespace": "shop", **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


SHOP = [namespace("shop", team="a"), pod("shop", "web", app="web"), pod("shop", "db", app="db")]
OTHER_TENANTS = [namespace("loose"), namespace("other", team="b"), pod("other", "x")]
SHADOW = {"annotations": {"tierwall.io/mode": "shadow"}}
ANYBODY: Object = {"from": [{"podSelector": {}}]}


WIDGETS = cluster(
    "CustomResourceDefinition",
    "widgets.example.com",
    {"group": "example.com", "names": {"kind": "Widget", "plural": "widgets"}, "scope": "Nowhere", "versions": []},
    "apiextensions.k8s.io/v1",
)

# paths

LABELLED: Object = {"matchLabels": {"gateway.networking.k8s.io/gateway-name": "prod-gateway"}}
# A call of the pod `agent` passes the Gateway's pod on its way to the backend's, which admits nobody else in its own
# namespace.
PATH: list[Object] = [
    tool.gateway(protocol="HTTPS"),
    tool.backend(),
    tool.route("r", "prod-gateway", "payment-service"),
    tool.v1(
        "p",
        tool.on_gateway(),
        {"source": tool.sa("default"), "authorization": tool.mcp(tool.calls("pay"), **tool.BASE)},
    ),
    tool.manifest("v1", "Service", "s", {"selector": {"app": "s"}, "ports": [{"port": 80, "targetPort": 9000}]}),
    pod("prod", "s", app="s"),
    pod("prod", "proxy", **LABELLED["matchLabels"]),
    pod("prod", "agent", app="agent"),
    network_policy(
        "s",
        {"from": [{"podSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}]},
        namespace="prod",
        podSelector={"matchLabels": {"app": "s"}},
    ),
]

# gateway


def places(*objects: Object) -> list[Object]:
    """Return the objects with a Gateway that allows ListenerSets, a route and a backend."""
    usual = [
        gateway.gateway(allowedListeners={"namespaces": {"from": "All"}}),
        gateway.route(rules=[{"name": "rule", "backendRefs": [gateway.tools_ref()]}]),
        gateway.tools(),
    ]
    given = {_identity(manifest) for manifest in objects}
    return [*(manifest for manifest in usual if _identity(manifest) not in given), *objects]


def _identity(manifest: Object) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def authorization(text: str) -> Object:
    return {"authorization": {"action": "Allow", "policy": {"matchExpressions": [text]}}}


WHOLE_BODY = {"transformation": {"request": {"body": "'a'"}, "response": {"body": "'b'"}}}
HALF_BODY = {"transformation": {"request": {"body": "'c'"}}}
BROKEN_CONDITION = {"directResponse": {"conditional": [{"condition": "request.path ==", "policy": {"status": 200}}]}}

# tool


def guarded(*rules: Object, backends: Sequence[str] = ("payment-service",), **spec: Any) -> list[Object]:
    """A Gateway with TLS and one policy on it, a route, and backends without."""
    return tooled(tool.v1("p", tool.on_gateway(), *rules, **spec), backends=backends)


def tooled(*policies: Object, backends: Sequence[str] = ("payment-service",)) -> list[Object]:
    certificate = {"mode": "Terminate", "certificateRefs": [{"name": "tls"}]}
    gateway = tool.gateway(protocol="HTTPS")
    gateway["spec"]["listeners"][0]["tls"] = certificate
    return [gateway, *map(tool.backend, backends), tool.route("r", "prod-gateway", *backends), *policies]


def base(*methods: Object) -> Object:
    return tool.mcp(*methods, **tool.BASE)


def account(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "prod"}}


# api

ALICE = 'request.userInfo.username == "alice"'
PODS = f'{ALICE} && request.verb == "create" && request.resource == "pods" && request.apiGroup == ""'


def allow(name: str, expression: str, effect: str = "Allow", **spec: Any) -> Object:
    whole = {"effect": effect, "expression": expression, **spec}
    return cluster("ClusterAuthorizationPolicy", name, whole, "tierwall.io/v1alpha1")


def namespaced_allow(name: str, expression: str) -> Object:
    return namespaced(
        "tierwall.io/v1alpha1", "AuthorizationPolicy", name, {"effect": "Allow", "expression": expression}
    )


def chain(*authorizers: Object) -> Object:
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [*authorizers],
    }


GRID: dict[str, Row] = {
    "nothing is wrong": Row("", [*SHOP, network_policy("np", ANYBODY)]),
    "nothing is wrong with settings": Row("", places(gateway.policy("p", "Gateway/gw", traffic=TIMEOUT))),
    "nothing is wrong with tools": Row("", guarded({"source": tool.sa(), "authorization": base(tool.calls("pay"))})),
    "nothing is wrong with requests": Row("", [allow("p", f'{PODS} && object.spec.nodeName == "x"')]),
    "TW001": Row("TW001", b""),
    "TW002": Row("TW002", b"a: [\n"),
    "TW003": Row("TW003", b"[" * 20_000),
    "TW004": Row("TW004", b"apiVersion: v1\nkind: Namespace\nmetadata: {name: one, name: two}\n"),
    "TW005": Row("TW005", b"a: \xff\n"),
    "TW006": Row("TW006", b"a: 1\n"),
    "TW007": Row("TW007", [namespace("one"), namespace("one")]),
    "TW015": Row("TW015", b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nkind: Pod\n"),
    "TW016": Row("TW016", b"apiVersion: v1\nkind: Namespace\nmetadata: {name: y}\n"),
    "TW032": Row("TW032", b"apiVersion: v1\nkind: Namespace\nmetadata: {name: one}  # tierwall: ignore TW105\n"),
    "TW033": Row("TW033", b"apiVersion: v1\nkind: Namespace\nmetadata: {name: one}  # tierwall: ignore TW105 why\n"),
    "TW045": Row("TW045", b"apiVersion: tierwall.io/v1alpha1\nkind: Snapshot\nobjects: 7\n"),
    "TW101": Row("TW101", [*SHOP, network_policy("np", ANYBODY, podSelectors={})]),
    "TW102": Row("TW102", [*SHOP, cluster("AdminNetworkPolicy", "a", {"priority": 1})]),
    "TW103": Row("TW103", [*SHOP, admin("a", rule("Deny"), priority="high")]),
    "TW104": Row("TW104", [*SHOP, admin("a", rule("deny"))]),
    "TW105": Row("TW105", [*SHOP, admin("a", rule("Deny"), priority=1001)]),
    "TW106": Row("TW106", [*SHOP, admin("a", *[rule("Deny")] * 101)]),
    "TW107": Row("TW107 TW108 TW108", [gateway.gateway("gw", *[{"name": "web", "port": 80, "protocol": "HTTP"}] * 2)]),
    "TW108": Row("TW108", places(gateway.policy("p", "Gateway/gw"))),
    "TW109": Row("TW109", [*SHOP, network_policy("np", {"from": [{"ipBlock": {"cidr": "10.0.0.1/8"}}]})]),
    "TW110": Row("TW110", [namespaced("networking.k8s.io/v1", "NetworkPolcy", "a", {})]),
    "TW111": Row("TW111", [newer("Gateway")]),
    "TW112": Row(
        "TW111 TW112", [newer("AdminNetworkPolicy"), *SHOP, admin("a", rule("Deny"), rule("Allow"), colour="red")]
    ),
    "TW113": Row("TW104 TW108 TW113", [WIDGETS, namespaced("example.com/v1", "Widget", "w", {})]),
    "TW114": Row("TW111 TW114", [newer("Gateway"), gateway.gateway(colour="red")]),
    "TW115": Row("TW115", [cluster("AdminNetworkPolicy", "a", {}, "policy.networking.k8s.io/v1alpha9")]),
    "TW116": Row("TW116", [namespaced("batch/v1beta1", "CronJob", "a", {})]),
    "TW201": Row("TW201", [*SHOP, admin("a", rule("Allow", 80)), admin("b", rule("Deny"))]),
    "TW202": Row("TW202", [*SHOP, admin("a", rule("Deny")), network_policy("np", ANYBODY)]),
    "TW203": Row("TW203", [*SHOP, admin("a", rule("Deny", 81)), network_policy("np", {})]),
    "TW204": Row("TW204", [*SHOP, network_policy("np", ANYBODY, podSelector={"matchLabels": {"app": "nobody"}})]),
    "TW205": Row("TW205", [*SHOP, admin("a", rule("Deny", namespaces={"matchLabels": {"team": "x"}}))]),
    "TW206": Row(
        "TW206",
        [*SHOP, *OTHER_TENANTS, admin("a", rule("Deny", namespaces={"notSameLabels": ["team"]}))],
    ),
    "TW207": Row("TW207", [*SHOP, admin("a", rule("Deny"), rule("Allow", 80))]),
    "TW209": Row("TW209", [*SHOP, network_policy("np", ANYBODY, metadata=SHADOW)]),
    "TW211": Row("TW203 TW211", [network_policy("np", ANYBODY), admin("a", rule("Deny", 80))]),
    "TW212": Row("TW212", [*SHOP, admin("a", rule("Allow")), network_policy("np")]),
    "TW213": Row("TW213", [*SHOP, network_policy("np", {**ANYBODY, "ports": [{"port": "metrics"}]})]),
    "TW214": Row("TW214", [*SHOP, admin("a", {**rule("Deny", 80), "name": "x"}, {**rule("Deny", 81), "name": "x"})]),
    "TW301": Row("TW301", places(gateway.policy("p", "HTTPRoute/gone", traffic=TIMEOUT))),
    "TW302": Row("TW302", places(gateway.policy("p", "HTTPRoute/route", "HTTPRoute/gone", traffic=TIMEOUT))),
    "TW303": Row(
        "TW303",
        places(
            gateway.policy("lock", "Gateway/gw", traffic=TIMEOUT, override=True),
            gateway.policy("p", "HTTPRoute/route", traffic=TIMEOUT),
        ),
    ),
    "TW304": Row(
        "TW304",
        places(
            *(
                gateway.policy(name, "Gateway/gw", traffic=traffic)
                for name, traffic in (("a", TIMEOUT), ("b", TIMEOUT | ALLOW))
            )
        ),
    ),
    "TW305": Row(
        "TW305",
        places(
            gateway.policy("g", "Gateway/gw", traffic=authorization("request.path == '/a'")),
            gateway.policy("r", "HTTPRoute/route", traffic=authorization("request.path == '/b'")),
        ),
    ),
    "TW306": Row(
        "TW306 TW662 TW662 TW662",
        places(
            gateway.policy("wide", "Gateway/gw", traffic=WHOLE_BODY),
            gateway.policy("narrow", "HTTPRoute/route", traffic=HALF_BODY),
        ),
    ),
    "TW307": Row("TW307", places(gateway.policy("p", "Gateway/gw", traffic=BROKEN_CONDITION))),
    "TW308": Row(
        "TW308", places(gateway.route(parents=[{"name": "gone"}], rules=[{"backendRefs": [gateway.tools_ref()]}]))
    ),
    "TW309": Row(
        "TW303 TW309",
        places(
            gateway.policy("r", "HTTPRoute/route", backend=TCP),
            gateway.policy("b", "AgentgatewayBackend/tools", backend=TCP),
        ),
    ),
    "TW401": Row("TW401", guarded({"authorization": tool.cel("request.nope == 'x'")})),
    "TW402": Row(
        "TW402",
        guarded({"authorization": {"type": "Inline", "paths": [{"type": "RegularExpression", "value": "(a"}]}}),
    ),
    "TW403": Row("TW403", guarded({"source": {"type": "SPIFFE", "serviceAccount": {"name": "x"}}})),
    "TW404": Row("TW404", [account("agent"), *guarded({"source": tool.sa("agnet"), "authorization": base()})]),
    "TW405": Row("TW405", guarded({"source": tool.sa(), "authorization": tool.mcp(tool.calls("pay"))})),
    "TW406": Row(
        "TW406",
        tooled(
            tool.v1("g", tool.on_gateway(), {"source": tool.sa(), "authorization": base(tool.calls("pay", "look"))}),
            tool.v1("b", tool.on_backend(), {"source": tool.sa(), "authorization": base(tool.calls("pay"))}),
        ),
    ),
    "TW407": Row(
        "TW407",
        tooled(
            tool.v1("g", tool.on_gateway(), {"authorization": base(tool.calls("pay"))}),
            *(
                tool.v1(name, tool.on_backend(name), {"authorization": base(tool.calls("pay"))})
                for name in ("bank", "shop")
            ),
            backends=("bank", "shop"),
        ),
    ),
    "TW408": Row("TW408", guarded({"authorization": base(tool.calls("bnak/pay"))}, backends=("bank",))),
    "TW409": Row(
        "TW409", tooled(*(tool.v1(f"p{number}", tool.on_gateway(), {"source": tool.sa()}) for number in range(6)))
    ),
    "TW410": Row(
        "TW410",
        guarded({"authorization": tool.cel("request.mcp.arguments.amount < 5")}, {"authorization": base()}),
    ),
    "TW411": Row("TW411", guarded({"authorization": {"type": "Inline", "ports": [1]}})),
    "TW412": Row(
        "TW412",
        [
            tool.gateway(),
            tool.backend(),
            tool.route("r", "prod-gateway", "payment-service"),
            tool.v1("p", tool.on_gateway(), {"source": tool.sa()}),
        ],
    ),
    "TW413": Row("TW413", [*PATH, network_policy("closed", namespace="prod", podSelector=LABELLED)]),
    "TW414": Row("TW414", [*PATH, pod("prod", "web")]),
    "TW501": Row("TW107 TW501", [chain({"type": "RBAC", "name": "r"}, {"type": "Node", "name": "r"})]),
    "TW502": Row("TW502", [allow("p", 'request.verb == "create" && request.verb == "delete"')]),
    "TW503": Row(
        "TW503", [allow("p", 'request.verb == "create" && request.apiGroup == "" && object.spec.x == "y"', "Deny")]
    ),
    "TW504": Row("TW504", [allow("p", " && ".join([PODS, *(f'object.spec.f{n} == "{"x" * 40}"' for n in range(20))]))]),
    "TW505": Row("TW505", [allow("p", 'request.apiGroup == "apps" && object.spec.replicas < 3')]),
    "TW506": Row("TW506", [namespaced_allow("p", f'{ALICE} && request.namespace in ["shop", ""]')]),
    "TW507": Row("TW507", [allow("narrow", f'{PODS} && object.spec.nodeName == "x"'), allow("wide", ALICE)]),
    "TW508": Row("TW508", [allow("p", ALICE, authorizer="policy")]),
    "TW509": Row("TW509", [allow("p", "request.verb ==")]),
}
