"""Routes with a running Envoy beyond matches and filters of rules: gRPC, retries, copies, filters of backendRefs.

What Envoy is not given answers 500, with a diagnostic that says what to write instead.
"""

from __future__ import annotations

import json
import ssl
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from examples.agents import certificates
from tests.labs.envoy_attacks import GATEWAY_API, NETWORKING, Object, behind, call, calls, policy
from tests.labs.envoy_routes import Routed, route, to
from tests.labs.loopback_server import LoopbackServer, QuietHandler
from tests.labs.waiting import PATIENCE_S, eventually
from tests.worlds.tool_objects import manifest
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config import clusters
from tierwall.engines.envoy.config.options import SocketAddress
from tierwall.engines.envoy.probe.client import CertificateAuthority

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]

MCP_HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def at(path: str, **more: Any) -> Object:
    """Return a rule for a path, to the first Service if `more` has no others."""
    return {"matches": [{"path": {"value": path}}], "backendRefs": to("v1"), **more}


def changes(kind: str, **value: Any) -> Object:
    return {"type": f"{kind}HeaderModifier", f"{kind.lower()}HeaderModifier": value}


def header(name: str, value: str) -> list[Object]:
    return [{"name": name, "value": value}]


def path_filter(kind: str, change: str, path: str) -> Object:
    field = f"{kind[0].lower()}{kind[1:]}".replace("uRL", "url")
    return {"type": kind, field: {"path": {"type": change, f"r{change[1:]}": path}}}


def mirror(name: str, **more: Any) -> Object:
    to_there = {"name": name, "port": 80} if name.startswith("v") else xbackend(name)
    return {"type": "RequestMirror", "requestMirror": {"backendRef": to_there, **more}}


def xbackend(name: str) -> Object:
    return {"group": NETWORKING, "kind": "XBackend", "name": name}


class Unsteady(LoopbackServer):
    """A server that answers with the codes it is told, one for each request, and then with 200."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.asked = 0
        self.hosts: list[str | None] = []
        unsteady = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                unsteady.asked += 1
                unsteady.hosts.append(self.headers["host"])
                self.send_response(unsteady.codes.pop(0) if unsteady.codes else 200)
                self.send_header("content-length", "0")
                self.end_headers()

        super().__init__(Handler)


class Greeter:
    """A gRPC server that answers every method with its name and the request's header `x-said`."""

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((self,))
        self.address = SocketAddress("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def service(self, details: Any) -> Any:
        said = dict(details.invocation_metadata).get("x-said", "")
        return grpc.unary_unary_rpc_method_handler(lambda request, context: f"{details.method} {said}".encode())

    def close(self) -> None:
        self._server.stop(0).wait(PATIENCE_S)


def grpc_route(name: str, host: str, rules: list[Object], created: int = 1) -> Object:
    out = route(name, host, rules, created=created)
    return {**out, "kind": "GRPCRoute"}


def greet(running: Routed, host: str, method: str, **metadata: str) -> str:
    """Call a method; return its answer, or the status."""
    options = [("grpc.default_authority", host)]
    with grpc.insecure_channel(f"127.0.0.1:{running.ports['web']}", options) as channel:
        try:
            return str(channel.unary_unary(method)(b"", PATIENCE_S, tuple(metadata.items())).decode())
        except grpc.RpcError as error:
            code: Any = error
            return str(code.code().name)


ONLY_SHOP = {"method": {"service": "shop.Orders"}}
GRPC_RULES: list[Object] = [
    {"matches": [ONLY_SHOP], "backendRefs": to("v3"), "filters": [changes("Request", set=header("x-said", "service"))]},
    {
        "matches": [{"method": {"service": "shop.Orders", "method": "Get"}}],
        "backendRefs": to("v3"),
        "filters": [changes("Request", set=header("x-said", "exact"))],
    },
    {
        "matches": [{"method": {"method": "Get"}}],
        "backendRefs": to("v3"),
        "filters": [changes("Request", set=header("x-said", "method"))],
    },
    {
        "matches": [{"method": {"type": "RegularExpression", "service": "a[.]B+", "method": "D.*"}}],
        "backendRefs": to("v3"),
        "filters": [changes("Request", set=header("x-said", "pattern"))],
    },
    {
        "matches": [{**ONLY_SHOP, "headers": header("x-who", "me")}],
        "backendRefs": to("v3"),
        "filters": [changes("Request", set=header("x-said", "header"))],
    },
]


def objects() -> list[Object]:
    """Return routes for every test below that can share an Envoy."""
    retry = {"codes": [503], "attempts": 2, "backoff": "1ms"}
    set_a = [changes("Request", set=header("x-who", "rule"), add=header("x-all", "rule"))]
    of_backends = {
        "set": [changes("Request", set=header("x-who", "backend"), add=header("x-all", "backend"))],
        "remove": [changes("Request", remove=["X-Who"]), changes("Response", set=header("x-answer", "backend"))],
        "host": [{"type": "URLRewrite", "urlRewrite": {"hostname": "inside.test"}}],
    }
    single = [
        at(f"/one-{name}", backendRefs=[{**to("v1")[0], "filters": of_backends[name]}], filters=set_a)
        for name in of_backends
    ]
    both = [
        at(
            "/both",
            backendRefs=[
                {**to("v1")[0], "filters": of_backends["set"]},
                {**to("v2")[0], "filters": of_backends["remove"]},
            ],
            filters=set_a,
        )
    ]
    path = {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/x"}}}
    unsendable = [
        at("/full", filters=[path_filter("URLRewrite", "ReplaceFullPath", "/x HTTP/1.1\r\nx-who: admin\r\ny: ")]),
        at("/prefix", filters=[path_filter("URLRewrite", "ReplacePrefixMatch", "/x#")]),
        at("/space", filters=[path_filter("URLRewrite", "ReplacePrefixMatch", "/x HTTP/1.1")]),
        *(
            {"matches": [{"path": {"value": f"/to-{kind}"}}], "filters": [path_filter("RequestRedirect", kind, "/\n")]}
            for kind in ("ReplaceFullPath", "ReplacePrefixMatch")
        ),
        at("/sent", filters=[path_filter("URLRewrite", "ReplacePrefixMatch", "/x%20/é;a=b")]),
    ]
    mixed = at("/mixed", backendRefs=[{**to("v1")[0], "filters": [path]}, *to("v2")])
    guarded = [behind(name)[0] for name in ("guarded", "unguarded")]
    copies = [
        at("/copied", filters=[mirror("v2")]),
        at("/rarely", filters=[mirror("v2", percent=0)]),
        at("/twice", filters=[mirror("v2"), mirror("v3", fraction={"numerator": 3, "denominator": 3})]),
        at("/gone", filters=[mirror("void")]),
        at("/past", filters=[mirror("guarded")]),
        *(
            at(path, backendRefs=[{**xbackend("guarded"), **more}], filters=filters)
            for path, filters, more in (
                ("/encoded", [changes("Request", set=header("Content-Encoding", "gzip"))], {}),
                ("/charset", [], {"filters": [changes("Request", add=header("content-type", "a/b; Charset=utf-7"))]}),
                ("/typed", [changes("Request", set=header("Content-Type", "application/json;charset=UTF-8"))], {}),
            )
        ),
        # A copy that passes the same policies on its way may be made.
        at("/same", backendRefs=[xbackend("guarded")], filters=[mirror("guarded")]),
        at("/less", backendRefs=[xbackend("guarded")], filters=[mirror("v3")]),
    ]
    listener_set = manifest(
        f"{GATEWAY_API}/v1",
        "ListenerSet",
        "more",
        {
            "parentRef": {"name": "gate"},
            "listeners": [{"name": "added", "port": 80, "protocol": "HTTP", "hostname": "added.test"}],
        },
    )
    on_set = route("on-set", "added.test", [at("/")])
    on_set["spec"]["parentRefs"] = [{"kind": "ListenerSet", "name": "more"}]
    return [
        *guarded,
        policy("guarded", "guarded", [calls("add")]),
        listener_set,
        on_set,
        route("retried", "retry.test", [at("/yes", retry=retry), at("/no"), at("/none", retry={"attempts": 0})]),
        route("own", "own.test", [*single, *both, mixed]),
        route("copied", "copy.test", copies),
        route("unsendable", "unsendable.test", unsendable),
        grpc_route("greeter", "grpc.test", GRPC_RULES),
        # The younger of two routes of different kinds for one host name is not served there.
        route("late", "grpc.test", [at("/late")], created=2),
        route("early", "early.test", [at("/")]),
        grpc_route("behind", "early.test", [{"backendRefs": to("v3")}], created=2),
        grpc_route("guarded", "guarded.test", [{"backendRefs": [xbackend("guarded")]}]),
    ]


@pytest.fixture(scope="module")
def greeter() -> Iterator[Greeter]:
    server = Greeter()
    yield server
    server.close()


@pytest.fixture(scope="module")
def routed(greeter: Greeter) -> Iterator[Routed]:
    running = Routed(objects(), {"Service/prod/v3": greeter.address})
    yield running
    running.close()


def about(running: Routed, name: str) -> list[Diagnostic]:
    return [problem for problem in running.resources.diagnostics if str(problem.reference).endswith(f"/{name}")]


# ---- Filters of single backendRefs


def test_filters_of_a_backend_follow_those_of_the_rule(routed: Routed) -> None:
    got = routed.get("own.test", "/one-set").request
    assert got is not None
    assert (got.headers["x-who"], got.headers["x-all"], got.headers["host"]) == ("backend", "backend", "own.test")
    removed = routed.get("own.test", "/one-remove", {"X-Who": "client"})
    assert removed.request is not None
    assert "x-who" not in removed.request.headers
    assert (removed.request.headers["x-all"], removed.headers["x-answer"]) == ("rule", "backend")
    host = routed.get("own.test", "/one-host").request
    assert host is not None
    assert (host.headers["host"], host.headers["x-who"]) == ("inside.test", "rule")


def test_filters_of_a_backend_are_for_its_share_alone(routed: Routed) -> None:
    seen = {}
    for _ in range(30):
        got = routed.get("own.test", "/both")
        assert got.request is not None
        seen[got.backend] = got.request.headers.get("x-who"), got.headers.get("x-answer")
    assert seen == {"v1": ("backend", None), "v2": (None, "backend")}


def test_a_filter_that_a_share_cannot_have_closes_that_share(routed: Routed) -> None:
    seen = {(got.status, got.backend) for got in (routed.get("own.test", "/mixed") for _ in range(30))}
    assert {backend for _, backend in seen} == {None, "v2"}
    assert all(status >= 500 for status, backend in seen if backend is None)
    (problem,) = about(routed, "own")
    assert (problem.code, problem.message.partition(":")[0]) == (
        "TW655",
        "filter URLRewrite of a backendRef is not supported",
    )
    assert "`filters` of the rule" in problem.hint


# ---- Copies


def test_copies_reach_the_second_backend_as_the_request_came(routed: Routed) -> None:
    copies = routed.recorders["v2"].requests
    before = len(copies)
    body = json.dumps(call("add")).encode()
    status, _ = routed.send("copy.test", "/copied", {**MCP_HEADERS, "x-tierwall-name": "forged"}, "POST", body=body)
    assert status == 200
    eventually(lambda: len(copies) > before, "a copy")
    assert (copies[-1].method, copies[-1].path, copies[-1].body) == ("POST", "/copied", body)
    assert copies[-1].headers["host"] == "copy.test"
    assert not [name for name in copies[-1].headers if name.startswith("x-tierwall")]


def test_shares_of_copies(routed: Routed) -> None:
    before = len(routed.recorders["v2"].requests)
    for _ in range(20):
        assert routed.get("copy.test", "/rarely").backend == "v1"
    assert len(routed.recorders["v2"].requests) == before
    third = len(routed.recorders["v1"].requests)
    assert routed.send("copy.test", "/twice")[0] == 200
    eventually(lambda: len(routed.recorders["v2"].requests) == before + 1, "a copy of every request")
    assert len(routed.recorders["v1"].requests) == third + 1


def test_a_copy_that_leads_nowhere_is_not_made(routed: Routed) -> None:
    assert routed.get("copy.test", "/gone").backend == "v1"
    assert [problem.code for problem in about(routed, "copied") if "are not made" in problem.message] == ["TW656"]


def test_no_copy_goes_past_a_policy(routed: Routed) -> None:
    before = len(routed.recorders["v1"].requests)
    for method, body in (("GET", b""), ("POST", json.dumps(call("add")).encode())):
        got = routed.get("copy.test", "/past", MCP_HEADERS, method, body=body)
        assert (got.status, got.backend) == (500, None)
    assert len(routed.recorders["v1"].requests) == before
    problem = next(problem for problem in about(routed, "copied") if problem.code == "TW655")
    assert "past that backend's policies" in problem.message
    assert "on the Gateway" in problem.hint


def test_no_route_says_that_a_judged_message_is_another_one(routed: Routed) -> None:
    """A server would unpack it, or read `+ACI-` as a quotation mark, and find another tool than was judged."""
    body = json.dumps(call("add")).encode()
    for path, status in (("/encoded", 500), ("/charset", 500), ("/typed", 200)):
        assert routed.get("copy.test", path, MCP_HEADERS, "POST", body=body).status == status
    said = [problem for problem in about(routed, "copied") if "`Content-Encoding` or charset" in problem.message]
    assert [problem.code for problem in said] == ["TW655"] * 2


def test_no_route_makes_a_path_that_ends_early(routed: Routed) -> None:
    """A line break would begin a header, and Envoy refuses it with everything else; behind a space there is no path."""
    for path in ("/full", "/prefix/a", "/space/a", "/to-ReplaceFullPath", "/to-ReplacePrefixMatch/a"):
        got = routed.get("unsendable.test", path)
        assert (got.status, got.backend) == (500, None), path
    assert routed.get("unsendable.test", "/sent/a").backend == "v1"
    said = [problem for problem in about(routed, "unsendable") if "character in a path" in problem.message]
    assert {problem.code for problem in said} == {"TW655"}
    assert "two digits" in said[0].hint


def test_denied_requests_are_not_copied(routed: Routed) -> None:
    good, bad = (json.dumps(call(tool)).encode() for tool in ("add", "drop"))
    requests = routed.recorders["v1"].requests
    before = len(requests)
    assert routed.get("copy.test", "/same", MCP_HEADERS, "POST", body=bad).backend is None
    assert routed.get("copy.test", "/same", MCP_HEADERS, "POST", body=good).status == 200
    # The backend gets the request and its copy.
    eventually(lambda: len(requests) == before + 2, lambda: requests[before:])
    assert {request.body for request in requests[before:]} == {good}


# ---- gRPC


@pytest.mark.parametrize(
    ("method", "metadata", "answer"),
    [
        ("/shop.Orders/Get", {}, "exact"),
        ("/shop.Orders/List", {}, "service"),
        ("/shop.Orders/List", {"x-who": "me"}, "header"),
        ("/other.Service/Get", {}, "method"),
        ("/a.BBB/Do", {}, "pattern"),
        ("/a.BBB/Else", {}, None),
        ("/shop.OrdersMore/List", {}, None),
    ],
)
def test_grpc_methods_are_matched(routed: Routed, method: str, metadata: dict[str, str], answer: str | None) -> None:
    wanted = "UNIMPLEMENTED" if answer is None else f"{method} {answer}"
    assert greet(routed, "grpc.test", method, **metadata) == wanted


def test_a_grpc_route_takes_grpc_alone(routed: Routed) -> None:
    assert routed.get("grpc.test", "/shop.Orders/Get", method="POST", body=b"x").status == 404


def test_a_host_name_has_routes_of_one_kind(routed: Routed) -> None:
    assert routed.get("grpc.test", "/late").status == 404
    assert routed.get("early.test", "/").backend == "v1"
    for name, older in (("late", "GRPCRoute/prod/greeter"), ("behind", "HTTPRoute/prod/early")):
        (problem,) = about(routed, name)
        assert problem.message.endswith(f"{older} has it")


def test_policies_refuse_grpc(routed: Routed) -> None:
    assert greet(routed, "guarded.test", "/shop.Orders/Get") != "/shop.Orders/Get "
    assert routed.get("guarded.test", "/shop.Orders/Get", {"content-type": "application/grpc"}).backend is None
    (problem,) = [problem for problem in about(routed, "guarded") if str(problem.reference).startswith("GRPCRoute")]
    assert "gRPC is not MCP" in problem.message
    assert "Gateway of their own" in problem.hint


# ---- Listeners of ListenerSets


def test_routes_on_a_listener_set(routed: Routed) -> None:
    assert routed.get("added.test", "/").backend == "v1"


# ---- Retries


def test_retries() -> None:
    unsteady = Unsteady()
    running = Routed(objects(), {"Service/prod/v1": unsteady.address})
    try:
        for path, codes, status, asked in (
            ("/yes", [503, 503], 200, 3),
            ("/yes", [503, 503, 503], 503, 3),
            ("/yes", [500], 500, 1),
            ("/no", [503], 503, 1),
            ("/none", [503], 503, 1),
        ):
            unsteady.codes, unsteady.asked = codes, 0
            assert (running.get("retry.test", path).status, unsteady.asked) == (status, asked), path
    finally:
        running.close()
        unsteady.close()


# ---- How backends are spoken to


def test_app_protocols(greeter: Greeter) -> None:
    ports = {"v1": {"appProtocol": "https"}, "v2": {"appProtocol": "kubernetes.io/h2c"}, "v3": {"appProtocol": "http"}}
    rules = [at("/tls"), at("/h2c", backendRefs=to("v2")), at("/plain", backendRefs=to("v3"))]
    running = Routed([route("app", "app.test", rules)], {"Service/prod/v2": greeter.address}, ports=ports)
    try:
        assert (running.get("app.test", "/tls").status, running.get("app.test", "/plain").backend) == (500, "v3")
        # A server that speaks HTTP/2 alone answers that this is not a gRPC request.
        assert running.get("app.test", "/h2c", {"content-type": "application/grpc", "te": "trailers"}).status == 200
        (problem,) = about(running, "app")
        assert problem.message.startswith("appProtocol `https` without TLS settings is not supported")
        assert "BackendTLSPolicy" in problem.hint
    finally:
        running.close()


# What a BackendTLSPolicy expects of a backend whose certificate is for 127.0.0.1, and the status of requests to it.
LOOPBACK = [{"type": "Hostname", "hostname": "127.0.0.1"}]
EXPECTED: dict[str, tuple[Object, int]] = {
    "good": ({"hostname": "a.test", "caCertificateRefs": "ca", "subjectAltNames": LOOPBACK}, 200),
    "other-name": ({"hostname": "a.test", "caCertificateRefs": "ca"}, 503),
    "other-san": (
        {"hostname": "a.test", "caCertificateRefs": "ca", "subjectAltNames": [{"type": "URI", "uri": "spiffe://a/b"}]},
        503,
    ),
    "other-authority": (
        {"hostname": "a.test", "wellKnownCACertificates": "System", "subjectAltNames": LOOPBACK},
        503,
    ),
    "missing": ({"hostname": "a.test", "caCertificateRefs": "gone"}, 500),
    "broken": ({"hostname": "a.test", "caCertificateRefs": "bad"}, 500),
    "no-authority": ({"hostname": "a.test"}, 500),
    "no-host": ({"caCertificateRefs": "ca"}, 500),
    "not-a-host": ({"hostname": ["a"], "caCertificateRefs": "ca"}, 500),
    "not-a-name": ({"hostname": "a.test", "caCertificateRefs": "ca", "subjectAltNames": [{"type": "URI"}]}, 500),
}


class Secure(Unsteady):
    """A server over TLS; `names` are the server names that clients asked for."""

    def __init__(self, certificate: bytes) -> None:
        super().__init__()
        self.names: list[str | None] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "server.pem"
            path.write_bytes(certificate)
            context.load_cert_chain(path)
        context.sni_callback = lambda socket, name, context: self.names.append(name)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)


def tls_policy(name: str, expected: Object, service: str, created: int = 1, **target: str) -> Object:
    refs = {"group": "", "kind": "ConfigMap", "name": expected.get("caCertificateRefs")}
    validation = expected | ({"caCertificateRefs": [refs]} if "caCertificateRefs" in expected else {})
    spec = {"targetRefs": [{"group": "", "kind": "Service", "name": service, **target}], "validation": validation}
    out = manifest(f"{GATEWAY_API}/v1", "BackendTLSPolicy", name, spec)
    out["metadata"]["creationTimestamp"] = f"2026-01-{created:02}T00:00:00Z"
    return out


def test_backends_over_tls() -> None:
    authority = CertificateAuthority()
    certificate = authority.server()
    server = Secure(certificate.key + certificate.chain)
    services = [manifest("v1", "Service", name, {"ports": [{"port": 80, "name": "web"}]}) for name in EXPECTED]
    bundles = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "prod"}, "data": data}
        for name, data in (("ca", {"ca.crt": authority.pem.decode()}), ("bad", {"ca.crt": "x"}))
    ]
    policies = [tls_policy(name, expected, name) for name, (expected, _) in EXPECTED.items()]
    # The port's own policy comes first, then the older one; policies of other ports and of others do not count.
    policies += [
        tls_policy("older", EXPECTED["missing"][0], "v1"),
        tls_policy("port", EXPECTED["good"][0], "v1", created=2, sectionName="web"),
        tls_policy("old", EXPECTED["good"][0], "v2"),
        tls_policy("young", EXPECTED["missing"][0], "v2", created=2),
        tls_policy("other-port", EXPECTED["missing"][0], "v3", sectionName="other"),
    ]
    names = (*EXPECTED, "v1", "v2", "v3")
    rules = [at(f"/{name}", backendRefs=to(name)) for name in names]
    running = Routed(
        [*services, *bundles, *policies, route("tls", "tls.test", rules)],
        {f"Service/prod/{name}": server.address for name in names if name != "v3"},
        ports={"v1": {"name": "web", "appProtocol": "https"}},
    )
    try:
        for name in names:
            wanted = EXPECTED[name][1] if name in EXPECTED else 200
            assert running.send("tls.test", f"/{name}")[0] == wanted, name
        assert set(server.names) == {"a.test"}
        assert len(about(running, "tls")) == sum(status == 500 for _, status in EXPECTED.values())
        assert all(problem.hint for problem in about(running, "tls"))
    finally:
        running.close()
        server.close()


def test_backends_outside_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found by name, and must show a certificate for that name from an authority of the system."""
    authority = certificates.Authority()
    good = authority.server("localhost")
    servers = {
        "good": Secure(good.certificate + good.key),
        "other-name": Secure((pair := authority.server("other.test")).certificate + pair.key),
        "other-authority": Secure((pair := certificates.Authority().server("localhost")).certificate + pair.key),
    }
    bundle = tmp_path / "system.pem"
    bundle.write_bytes(authority.pem)
    monkeypatch.setattr(clusters, "SYSTEM_AUTHORITIES", str(bundle))
    outside = []
    for name, server in servers.items():
        backend = behind(name)[0]
        backend["spec"]["mcp"] = {"hostname": "localhost", "port": server.address.port}
        outside.append(backend)
    rules = [at(f"/{name}", backendRefs=[xbackend(name)]) for name in servers]
    running = Routed([*outside, route("outside", "outside.test", rules)], by_name=servers)
    try:
        eventually(lambda: running.send("outside.test", "/good")[0] == 200, "an answer from outside")
        for name in ("other-name", "other-authority"):
            assert running.send("outside.test", f"/{name}")[0] == 503
            assert servers[name].asked == 0
        assert set(servers["good"].names) == {"localhost"}
        assert set(servers["good"].hosts) == {"localhost"}
    finally:
        running.close()
        for server in servers.values():
            server.close()


def test_metadata_of_protected_resources_passes_by_a_rule_of_its_own() -> None:
    """Clients ask for it before they have a token (RFC 9728), at a path beside that of the server."""
    well_known = "/.well-known/oauth-protected-resource"
    paths = [{"type": "Exact", "value": f"{well_known}/guarded"}]
    public = {"authorization": {"type": "Inline", "paths": paths, "methods": ["GET"]}}
    rules = [at(path, backendRefs=[xbackend("guarded")]) for path in ("/guarded", well_known)]
    objects = [
        behind("guarded")[0],
        route("guarded", "oauth.test", rules),
        policy("p", "guarded", [calls("add"), public]),
    ]
    running = Routed(objects)
    try:
        got = running.get("oauth.test", f"{well_known}/guarded")
        assert (got.status, got.path) == (200, f"{well_known}/guarded")
        assert running.get("oauth.test", f"{well_known}/other").status == 403
        assert running.get("oauth.test", f"{well_known}/guarded", method="DELETE").status == 403
        body = json.dumps(call("drop")).encode()
        assert running.get("oauth.test", "/guarded", MCP_HEADERS, "POST", body=body).backend is None
    finally:
        running.close()
