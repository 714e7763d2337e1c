"""Random clusters for the tool plane: policies of all generations, valid and not, and questions about them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.reference.expressions import EXPRESSIONS
from tests.reference.tool import Object
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

NAMESPACES = ("a", "b")
TOOLS = ("add", "get", "get_all", "set", "Add")
URIS = ("file:///x", "file:///y")
ACCOUNTS = ("one", "two")
CALLERS = (
    "spiffe://cluster.local/ns/a/sa/one",
    "spiffe://cluster.local/ns/b/sa/one",
    "spiffe://other.org/x",
    "spiffe://other.org/X",
)
PROTOTYPE, NETWORKING = "agentic.prototype.x-k8s.io", "agentic.networking.x-k8s.io"
BACKENDS = {"left": PROTOTYPE, "right": NETWORKING}
TIMES = (
    None,
    "2026-02-01T00:00:00Z",
    "2026-02-01T01:00:00+01:00",
    "2026-02-01T00:00:00.5Z",
    "2026-01-31T23:30:00-01:00",
)
NAMES = ("p-9", "p-10", "a-b", "a.b", "a0", "q", "z", "p", "p1", "p-1", "k", "m")
METHODS = (
    "tools/call", "tools/list", "initialize", "ping", "notifications/initialized", "prompts/get", "prompts/list",
    "resources/read", "resources/templates/list", "tools", "toolsx/call", "completion/complete",
    "sampling/createMessage", "server/discover", "subscriptions/listen", "tasks/get", "tasks/list", "unknown/method",
    "resources/subscribe", "__jsonrpc_response",
)  # fmt: skip
RULE_METHODS = (
    "tools", "prompts", "resources", "prompts/list", "tools/list", "resources/list", "resources/templates/list",
    "prompts/get", "tools/call", "resources/subscribe", "resources/unsubscribe", "resources/read",
)  # fmt: skip
PATHS = ("/mcp", "/mcp/", "/mcp/x", "/mcpx", "/", "/MCP", "/v1", "/mcp?a=b", "/v1/deep/er")
HOSTS = ("example.com", "a.example.com", "b.a.example.com", "Example.com:8080", "xexample.com", "other.org")
LISTENERS = ({"name": "web", "port": 8080, "protocol": "HTTP"}, {"name": "tls", "port": 8443, "protocol": "HTTP"})
HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"X-Env": "prod"},
    {"x-env": "prod"},
    {"x-env": "dev", "Mcp-Session-Id": "s"},
    {"MCP-SESSION-ID": "s"},
    {"MCP-Protocol-Version": "2026-07-28"},
    {"MCP-Protocol-Version": "2025-11-25", "Mcp-Method": "tools/call"},
    {"MCP-Protocol-Version": "2026-07-28", "Mcp-Name": "add"},
    {"MCP-Protocol-Version": "2027-01-01", "x-env": "prod"},
)
AUTHORIZER = {"protocol": "GRPC", "grpc": {}, "backendRef": {"name": "authorizer", "port": 5000}}


GOOD = [text for text, meaning in EXPRESSIONS.items() if meaning]


class World:
    """One random cluster from one seed: Gateways and backends in two namespaces, and up to ten policies."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.places = [target for namespace in NAMESPACES for target in self._places(namespace)]
        # In a crowded cluster all policies guard one Gateway, so that its limits are reached.
        self.crowded = self.likely(20)
        names = dict.fromkeys((self.chance.choice("aaaaaaab"), name) for name in self.chance.sample(NAMES, len(NAMES)))
        number = len(NAMES) if self.crowded else self.chance.choice((0, 1, 1, 2, 3, 4, 5, 6, 8, 10))
        self.policies = [self.policy(namespace, name) for namespace, name in list(names)[:number]]

    @property
    def objects(self) -> list[Object]:
        return [*self.places, *self.policies]

    def _places(self, namespace: str) -> list[Object]:
        both, out = list(LISTENERS), []
        for name, listeners in (("gw", self.chance.choice((both[:1], both))), ("gw2", both[:1])):
            spec: Object = {"gatewayClassName": "c", "listeners": listeners}
            out.append(place("gateway.networking.k8s.io/v1", "Gateway", namespace, name, spec))
        for name, group in BACKENDS.items():
            mcp = {"serviceName": "s", "port": 80, **self.chance.choice(({}, {}, {"path": "/v1"}))}
            out.append(place(f"{group}/v0alpha0", "XBackend", namespace, name, {"mcp": mcp}))
        return out

    def likely(self, percent: int) -> bool:
        return self.chance.randrange(100) < percent

    def some(self, items: tuple[Any, ...], most: int = 3, least: int = 0) -> list[Any]:
        return self.chance.sample(items, self.chance.randint(least, min(most, len(items))))

    def optional(self, percent: int, **makers: Callable[[], Any]) -> Object:
        return {name: make() for name, make in makers.items() if self.likely(percent)}

    def policy(self, namespace: str, name: str) -> Object:
        """Draw a policy of any generation."""
        generation = self.chance.choice(("prototype", "v0alpha0", "v1alpha1", "v1alpha1"))
        metadata: Object = {"name": name, "namespace": namespace}
        if created := self.chance.choice(TIMES):
            metadata["creationTimestamp"] = created
        group = PROTOTYPE if generation == "prototype" else NETWORKING
        version = "v1alpha1" if generation == "v1alpha1" else "v0alpha0"
        spec: Object = {"targetRefs": self.target_refs(group if version == "v0alpha0" else "")}
        if version == "v0alpha0":
            rules = [self.v0_rule(generation == "prototype") for _ in range(self.chance.randint(1, 3))]
            spec["rules"] = rules if generation == "prototype" else named(rules)
        else:
            spec["action"] = "Deny" if self.likely(2) else "ExternalAuth" if self.likely(25) else "Allow"
            if self.likely(85):
                spec["rules"] = named(
                    [self.v1_rule() for _ in range(self.chance.randint(0 if self.likely(10) else 1, 3))]
                )
            if spec["action"] == "ExternalAuth" and self.likely(95):
                spec["externalAuth"] = AUTHORIZER
        if self.likely(2):
            spec["typo"] = True
        if self.likely(4):
            spec["targetRefs"] = self.broken_refs(spec["targetRefs"])
        kind = self.chance.choice(("AccessPolicy", "XAccessPolicy"))
        return {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": metadata, "spec": spec}

    def target_refs(self, group: str) -> list[Object]:
        makers: tuple[Callable[[], Object], ...] = (self.gateway_ref, lambda: self.backend_ref(group))
        make = makers[0] if self.crowded else self.chance.choice(makers)
        number = self.chance.choice((1, 1, 1, 2))
        refs = [self.chance.choice(makers)() if self.likely(3) else make() for _ in range(number)]
        if not group and self.likely(2):
            refs = [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r"}]
        return list({repr(ref): ref for ref in refs}.values())

    def broken_refs(self, refs: list[Object]) -> Any:
        """Break a list of targets, as a whole or in one field."""
        ref = refs[0]
        field = self.chance.choice(("group", "kind", "name", "sectionName"))
        value: Any = self.chance.choice([None, 5, "", [], {}, "gw", "NO such\n", "HTTPRoute"])
        missing = {key: part for key, part in ref.items() if key != field}
        whole: list[Any] = [None, [], {}, "gw", 5, [None], ["gw"], [[]], [*refs, "gw"], ref]
        return self.chance.choice((self.chance.choice(whole), [{**ref, field: value}, *refs[1:]], [missing, *refs[1:]]))

    def gateway_ref(self) -> Object:
        ref = {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
        ref["name"] = self.chance.choice(("gw", "gw", "gw", "gw", "gw2", "missing"))
        if self.likely(30):
            ref["sectionName"] = self.chance.choice(("web", "web", "tls", "no"))
        return ref

    def backend_ref(self, group: str) -> Object:
        name = self.chance.choice(("left", "left", "left", "right", "right", "missing"))
        if group and not self.likely(5):  # the old generations accept only their own group
            name = (
                next(backend for backend, its_group in BACKENDS.items() if its_group == group)
                if self.likely(90)
                else name
            )
            return {"group": group, "kind": "XBackend", "name": name}
        right = BACKENDS.get(name, NETWORKING) if self.likely(90) else self.chance.choice((PROTOTYPE, NETWORKING))
        return {"group": right, "kind": "XBackend", "name": name}

    def account(self) -> Object:
        return {"name": self.chance.choice(ACCOUNTS[:1] * 3 + ACCOUNTS), **self.optional(30, namespace=self.namespace)}

    def namespace(self) -> str:
        return self.chance.choice((*NAMESPACES, "a", ""))

    def spiffe(self) -> str:
        return self.chance.choice(CALLERS[:1] * 4 + CALLERS)

    def source(self) -> Object:
        if self.likely(8):
            kind = self.chance.choice(("SPIFFE", "ServiceAccount"))
            return {"type": kind, **self.optional(50, spiffe=self.spiffe, serviceAccount=self.account)}
        if self.likely(50):
            return {"type": "ServiceAccount", "serviceAccount": self.account()}
        return {"type": "SPIFFE", "spiffe": self.spiffe()}

    def loose_source(self) -> Object:
        return self.source() if self.likely(90) else self.optional(50, spiffe=self.spiffe, serviceAccount=self.account)

    def cel(self) -> Object:
        return {"expression": self.chance.choice(GOOD if self.likely(96) else list(EXPRESSIONS))}

    def v0_rule(self, old: bool) -> Object:
        rule: Object = {"source": self.source()}
        if old and self.likely(50):
            return rule | self.optional(80, tools=lambda: self.some(TOOLS))
        choice = self.chance.randrange(10)
        if choice < 5:
            rule["authorization"] = {"type": "InlineTools", "tools": self.some(TOOLS)}
        elif choice < 8:
            rule["authorization"] = {"type": "CEL", "cel": self.cel()}
        elif choice < 9:
            rule["authorization"] = {"type": "ExternalAuth", "externalAuth": AUTHORIZER}
        return rule

    def v1_rule(self) -> Object:
        return self.optional(80, source=self.loose_source, authorization=self.authorization)

    def authorization(self) -> Object:
        out: Object = {"type": "Inline"}
        if self.likely(30):
            out = {"type": "CEL", "cel": self.cel(), **self.optional(25, mcp=self.mcp)}
        elif self.likely(75):
            out["mcp"] = self.mcp()
        if self.likely(40):
            out |= self.optional(
                30,
                methods=lambda: self.some(("GET", "POST", "DELETE")),
                paths=lambda: [self.path() for _ in range(self.chance.randint(0, 2))],
                headers=lambda: [self.header() for _ in range(self.chance.randint(0, 2))],
                hosts=lambda: self.some(("example.com", "*.example.com", "other.org")),
                ports=lambda: self.some((8080, 8443), 2),
            )
        return out

    def mcp(self) -> Object:
        methods = {method["name"]: method for method in (self.mcp_method() for _ in range(self.chance.randint(0, 3)))}
        option = self.chance.choice(("MATCH_BASE_PROTOCOL_METHODS", "SKIP_BASE_PROTOCOL_METHODS"))
        return self.optional(80, methods=lambda: list(methods.values()), mcpBaseProtocolMethodsOption=lambda: option)

    def mcp_method(self) -> Object:
        name = "tools/call" if self.likely(50) else self.chance.choice(RULE_METHODS)
        if name in ("tools/call", "prompts/get"):
            return {"name": name, **self.optional(60, params=lambda: self.some(TOOLS))}
        return {"name": name, **(self.optional(60, params=lambda: self.some(URIS)) if name == "resources/read" else {})}

    def path(self) -> Object:
        if self.likely(25):
            bad = "[" if self.likely(10) else "/m.*"
            return {"type": "RegularExpression", "value": self.chance.choice((bad, "/mcp", "/v[0-9]", "/"))}
        kind = self.optional(70, type=lambda: self.chance.choice(("Exact", "PathPrefix")))
        return kind | self.optional(90, value=lambda: self.chance.choice(("/mcp", "/mcp/", "/", "/v1", "")))

    def header(self) -> Object:
        name, value = self.chance.choice((("X-Env", "prod"), ("x-env", "prod|dev"), ("mcp-session-id", "s")))
        kinds = ("Exact", "RegularExpression")
        return {"name": name, "value": value, **self.optional(50, type=lambda: self.chance.choice(kinds))}

    def question(self) -> Object:
        """Draw a question about this cluster."""
        namespace, name = self.chance.choice("aaaaab"), self.chance.choice(("gw", "gw", "gw", "gw2"))
        asked: Object = {"gateway": f"{namespace}/{name}"}
        wanted = {"name": name, "namespace": namespace}
        gateway = next(target for target in self.places if target["kind"] == "Gateway" and target["metadata"] == wanted)
        listeners = [listener["name"] for listener in gateway["spec"]["listeners"]]
        if len(listeners) > 1 or self.likely(50):
            asked["listener"] = self.chance.choice(listeners)
        behind = self.chance.choice("aaaaab")
        asked["backend"] = self.chance.choice((f"{behind}/left", f"{behind}/left", f"{behind}/right", "Service/a/s"))
        account = {"serviceAccount": "a/one"}
        asked |= self.optional(
            90, caller=lambda: self.chance.choice((account, account, account, {"serviceAccount": "a/two"}, *CALLERS))
        )
        asked |= self.optional(85, method=lambda: self.chance.choice(("tools/call",) * 12 + METHODS))
        asked |= self.optional(85, tool=lambda: self.chance.choice(TOOLS))
        asked |= self.optional(50, uri=lambda: self.chance.choice(URIS))
        if self.likely(50) or "method" not in asked:
            plain = "method" not in asked
            methods = ("GET", "GET", "DELETE", "POST") if plain else ("POST", "POST", "POST", "GET", "DELETE", "PUT")
            asked["http"] = self.optional(
                60,
                method=lambda: self.chance.choice(methods),
                path=lambda: self.chance.choice(("/mcp", "/mcp", "/v1", *PATHS)),
                host=lambda: self.chance.choice(HOSTS),
                headers=lambda: self.chance.choice(HEADERS),
            )
        references = [
            f"{policy['kind']}/{policy['metadata']['namespace']}/{policy['metadata']['name']}"
            for policy in self.policies
        ]
        answers = {policy: self.chance.choice(("Allow", "Allow", "Deny")) for policy in references if self.likely(75)}
        return asked | self.optional(80, externalAuth=lambda: answers)


def named(rules: list[Object]) -> list[Object]:
    return [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]


def place(version: str, kind: str, namespace: str, name: str, spec: Object) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def snapshot(objects: list[Object]) -> Snapshot:
    return Snapshot.of(load_objects(objects))


seeds = st.integers(0, 2**48)
