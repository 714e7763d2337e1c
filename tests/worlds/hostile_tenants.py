"""A tenant whose objects are wrong in every way that we know, beside a tenant whose objects are good.

The hostile namespace sorts before the other, and its objects claim to be older where they can. Each world is the
hostile tenant with one mistake or attack; the mistake is in the object that `culprit` names.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterator
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.worlds.tenants import (
    GOOD,
    GOOD_PORT,
    HOSTILE,
    HOSTILE_PORT,
    SHARED_PORT,
    Object,
    authority,
    certificate,
    encoded,
    tenant,
)
from tests.worlds.tool_objects import GATEWAY_API, NETWORKING, manifest

DEEP = "request.mcp.arguments" + ".a" * 60 + " == 'x'"
LARGE = "|".join(f"name{number}" for number in range(1000))
GONE = object()


class HostileWorld(NamedTuple):
    """The objects of the hostile tenant, and the kind and name of the object that is wrong."""

    objects: list[Object]
    culprit: tuple[str, str]


def mistaken(kind: str, *changes: tuple[tuple[str | int, ...], Any], more: list[Object] | None = None) -> HostileWorld:
    """Return the hostile tenant with changes to one of its objects; `GONE` removes a field."""
    objects = copy.deepcopy(tenant(HOSTILE, HOSTILE_PORT))
    changed = next(each for each in objects if each["kind"] == kind)
    for path, value in changes:
        place: Any = changed
        for step in path[:-1]:
            place = place[step]
        if value is GONE:
            del place[path[-1]]
        elif isinstance(place, list) and path[-1] == len(place):
            place.append(value)
        else:
            place[path[-1]] = value
    return HostileWorld([*objects, *(more or [])], (changed.get("kind", kind), str(changed["metadata"].get("name"))))


def expired() -> dict[str, str]:
    """Return a self-signed certificate whose time is over."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "old")])
    then = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(then)
        .not_valid_after(then + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    return encoded({"tls.crt": made.public_bytes(Encoding.PEM), "tls.key": key.private_bytes(*form)})


def _listener(field: str, value: Any) -> HostileWorld:
    return mistaken("Gateway", (("spec", "listeners", 0, field), value))


def _match(value: Any) -> HostileWorld:
    return mistaken("HTTPRoute", (("spec", "rules", 0, "matches"), value))


def _filter(value: Any) -> HostileWorld:
    return mistaken("HTTPRoute", (("spec", "rules", 0, "filters"), [value]))


def _rule(value: Any) -> HostileWorld:
    return mistaken("XAccessPolicy", (("spec", "rules", 0), value))


def _expression(text: str) -> HostileWorld:
    return mistaken("XAccessPolicy", (("spec", "rules", 1, "authorization", "cel", "expression"), text))


def _headers(kind: str, **change: Any) -> HostileWorld:
    return _filter({"type": kind, kind[0].lower() + kind[1:]: change})


def _gateway(name: str, port: int, **listener: Any) -> Object:
    entry = {"name": "tls", "port": port, "protocol": "HTTP", **listener}
    out = manifest(f"{GATEWAY_API}/v1", "Gateway", name, {"gatewayClassName": "c", "listeners": [entry]}, HOSTILE)
    out["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z"
    return out


def _policies(number: int) -> list[Object]:
    policy = next(each for each in tenant(HOSTILE, HOSTILE_PORT) if each["kind"] == "XAccessPolicy")
    return [{**policy, "metadata": {"name": f"p{index}", "namespace": HOSTILE}} for index in range(number)]


def _nested(depth: int) -> Any:
    out: Any = "x"
    for _ in range(depth):
        out = [out]
    return out


def _worlds() -> Iterator[tuple[str, HostileWorld]]:
    port: Any
    value: Any
    hosts = (
        "*",
        "a.*.test",
        "*.*.test",
        "A.Test",
        "10.0.0.1",
        "x" * 300,
        "-a.test",
        "a..test",
        "a b",
        "ä.test",
        "",
        "a/b",
        "*.",
        5,
        None,
    )
    for host in hosts:
        yield f"listener hostname {host!r:.20}", _listener("hostname", host)
        yield f"route hostname {host!r:.20}", mistaken("HTTPRoute", (("spec", "hostnames"), [host]))
    yield "route hostnames as text", mistaken("HTTPRoute", (("spec", "hostnames"), "a.test"))
    yield (
        "many route hostnames",
        mistaken("HTTPRoute", (("spec", "hostnames"), [f"h{n}.test" for n in range(500)])),
    )
    for port in (0, -1, 65536, 1 << 40, "443", 443.5, None, True, []):
        yield f"listener port {port!r}", _listener("port", port)
        yield f"backend port {port!r}", mistaken("XBackend", (("spec", "mcp", "port"), port))
        yield (
            f"backendRef port {port!r}",
            mistaken("HTTPRoute", (("spec", "rules", 1, "backendRefs", 0, "port"), port)),
        )
    for protocol in ("http", "TCP", "TLS", "", 5, None, "x" * 300):
        yield f"protocol {protocol!r:.20}", _listener("protocol", protocol)
    for name in ("", "A", "a b", "x" * 300, None, 5, "a/b"):
        yield f"listener name {name!r:.20}", _listener("name", name)
    duplicate = {"name": "tls", "port": HOSTILE_PORT + 1, "protocol": "HTTP"}
    yield "duplicate listener", mistaken("Gateway", (("spec", "listeners", 1), duplicate))
    yield "no listeners", mistaken("Gateway", (("spec", "listeners"), []))
    yield "listeners as a map", mistaken("Gateway", (("spec", "listeners"), {}))
    yield "listener as text", mistaken("Gateway", (("spec", "listeners", 0), "tls"))
    many = [{"name": f"l{n}", "port": 20000 + n, "protocol": "HTTP"} for n in range(300)]
    yield "many listeners", mistaken("Gateway", (("spec", "listeners"), many))
    yield "no gateway class", mistaken("Gateway", (("spec", "gatewayClassName"), GONE))
    yield "another tenant's port", HostileWorld([_gateway("thief", GOOD_PORT)], ("Gateway", "thief"))
    yield "the shared port", HostileWorld([_gateway("thief", SHARED_PORT)], ("Gateway", "thief"))
    yield "another tenant's port with TLS", _listener("port", GOOD_PORT)
    data = ("Secret", ("data",))
    yield (
        "no certificate",
        mistaken("Secret", (("metadata", "name"), "another"))._replace(culprit=("Secret", "cert")),
    )
    yield (
        "foreign certificate",
        mistaken("Gateway", (("spec", "listeners", 0, "tls", "certificateRefs", 0, "namespace"), GOOD)),
    )
    yield (
        "certificate of another kind",
        mistaken("Gateway", (("spec", "listeners", 0, "tls", "certificateRefs", 0, "kind"), "Pod")),
    )
    yield "no certificateRefs", mistaken("Gateway", (("spec", "listeners", 0, "tls"), GONE))
    yield "expired certificate", mistaken(data[0], (data[1], expired()))
    for name, value in {
        "garbage": {"tls.crt": "AAAA", "tls.key": "AAAA"},
        "not base64": {"tls.crt": "%%%", "tls.key": "%%%"},
        "empty": {},
        "no map": "x",
        "no key": {"tls.crt": certificate()["tls.crt"]},
        "numbers": {"tls.crt": 1, "tls.key": 2},
        "another key": {"tls.crt": certificate()["tls.crt"], "tls.key": expired()["tls.key"]},
    }.items():
        yield f"certificate {name}", mistaken(data[0], (data[1], value))
    yield "garbage authority", mistaken("ConfigMap", (("data", "ca.crt"), "garbage"))
    yield "empty authority", mistaken("ConfigMap", (("data",), {}))
    yield (
        "authority with text around it",
        mistaken(
            "ConfigMap",
            (
                ("data", "ca.crt"),
                f"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n{authority().pem.decode()}",
            ),
        ),
    )
    yield (
        "no authority",
        mistaken("ConfigMap", (("metadata", "name"), "another"))._replace(culprit=("ConfigMap", "ca")),
    )
    yield (
        "foreign authority",
        mistaken(
            "Gateway", (("spec", "tls", "frontend", "default", "validation", "caCertificateRefs", 0, "namespace"), GOOD)
        ),
    )
    for field, value in (
        ("kind", "Nothing"),
        ("name", "missing"),
        ("namespace", GOOD),
        ("weight", -1),
        ("weight", 1 << 40),
        ("name", None),
        ("name", "a/b"),
    ):
        yield (
            f"backendRef {field} {value!r}",
            mistaken("HTTPRoute", (("spec", "rules", 0, "backendRefs", 0, field), value)),
        )
    yield "all weights 0", mistaken("HTTPRoute", (("spec", "rules", 0, "backendRefs", 0, "weight"), 0))
    for value in (
        "x",
        [5],
        [{"path": {"type": "RegularExpression", "value": "("}}],
        [{"path": {"type": "RegularExpression", "value": LARGE}}],
        [{"path": {"type": "PathPrefix", "value": "no slash"}}],
        [{"path": {"type": "PathPrefix", "value": "/a?b#c"}}],
        [{"path": {"type": "Exact", "value": "/" + "a" * 3000}}],
        [{"path": {"type": "Nothing", "value": "/"}}],
        [{"path": "x"}],
        [{"headers": [{"name": "a b", "value": "c"}]}],
        [{"headers": [{"name": ":path", "value": "c"}]}],
        [{"headers": [{"name": "x", "type": "RegularExpression", "value": "(?P<a"}]}],
        [{"headers": [{"name": "x", "value": "\x00"}]}],
        [{"headers": [{"name": "x", "value": 5}]}],
        [{"queryParams": [{"name": "x", "type": "RegularExpression", "value": "[z-a]"}]}],
        [{"method": "get it"}],
        [{"method": 5}],
        [{"path": {"value": f"/{n}"}} for n in range(500)],
        None,
    ):
        yield f"match {value!r:.60}", _match(value)
    yield "headers: host", _headers("RequestHeaderModifier", set=[{"name": "Host", "value": "x"}])
    yield "headers: control", _headers("RequestHeaderModifier", set=[{"name": "X", "value": "a\r\nb: c"}])
    yield "headers: name", _headers("ResponseHeaderModifier", add=[{"name": "a b", "value": "c"}])
    yield "headers: facts", _headers("RequestHeaderModifier", set=[{"name": "x-tierwall-caller", "value": "c"}])
    yield (
        "headers: commands",
        _headers("ResponseHeaderModifier", add=[{"name": "x", "value": "%BAD_COMMAND(%"}]),
    )
    yield "headers: wrong type", _headers("RequestHeaderModifier", set="x")
    yield "mirror", _headers("RequestMirror", backendRef={"name": "web", "port": 80})
    yield "unknown filter", _filter({"type": "Nothing"})
    yield "filter without its settings", _filter({"type": "URLRewrite"})
    yield "filter as text", _filter("x")
    yield (
        "rewrite",
        _headers("URLRewrite", hostname="a b", path={"type": "ReplaceFullPath", "replaceFullPath": "\\1 %"}),
    )
    yield "redirect", _headers("RequestRedirect", scheme="gopher", statusCode=700, port=99999)
    yield "cors", _headers("CORS", allowOrigins=["https://*" + "a" * 300, "%"], maxAge=-1)
    for value in ("-1s", "1y", 5, "", "1000000h", None, "10s"):
        yield (
            f"timeout {value!r}",
            mistaken("HTTPRoute", (("spec", "rules", 0, "timeouts"), {"request": value, "backendRequest": "20s"})),
        )
    yield "rules as text", mistaken("HTTPRoute", (("spec", "rules"), "x"))
    yield "rule as text", mistaken("HTTPRoute", (("spec", "rules", 0), "x"))
    yield "parents as text", mistaken("HTTPRoute", (("spec", "parentRefs"), "x"))
    yield (
        "parent of the other tenant",
        mistaken("HTTPRoute", (("spec", "parentRefs", 2), {"name": "gate", "namespace": GOOD})),
    )
    yield (
        "listeners for the other tenant",
        mistaken("ListenerSet", (("spec", "parentRef"), {"name": "gate", "namespace": GOOD})),
    )
    for field, value in (("hostname", "a b"), ("port", 0), ("name", ""), ("hostname", "*")):
        yield (
            f"ListenerSet {field} {value!r}",
            mistaken("ListenerSet", (("spec", "listeners", 0, field), value)),
        )
    yield "grant of everything", mistaken("ReferenceGrant", (("spec", "from"), "x"))
    yield "grant without targets", mistaken("ReferenceGrant", (("spec", "to"), [{}]))
    yield "backend at a host", mistaken("XBackend", (("spec", "mcp"), {"hostname": "a b\n", "port": 1}))
    yield "backend with both", mistaken("XBackend", (("spec", "mcp", "hostname"), "x" * 300))
    yield "backend path", mistaken("XBackend", (("spec", "mcp", "path"), 5))
    yield "backend as text", mistaken("XBackend", (("spec", "mcp"), "x"))
    yield "service ports", mistaken("Service", (("spec", "ports"), "x"))
    yield "service name", mistaken("Service", (("metadata", "name"), "A/b"))
    for name in ("selects", "ternary", "pattern", "and", "unicode", "null"):
        text = {
            "selects": DEEP,
            "ternary": "".join(f"request.path == '{n}' ? true : " for n in range(240)) + "false",
            "pattern": f"request.path.matches('{LARGE}')",
            "and": " && ".join(f"(request.path != '{n}' || true)" for n in range(400)),
            "unicode": "request.path == '\U0001f600é\\u0000'",
            "null": "null",
        }[name]
        yield f"expression {name}", _expression(text)
    yield (
        "expression as number",
        mistaken("XAccessPolicy", (("spec", "rules", 1, "authorization", "cel", "expression"), 5)),
    )
    yield "policy rules as text", mistaken("XAccessPolicy", (("spec", "rules"), "x"))
    yield "policy rule as text", _rule("x")
    yield "policy rule without a name", _rule({"authorization": {"type": "Inline"}})
    yield "policy of the other tenant", mistaken("XAccessPolicy", (("metadata", "namespace"), "elsewhere"))
    yield "policy on nothing", mistaken("XAccessPolicy", (("spec", "targetRefs"), []))
    yield "policy nested", mistaken("XAccessPolicy", (("spec", "extra"), _nested(60)))
    yield "six policies", mistaken("XAccessPolicy", more=_policies(6))
    yield "null spec", mistaken("HTTPRoute", (("spec",), None))
    yield "spec as list", mistaken("Gateway", (("spec",), []))
    yield (
        "null metadata fields",
        mistaken("XBackend", (("metadata", "labels"), None), (("metadata", "annotations"), 5)),
    )
    yield "labels", mistaken("Namespace", (("metadata", "labels"), {"team": 5, "a b": "c"}))
    yield "unicode names", mistaken("HTTPRoute", (("metadata", "name"), "rоute-\u202e"))
    yield "line break in a name", mistaken("Gateway", (("metadata", "name"), "gate\nforged"))
    yield "slash in a name", mistaken("XBackend", (("metadata", "name"), "tools/../../tenant/tools"))
    yield "long name", mistaken("XAccessPolicy", (("metadata", "name"), "x" * 300))
    yield (
        "being deleted",
        mistaken(
            "HTTPRoute",
            (("metadata", "deletionTimestamp"), "2020-01-01T00:00:00Z"),
            (("metadata", "finalizers"), ["x"]),
        ),
    )
    yield "creation in the future", mistaken("Gateway", (("metadata", "creationTimestamp"), "9999-99-99"))
    for kind in ("Gateway", "HTTPRoute", "XBackend", "XAccessPolicy", "Secret", "ReferenceGrant"):
        yield (
            f"apiVersion of {kind}",
            mistaken(
                kind,
                (
                    ("apiVersion",),
                    f"{GATEWAY_API}/v9"
                    if kind in ("Gateway", "HTTPRoute", "ReferenceGrant")
                    else f"{NETWORKING}/v9"
                    if kind.startswith("X")
                    else "v9",
                ),
            ),
        )
        yield f"unknown field of {kind}", mistaken(kind, (("unknownField",), {"a": 1}))


WORLDS = dict(_worlds())
