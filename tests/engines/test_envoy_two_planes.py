"""Settings of the gateway plane in front of policies on tools: what either plane refuses stays refused.

One route for each setting, under policies of each kind; the servers record every byte that reaches them.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice, product
from typing import Any, NamedTuple

import pytest

from tests.engines.test_envoy_settings import jwt, rules, sha, token
from tests.engines.test_envoy_settings_choices import listed
from tests.labs.envoy_lab import Lab, lab
from tests.labs.envoy_services import LIMIT, EnvoyServices
from tests.labs.joined_servers import agentgateway
from tests.labs.settings_lab import EchoBackend
from tests.labs.waiting import HeldPort, eventually
from tests.worlds.gateway_settings import Object, secret, service
from tests.worlds.tool_objects import GATEWAY_API, calls, cel, manifest, mcp, on_backend, on_gateway, v1
from tierwall.engines.envoy.config.options import SocketAddress

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]


class Setting(NamedTuple):
    """A setting, what a request needs to pass it, and what makes it refuse a request, if anything does.

    `backend` and `filters` are settings of the backend section and of the rule itself.
    """

    traffic: Object = {}
    passes: dict[str, str] = {}
    refuses: dict[str, str] | None = None
    before: int = 0
    backend: Object = {}
    filters: tuple[Object, ...] = ()


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


def rewritten(**value: Any) -> tuple[Object, ...]:
    return ({"type": "URLRewrite", "urlRewrite": value},)


_MIRROR: Object = {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "copies", "port": 80}}}
_FULL_PATH: Object = {"type": "ReplaceFullPath", "replaceFullPath": "/new"}
_PREFIX: Object = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
_DELAY: Object = {"delay": {"duration": "30ms"}}


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
    # What a service makes of a message is judged behind it.
    "processing-swap": Setting({"extProc": _SERVICE}, {}, {"x_swap": "fine secret"}),
    "processing-held-swap": Setting(_modes("Buffered"), {"x_held": "1"}, {"x_swap": "fine secret"}),
    "processing-named": Setting({"extProc": _SERVICE}, {}, {"x_put": "mcp-name secret"}),
    "processing-typed": Setting({"extProc": _SERVICE}, {}, {"x_put": "content-type text/plain"}),
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
    "waiting": Setting(_DELAY),
    "waiting-asked": Setting({**_DELAY, "extAuth": _FORWARDING}, _OK, _DENY, backend={"extAuth": _FORWARDING}),
    "backend-guard": Setting(passes=_OK, refuses=_DENY, backend={"extAuth": _GUARD}),
    "backend-guard-body": Setting({"extProc": _SERVICE}, _OK, _DENY, backend={"extAuth": _FORWARDING}),
    "mirrored": Setting(filters=(_MIRROR,)),
    "mirrored-guard": Setting({"extAuth": _GUARD}, _OK, _DENY, filters=(_MIRROR,)),
    "mirrored-swap": Setting({"extProc": _SERVICE}, {}, {"x_swap": "fine secret"}, filters=(_MIRROR,)),
    "rewritten": Setting(filters=rewritten(hostname="new.example", path=_FULL_PATH)),
    "rewritten-prefix": Setting({"extAuth": _GUARD}, _OK, _DENY, filters=rewritten(path=_PREFIX)),
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
    yield from (secret("keys", None, first="k1"), *map(service, ("guard", "services", "copies", "open")))
    yield from surroundings()
    spec: Object = {"mcp": {"serviceName": "s", "port": 80, "path": "/mcp"}}
    yield manifest("agentic.networking.x-k8s.io/v0alpha0", "XBackend", "one", spec, "shop")
    targets = [{"name": name, "static": {"host": f"{name}.example", "port": 80, "path": "/mcp"}} for name in ("a", "b")]
    if kind != "rules":
        yield {**POLICIES[kind], "metadata": {"name": "p", "namespace": "shop"}}
    judged = {"policies": {"mcp": {"authorization": rules("mcp.tool.name == 'fine'")}}} if kind == "rules" else {}
    yield agentgateway("AgentgatewayBackend", "joined", {"mcp": {"targets": targets}, **judged})
    for backend in served(kind):
        ways: list[Object] = [
            {
                "name": name,
                "matches": [{"path": {"value": f"/{backend}/{name}"}}],
                "backendRefs": [BACKENDS[backend]],
                "filters": list(setting.filters),
            }
            for name, setting in SETTINGS.items()
        ]
        # A route has at most 16 rules.
        for first in range(0, len(ways), 12):
            spec = {"parentRefs": PARENTS, "rules": ways[first : first + 12]}
            name = f"{backend}-{first}"
            yield manifest("gateway.networking.k8s.io/v1", "HTTPRoute", name, spec, "shop")
            ref = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name}
            for way in ways[first : first + 12]:
                setting = SETTINGS[way["name"]]
                sections = {"traffic": setting.traffic, "backend": setting.backend}
                if targeted := {name: value for name, value in sections.items() if value}:
                    refs = [{**ref, "sectionName": way["name"]}]
                    yield agentgateway(
                        "AgentgatewayPolicy", f"{backend}-{way['name']}", {**targeted, "targetRefs": refs}
                    )


PARENTS = [{"name": "agents"}, {"group": GATEWAY_API, "kind": "ListenerSet", "name": "more"}]
# Before routing, a request may be changed so that another route would match it: one past every policy on a backend.
_EARLY: Object = {
    "extProc": listed(("'x-early' in request.headers", _modes("None")["extProc"])),
    "transformation": {"request": {"set": [{"name": "x-way", "value": "request.headers['x-lead']"}]}},
    "authorization": rules("'x-early-bad' in request.headers", action="Deny"),
}
REFUSED_EVERYWHERE = ({"x_early_bad": "1"}, {"x_gate_bad": "1"}, {"x_set_bad": "1", "plain": "1"})


def surroundings() -> Iterator[Object]:
    """A ListenerSet, a route to a Service without policies, and settings for the whole Gateway and the ListenerSet."""
    listeners = [{"name": "plain", "port": 8080, "protocol": "HTTP"}]
    spec: Object = {"parentRef": {"name": "agents"}, "listeners": listeners}
    yield manifest(f"{GATEWAY_API}/v1", "ListenerSet", "more", spec, "shop")
    to_open = [{"name": "open", "port": 80}]
    ways = [{"matches": [{"path": {"value": "/open"}}], "backendRefs": to_open}]
    for backend, name in product(BACKENDS, SETTINGS):
        path = {"path": {"value": f"/{backend}/{name}"}}
        ways.append({"matches": [{**path, "headers": [{"name": "x-way", "value": "open"}]}], "backendRefs": to_open})
    for first in range(0, len(ways), 16):
        spec = {"parentRefs": PARENTS, "rules": ways[first : first + 16]}
        yield manifest(f"{GATEWAY_API}/v1", "HTTPRoute", f"open-{first}", spec, "shop")
    for name, target, traffic in (
        ("early", on_gateway("agents"), {"phase": "PreRouting", **_EARLY}),
        ("late", on_gateway("agents"), {"authorization": rules("'x-gate-bad' in request.headers", action="Deny")}),
        ("set", PARENTS[1], {"authorization": rules("'x-set-bad' in request.headers", action="Deny")}),
    ):
        yield agentgateway("AgentgatewayPolicy", name, {"targetRefs": [target], "traffic": traffic})


def served(kind: str) -> tuple[str, ...]:
    return {"inline": ("one", "joined"), "rules": ("joined",)}.get(kind, ("one",))


class World:
    """The running Envoy, with what is behind it."""

    def __init__(self, running: Lab, server: EchoBackend, copies: EchoBackend, bare: EchoBackend, plain: int) -> None:
        self.lab, self.server, self.copies, self.bare = running, server, copies, bare
        context = running.context("shopper")
        self._secure = http.client.HTTPSConnection("localhost", running.port, context=context, timeout=10)
        self._plain = http.client.HTTPConnection("localhost", plain, timeout=10)
        self._number = 0

    def reaching(self, path: str, *pieces: bytes, **given: str) -> list[bytes]:
        """Send a body in pieces; return the bodies that reach the servers."""
        self.server.bodies.clear()
        self.server.headers.clear()
        self.send(path, *pieces, **given)
        return list(self.server.bodies)

    def send(self, path: str, *pieces: bytes, **given: str) -> int:
        """Send a body in pieces; return the status, or 0 without an answer. `plain` is for the ListenerSet."""
        self._number += 1
        connection = self._plain if given.pop("plain", "") else self._secure
        port = str(connection.port)
        heads = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        heads |= {
            name.replace("_", "-"): text.replace("NUMBER", str(self._number)).replace("PORT", port)
            for name, text in given.items()
        }
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
                    time.sleep(0.005)
                connection.send(b"0\r\n\r\n")
            with connection.getresponse() as answer:
                answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            connection.close()
            return 0

    def has_copies(self, number: int) -> bool:
        return len(self.copies.bodies) >= number

    def close(self) -> None:
        self._secure.close()
        self._plain.close()


@pytest.fixture(scope="module")
def world(needs_envoy: None) -> Iterator[World]:
    with ExitStack() as running:
        services = running.enter_context(closing(EnvoyServices()))
        server, guard, copies, bare = (running.enter_context(closing(EchoBackend())) for _ in range(4))
        plain = running.enter_context(closing(HeldPort())).number
        guard.refused |= {"/deny/open", *(f"/deny/one/{name}" for name in SETTINGS)}
        addresses = {"Service/shop/services": services.address, "Service/shop/guard": guard.address}
        addresses |= {"Service/shop/copies": copies.address, "Service/shop/open": bare.address}
        addresses |= {f"AgentgatewayBackend/shop/joined/{name}": server.address for name in ("a", "b")}
        made = running.enter_context(
            lab(
                {"shop/agents:8080": SocketAddress("127.0.0.1", plain)},
                endpoints={**addresses, "XBackend/shop/one": server.address},
            )
        )
        (edge,) = (each for each in made.fixed if each["kind"] == "Gateway")
        edge["spec"]["allowedListeners"] = {"namespaces": {"from": "Same"}}
        yield running.enter_context(closing(World(made, server, copies, bare, plain)))


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


# What a service may say that concerns no message, or is not so.
UNTRUE = ("content-length 5", "transfer-encoding identity", "connection upgrade", "x-forwarded-client-cert URI=other")
LED = ({"x_lead": "open"}, {"x_early": "1", "x_lead_to": "/open"})


@pytest.mark.parametrize("kind", POLICIES)
def test_what_either_plane_refuses_stays_refused(world: World, kind: str) -> None:
    world.lab.publish(list(objects(kind)))
    world.lab.programmed()
    wrong: list[object] = []
    for backend, (name, setting) in product(served(kind), SETTINGS.items()):
        if kind == "asked" and not setting.backend and not setting.traffic.keys() & {"extAuth", "extProc", "rateLimit"}:
            continue  # Nothing but the policy waits for a service.
        before = "a_" if backend == "joined" else ""
        path, fine = f"/{backend}/{name}", call(f"{before}fine", "x" * 500)
        passing = {key: text.replace("KIND", f"{kind}-{name}") for key, text in setting.passes.items()}
        world.copies.bodies.clear()
        # All attacks for the policies that read most; Envoy reads messages for the others in the same way.
        count = None if kind == "inline" and (not before or name in ("none", "all", "waiting")) else 3
        for number, pieces in enumerate(islice(attacks(before), count)):
            if any(b"secret" in body for body in world.reaching(path, *pieces, **passing)):
                wrong.append((path, "open to attack", number))
        # Copies and another host close servers that are joined.
        closed = name in ANSWERED or (before and (_MIRROR in setting.filters or name == "rewritten"))
        reached = [] if closed else [fine.replace(before.encode(), b"", 1) if before else fine]
        came = [world.reaching(path, *pieces, **passing) for pieces in ((fine,), in_pieces(fine))]
        for led in LED if kind != "asked" else ():
            bad = world.reaching(path, call(f"{before}secret"), **passing, **led)
            wrong += [(path, "led past policies", led, bad)] if bad else []
            # Where Envoy looks the route up again, what would match another one goes nowhere.
            went = world.reaching(path, fine, **passing, **led)
            came += [went] if went or not before else []
        if kind == "inline":
            came.append(world.reaching(path, fine, **passing, plain="1"))
        for untrue in UNTRUE if "extProc" in setting.traffic and kind == "inline" else ():
            came.append(world.reaching(path, fine, **passing, x_put=untrue))
            wrong += (
                [(path, untrue)] if any(untrue in map(" ".join, each.items()) for each in world.server.headers) else []
            )
        wrong += [(path, "of what is allowed came", each) for each in came if each != reached]
        if setting.refuses is not None:
            given = {**passing, **setting.refuses} if setting.refuses else {}
            for _ in range(setting.before):
                world.send(path, fine, **given)
            refused = [world.reaching(path, *pieces, **given) for pieces in ((fine,), in_pieces(fine))]
            wrong += [(path, "passed", given) for each in refused if each]
        for more in REFUSED_EVERYWHERE if kind == "inline" else ():
            wrong += [(path, "passed", more)] if world.reaching(path, fine, **passing, **more) else []
        copied = came.count(reached) if _MIRROR in setting.filters and reached else 0
        eventually(partial(world.has_copies, copied), "copies of all that is allowed")
        wrong += [(path, "copied", each) for each in world.copies.bodies if each != fine]
        wrong += [(path, "copies", len(world.copies.bodies))] if len(world.copies.bodies) != copied else []
    assert wrong == [], "\n".join(map(str, wrong))
    assert world.bare.bodies == []


def test_the_message_that_a_service_makes_is_the_one_that_is_judged(world: World) -> None:
    world.lab.publish(list(objects("inline")))
    world.lab.programmed()
    for name in ("processing", "processing-chosen", "mirrored-swap"):
        came = world.reaching(f"/one/{name}", call("secret"), x_swap="secret fine")
        assert came == [call("fine")], name
    assert world.bare.bodies == []
    # The route past the policies of a backend is there.
    world.lab.publish(list(objects("cel")))
    world.lab.programmed()
    world.send("/one/none", call("secret"), x_way="open")
    assert world.bare.bodies == [call("secret")]
    world.bare.bodies.clear()
