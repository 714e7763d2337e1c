"""Settings of the gateway plane in front of policies on tools: what either plane refuses stays refused.

One route for each setting, under policies of each kind; the servers record every byte that reaches them.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice, product
from typing import NamedTuple

import pytest

from tests.engines.test_envoy_settings import jwt, rules, sha, token
from tests.engines.test_envoy_settings_choices import listed
from tests.labs.envoy_lab import Lab, lab
from tests.labs.envoy_services import LIMIT, EnvoyServices
from tests.labs.joined_servers import agentgateway
from tests.labs.settings_lab import EchoBackend
from tests.worlds.gateway_settings import Object, secret, service
from tests.worlds.tool_objects import calls, cel, manifest, mcp, on_backend, on_gateway, v1

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]


class Setting(NamedTuple):
    """A setting, what a request needs to pass it, and what makes it refuse a request, if anything does."""

    traffic: Object
    passes: dict[str, str] = {}
    refuses: dict[str, str] | None = None
    before: int = 0


def chosen(value: Object) -> Object:
    return listed(("'x-none' in request.headers", value), ("request.path.startsWith('/')", value))


_GUARD: Object = {"backendRef": {"name": "guard", "port": 80}, "http": {"path": "'/'"}}
_FORWARDING: Object = {**_GUARD, "forwardBody": {"maxSize": 10_000}}
_SERVICE: Object = {"backendRef": {"name": "services", "port": 80}}
_OK: dict[str, str] = {}
_DENY = {"x_status": "403"}
_BLOCK = {"x_block": "1"}
_QUOTA: Object = {
    "global": {
        **_SERVICE,
        "domain": "d",
        "descriptors": [
            {
                "entries": [
                    {"name": "n", "expression": "request.headers['x-who']"},
                    {"name": "p", "expression": "request.path"},
                ]
            }
        ],
    }
}


_LIMIT: Object = {"local": [{"requests": 99, "unit": "Hours"}]}
_FACTS = [
    {"name": f"x-tierwall-{name}", "value": f"'{value}'"} for name, value in (("name", "fine"), ("method", "ping"))
]
ANSWERED = {"answer", "answer-limited", "answer-chosen"}


def _modes(mode: str) -> Object:
    return {"extProc": {**_SERVICE, "processingOptions": {"requestBodyMode": mode, "responseBodyMode": "None"}}}


SETTINGS = {
    "none": Setting({}),
    "token": Setting({"jwtAuthentication": jwt()}, {"authorization": token()}, {}),
    "password": Setting(
        {"basicAuthentication": {"users": [sha("ann", "secret")]}}, {"authorization": "Basic YW5uOnNlY3JldA=="}, {}
    ),
    "key": Setting({"apiKeyAuthentication": {"secretRef": {"name": "keys"}}}, {"authorization": "Bearer k1"}, {}),
    "rule": Setting({"authorization": rules("'x-bad' in request.headers", action="Deny")}, {}, {"x_bad": "1"}),
    "guard": Setting({"extAuth": _GUARD}, _OK, _DENY),
    "guard-body": Setting({"extAuth": _FORWARDING}, _OK, _DENY),
    "guard-chosen": Setting({"extAuth": chosen(_FORWARDING)}, _OK, _DENY),
    "processing": Setting({"extProc": _SERVICE}, {}, _BLOCK),
    "processing-held": Setting(_modes("Buffered"), {"x_held": "1"}, _BLOCK),
    "processing-part": Setting(_modes("BufferedPartial"), {"x_held": "1"}, _BLOCK),
    "processing-heads": Setting(_modes("None"), {}, _BLOCK),
    "processing-chosen": Setting({"extProc": chosen(_SERVICE)}, {}, _BLOCK),
    "count": Setting({"rateLimit": _QUOTA}, {"x_who": "KIND-NUMBER"}, {"x_who": "one"}, LIMIT),
    "size": Setting({"buffer": {"request": {"maxBytes": 10_000}}}),
    "all": Setting(
        {"extAuth": _FORWARDING, "rateLimit": _QUOTA, "buffer": {"request": {"maxBytes": 10_000}}, "extProc": _SERVICE},
        {**_OK, "x_who": "KIND-NUMBER"},
        {**_DENY, "x_who": "KIND-NUMBER"},
    ),
    "csrf": Setting({"csrf": {}}, {"origin": "https://localhost:PORT"}, {"origin": "https://evil.example"}),
    "pages": Setting({"cors": {"allowOrigins": ["*"]}}),
    "answer": Setting({"directResponse": {"status": 203}}, {}, {}),
    "answer-limited": Setting({"directResponse": {"status": 203}, "rateLimit": _LIMIT}, {}, {}),
    "answer-chosen": Setting({"directResponse": chosen({"status": 203})}, {}, {}),
    "transformed": Setting({"transformation": {"request": {"set": _FACTS}}}),
    "repeated": Setting({"retry": {"attempts": 2, "codes": [403, 503, 400]}, "timeouts": {"request": "5s"}}),
}
BACKENDS = {"one": {"group": "agentic.networking.x-k8s.io", "kind": "XBackend", "name": "one"}}
BACKENDS["joined"] = {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "joined"}
POLICIES: dict[str, Object] = {
    "inline": v1("p", on_gateway("agents"), {"authorization": mcp(calls("fine"))}),
    "cel": v1("p", on_backend("one"), {"authorization": cel("request.mcp.tool_name == 'fine'")}),
    "asked": v1(
        "p",
        on_backend("one"),
        {"authorization": mcp(calls("secret"))},
        action="ExternalAuth",
        externalAuth={"protocol": "HTTP", "http": {"path": "/deny"}, "backendRef": {"name": "guard", "port": 80}},
    ),
    "rules": agentgateway("AgentgatewayPolicy", "p", {}),
}


def objects(kind: str) -> Iterator[Object]:
    """A route for each setting to a server of MCP, and to servers that are joined, under a policy of this kind."""
    yield from (secret("keys", None, first="k1"), *map(service, ("guard", "services")))
    spec: Object = {"mcp": {"serviceName": "s", "port": 80, "path": "/mcp"}}
    yield manifest("agentic.networking.x-k8s.io/v0alpha0", "XBackend", "one", spec, "shop")
    targets = [{"name": name, "static": {"host": f"{name}.example", "port": 80, "path": "/mcp"}} for name in ("a", "b")]
    if kind != "rules":
        yield {**POLICIES[kind], "metadata": {"name": "p", "namespace": "shop"}}
    judged = {"policies": {"mcp": {"authorization": rules("mcp.tool.name == 'fine'")}}} if kind == "rules" else {}
    yield agentgateway("AgentgatewayBackend", "joined", {"mcp": {"targets": targets}, **judged})
    for backend in served(kind):
        ways: list[Object] = [
            {"name": name, "matches": [{"path": {"value": f"/{backend}/{name}"}}], "backendRefs": [BACKENDS[backend]]}
            for name in SETTINGS
        ]
        # A route has at most 16 rules.
        for first in range(0, len(ways), 12):
            spec = {"parentRefs": [{"name": "agents"}], "rules": ways[first : first + 12]}
            name = f"{backend}-{first}"
            yield manifest("gateway.networking.k8s.io/v1", "HTTPRoute", name, spec, "shop")
            ref = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name}
            for way in ways[first : first + 12]:
                if traffic := SETTINGS[way["name"]].traffic:
                    targeted = {"targetRefs": [{**ref, "sectionName": way["name"]}], "traffic": traffic}
                    yield agentgateway("AgentgatewayPolicy", f"{backend}-{way['name']}", targeted)


def served(kind: str) -> tuple[str, ...]:
    return {"inline": ("one", "joined"), "rules": ("joined",)}.get(kind, ("one",))


class World:
    """The running Envoy, with what is behind it."""

    def __init__(self, running: Lab, server: EchoBackend, guard: EchoBackend) -> None:
        self.lab, self.server, self.guard = running, server, guard
        self._context = running.context("shopper")
        self._number = 0

    def reaching(self, path: str, *pieces: bytes, **given: str) -> list[bytes]:
        """Send a body in pieces; return the bodies that reach the servers."""
        self.server.bodies.clear()
        self.send(path, *pieces, **given)
        return list(self.server.bodies)

    def send(self, path: str, *pieces: bytes, **given: str) -> int:
        """Send a body in pieces; return the status, or 0 without an answer."""
        self._number += 1
        connection = http.client.HTTPSConnection("localhost", self.lab.port, context=self._context, timeout=10)
        heads = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        heads |= {
            name.replace("_", "-"): text.replace("NUMBER", str(self._number)).replace("PORT", str(self.lab.port))
            for name, text in given.items()
        }
        with closing(connection):
            try:
                if len(pieces) == 1:
                    connection.request("POST", path, pieces[0], heads)
                else:
                    connection.putrequest("POST", path)
                    for name, text in {**heads, "transfer-encoding": "chunked"}.items():
                        connection.putheader(name, text)
                    connection.endheaders()
                    for piece in pieces:
                        connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                        time.sleep(0.01)
                    connection.send(b"0\r\n\r\n")
                return connection.getresponse().status
            except (OSError, http.client.HTTPException):
                return 0


@pytest.fixture(scope="module")
def world(needs_envoy: None) -> Iterator[World]:
    with ExitStack() as running:
        services = running.enter_context(closing(EnvoyServices()))
        server, guard = (running.enter_context(closing(EchoBackend())) for _ in range(2))
        guard.refused |= {f"/deny/one/{name}" for name in SETTINGS}
        addresses = {"Service/shop/services": services.address, "Service/shop/guard": guard.address}
        addresses |= {f"AgentgatewayBackend/shop/joined/{name}": server.address for name in ("a", "b")}
        made = running.enter_context(lab(endpoints={**addresses, "XBackend/shop/one": server.address}))
        yield World(made, server, guard)


def call(tool: str, more: str = "") -> bytes:
    head = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"fill":"'
    return f'{head}{more}"}},"name":"{tool}"}}}}'.encode()


def in_pieces(message: bytes) -> tuple[bytes, ...]:
    return message[:20], message[20:-30], message[-30:]


def attacks(before: str) -> Iterator[tuple[bytes, ...]]:
    """Bodies with a denied tool, as pieces: plain ones, and ones of which a part is a message that is allowed."""
    fine, bad = call(f"{before}fine"), call(f"{before}secret", "x" * 500)
    yield (bad,)
    yield in_pieces(bad)
    yield bad[:-1], bad[-1:]
    yield fine, bad
    yield (fine + b"\n" + bad,)
    yield fine[:-2] + b',"name":"', f'{before}secret"}}}}'.encode()
    yield (call(f"{before}secret", "x" * 90_000),)
    yield call(f"{before}fine", "x" * 70_000), bad


@pytest.mark.parametrize("kind", POLICIES)
def test_what_either_plane_refuses_stays_refused(world: World, kind: str) -> None:
    world.lab.publish(list(objects(kind)))
    world.lab.programmed()
    wrong: list[object] = []
    for backend, (name, setting) in product(served(kind), SETTINGS.items()):
        before = "a_" if backend == "joined" else ""
        path, fine = f"/{backend}/{name}", call(f"{before}fine", "x" * 500)
        passing = {key: text.replace("KIND", f"{kind}-{name}") for key, text in setting.passes.items()}
        # All attacks for the policies that read most; Envoy reads messages for the others in the same way.
        for number, pieces in enumerate(islice(attacks(before), None if kind == "inline" else 3)):
            if any(b"secret" in body for body in world.reaching(path, *pieces, **passing)):
                wrong.append((path, "open to attack", number))
        reached = [] if name in ANSWERED else [fine.replace(before.encode(), b"", 1) if before else fine]
        came = [world.reaching(path, *pieces, **passing) for pieces in ((fine,), in_pieces(fine))]
        wrong += [(path, "of what is allowed came", each) for each in came if each != reached]
        if setting.refuses is None:
            continue
        given = {**passing, **setting.refuses} if setting.refuses else {}
        for _ in range(setting.before):
            world.send(path, fine, **given)
        wrong += [(path, "passed") for pieces in ((fine,), in_pieces(fine)) if world.reaching(path, *pieces, **given)]
    assert wrong == [], "\n".join(map(str, wrong))
