"""A real Envoy obeys the settings of AgentgatewayPolicies (docs/gateway.md#obeyed-by-run): each is seen on requests."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.labs.settings_lab import EchoBackend, SettingsLab, settings_lab
from tests.worlds.gateway_settings import gateway, policy, route, secret, service, to

KEY = ec.generate_private_key(ec.SECP256R1())


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def key_set() -> str:
    numbers = KEY.public_key().public_numbers()
    x, y = (_b64(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
    return json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "k", "x": x, "y": y}]})


def token(**claims: Any) -> str:
    head = _b64(json.dumps({"alg": "ES256", "kid": "k"}).encode())
    # For longer than all tests take: modules make tokens when they are imported.
    said = {"iss": "https://id", "exp": int(time.time()) + 86_400, **claims}
    body = _b64(json.dumps({name: value for name, value in said.items() if value is not None}).encode())
    r, s = decode_dss_signature(KEY.sign(f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256())))
    return f"Bearer {head}.{body}.{_b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def jwt(**more: Any) -> dict[str, Any]:
    return {"providers": [{"issuer": "https://id", "jwks": {"inline": key_set()}}], **more}


def sha(name: str, password: str) -> str:
    return f"{name}:{{SHA}}{base64.b64encode(hashlib.sha1(password.encode()).digest()).decode()}"


def rules(*expressions: str, action: str = "Allow") -> dict[str, Any]:
    return {"action": action, "policy": {"matchExpressions": list(expressions)}}


def headers(**set_: str) -> dict[str, Any]:
    return {"set": [{"name": name.replace("_", "-"), "value": value} for name, value in set_.items()]}


# The traffic settings of a rule at the path of this name.
SETTINGS: dict[str, dict[str, Any]] = {
    "open": {"hostRewrite": {"mode": "None"}},
    "timeout": {"timeouts": {"request": "300ms"}},
    "retry": {"retry": {"attempts": 2, "codes": [503], "backoff": "10ms"}},
    "headers": {
        "headerModifiers": {"request": headers(x_in="100%"), "response": {"remove": ["x-from"], **headers(x_out="b")}}
    },
    "direct": {
        "directResponse": {"status": 418, "body": "short and stout", "headers": [{"name": "x-pot", "value": "'tea'"}]}
    },
    "direct-403": {"directResponse": {"status": 403, "body": "closed for the winter"}},
    "cors": {"cors": {"allowOrigins": ["https://a.example"], "allowMethods": ["GET"]}},
    "cors-direct": {"cors": {"allowOrigins": ["https://a.example"]}, "directResponse": {"status": 418, "body": "tea"}},
    "cors-redirect": {"cors": {"allowOrigins": ["https://a.example"]}},
    "csrf": {"csrf": {"additionalOrigins": ["https://friend.example"]}},
    "buffer": {"buffer": {"request": {"maxBytes": "1Ki"}}},
    "delay": {"delay": {"duration": "400ms"}},
    "limit": {"rateLimit": {"local": [{"requests": 2, "burst": 1, "unit": "Hours"}]}},
    "limits": {"rateLimit": {"local": [{"requests": 50, "unit": "Minutes"}, {"requests": 2, "unit": "Hours"}]}},
    "jwt": {"jwtAuthentication": jwt()},
    "jwt-optional": {"jwtAuthentication": jwt(mode="Optional")},
    "jwt-permissive": {"jwtAuthentication": jwt(mode="Permissive")},
    "jwt-query": {"jwtAuthentication": jwt(location={"queryParameter": {"name": "t"}})},
    "audience": {"jwtAuthentication": {"providers": [{**jwt()["providers"][0], "audiences": ["shop"]}]}},
    "claims": {
        "jwtAuthentication": jwt(mode="Optional"),
        "authorization": rules("jwt.sub == 'alice'", "'admin' in jwt.groups", "jwt.level >= 3"),
    },
    "unequal": {
        "jwtAuthentication": jwt(),
        "authorization": rules("jwt.level != 3", "!has(jwt.name)", action="Deny"),
    },
    "deny": {
        "authorization": rules("request.headers['x-bad'] == 'yes'", "request.path == '/deny/secret'", action="Deny")
    },
    "require": {
        "authorization": rules(
            "request.method == 'GET'",
            "'x-id' in request.headers",
            action="Require",
        )
    },
    "broken": {"authorization": rules("a_{{b}}", action="Require")},
    "basic": {
        "basicAuthentication": {"users": [sha("alice", "secret")]},
        "authorization": rules("basicAuth.username == 'alice'"),
    },
    "basic-secret": {"basicAuthentication": {"secretRef": {"name": "users", "key": "list"}}},
    "key": {"apiKeyAuthentication": {"secretRef": {"name": "keys"}}},
    "key-header": {
        "apiKeyAuthentication": {"secretRef": {"name": "keys"}, "location": {"header": {"name": "x-api-key"}}}
    },
    "key-query": {
        "apiKeyAuthentication": {"secretRef": {"name": "keys"}, "location": {"queryParameter": {"name": "k"}}}
    },
    "missing": {"apiKeyAuthentication": {"secretRef": {"name": "nowhere"}}},
    "bcrypt": {"basicAuthentication": {"users": ["alice:$2y$05$abcdefghijklmnopqrstuv"]}},
    "ask": {"extAuth": {"backendRef": {"name": "guard", "port": 80}, "http": {"path": "'/check'"}}},
}


@pytest.fixture(scope="module")
def lab() -> Iterator[SettingsLab]:
    each = [{"name": name, "matches": [{"path": {"value": f"/{name}"}}], "backendRefs": to("one")} for name in SETTINGS]
    redirecting = next(rule for rule in each if rule["name"] == "cors-redirect")
    del redirecting["backendRefs"]
    redirecting["filters"] = [{"type": "RequestRedirect", "requestRedirect": {"hostname": "b.example"}}]
    # A rule list has at most 16 entries.
    routes = [route(f"r{start}", each[start : start + 16]) for start in range(0, len(each), 16)]
    of = {rule["name"]: f"r{number // 16 * 16}" for number, rule in enumerate(each)}
    policies = [policy(name, f"HTTPRoute/{of[name]}", section=name, traffic=SETTINGS[name]) for name in SETTINGS]
    keys = secret("keys", first="open-sesame", second=json.dumps({"key": "k2", "metadata": {"team": "x"}}))
    users = secret("users", list=sha("bob", "hunter2"))
    objects = [gateway(), service("one"), service("guard"), keys, users, *routes, *policies]
    with settings_lab(objects, ("one", "guard")) as running:
        yield running


def test_a_timeout_times_out(lab: SettingsLab) -> None:
    assert lab.send("/timeout").status == 200
    assert lab.send("/timeout", x_sleep="2").status == 504


def test_a_request_is_repeated(lab: SettingsLab) -> None:
    before = len(lab.backend.paths)
    assert lab.send("/retry", x_status="503").status == 503
    assert lab.backend.paths[before:] == ["/retry"] * 3
    assert lab.send("/retry", x_status="500").status == 500
    assert len(lab.backend.paths) == before + 4


def test_headers_change(lab: SettingsLab) -> None:
    answer = lab.send("/headers")
    assert answer.seen["x-in"] == "100%"
    assert answer.headers["x-out"] == "b"
    assert "x-from" not in answer.headers


def test_a_direct_response_reaches_no_backend(lab: SettingsLab) -> None:
    before = len(lab.backend.paths)
    answer = lab.send("/direct")
    assert (answer.status, answer.body, answer.headers["x-pot"]) == (418, b"short and stout", "tea")
    assert len(lab.backend.paths) == before


def test_a_direct_response_keeps_its_words(lab: SettingsLab) -> None:
    answer = lab.send("/direct-403")
    assert (answer.status, answer.body) == (403, b"closed for the winter")


def test_pages_of_an_allowed_origin_may_read(lab: SettingsLab) -> None:
    for origin, allowed in (("https://a.example", "https://a.example"), ("https://b.example", None)):
        answer = lab.send("/cors", "OPTIONS", origin=origin, access_control_request_method="GET")
        assert answer.headers.get("access-control-allow-origin") == allowed


@pytest.mark.parametrize(("path", "status"), [("/cors-direct", 418), ("/cors-redirect", 302)])
def test_pages_of_an_allowed_origin_may_read_what_no_backend_answers(lab: SettingsLab, path: str, status: int) -> None:
    for origin, allowed in (("https://a.example", "https://a.example"), ("https://b.example", None)):
        preflight = lab.send(path, "OPTIONS", origin=origin, access_control_request_method="GET")
        assert (preflight.status, preflight.headers.get("access-control-allow-origin")) == (200, allowed)
        answer = lab.send(path, origin=origin)
        assert (answer.status, answer.headers.get("access-control-allow-origin")) == (status, allowed)


def test_changes_from_pages_of_other_origins_are_refused(lab: SettingsLab) -> None:
    refused = lab.send("/csrf", "POST", b"", origin="https://evil.example")
    assert (refused.status, refused.body) == (403, b"Invalid origin")
    assert lab.send("/csrf", "POST", b"", origin="https://friend.example").status == 200
    assert lab.send("/csrf", origin="https://evil.example").status == 200


def test_refusals_that_no_policy_names_keep_their_words(lab: SettingsLab) -> None:
    lab.backend.refused.add("/check")
    try:
        asked = lab.send("/ask")
    finally:
        lab.backend.refused.clear()
    # The words of the authorizer, which repeats the headers that it gets.
    assert asked.status == 403
    assert "host" in asked.seen
    upgrade = lab.send("/open", connection="Upgrade", upgrade="websocket")
    assert (upgrade.status, upgrade.body) == (403, b"")


def test_large_requests_are_refused(lab: SettingsLab) -> None:
    assert lab.send("/buffer", "POST", b"x" * 1000).status == 200
    assert lab.send("/buffer", "POST", b"x" * 2000).status == 413


def test_requests_are_held(lab: SettingsLab) -> None:
    start = time.monotonic()
    assert lab.send("/delay").status == 200
    assert time.monotonic() - start >= 0.39


@pytest.mark.parametrize(("path", "number"), [("/limit", 3), ("/limits", 2)])
def test_a_limit_limits(lab: SettingsLab, path: str, number: int) -> None:
    assert [lab.send(path).status for _ in range(number + 2)] == [200] * number + [429] * 2


def test_a_token_is_demanded(lab: SettingsLab) -> None:
    assert lab.send("/jwt").status == 401
    assert lab.send("/jwt", authorization="Bearer x.y.z").status == 401
    assert lab.send("/jwt", authorization=token(iss="https://other")).status == 401
    assert lab.send("/jwt", authorization=token(exp=int(time.time()) - 600)).status == 401
    assert lab.send("/jwt", authorization=token(exp=None)).status == 401
    answer = lab.send("/jwt", authorization=token(sub="alice"))
    assert answer.status == 200
    assert "authorization" not in answer.seen


def test_a_token_of_the_wrong_audience_is_refused(lab: SettingsLab) -> None:
    assert lab.send("/audience", authorization=token(aud="other")).status == 403
    assert lab.send("/audience", authorization=token(aud=["shop", "b"])).status == 200


def test_modes_of_tokens(lab: SettingsLab) -> None:
    bad = "Bearer x.y.z"
    assert [lab.send("/jwt-optional").status, lab.send("/jwt-optional", authorization=bad).status] == [200, 401]
    assert [lab.send("/jwt-permissive").status, lab.send("/jwt-permissive", authorization=bad).status] == [200, 200]


def test_a_token_is_read_only_where_it_belongs(lab: SettingsLab) -> None:
    good = token().removeprefix("Bearer ")
    assert lab.send("/jwt-query", authorization=f"Bearer {good}").status == 401
    assert lab.send(f"/jwt-query?t={good}").status == 200
    assert lab.send(f"/jwt?access_token={good}").status == 401


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"sub": "alice"}, 200),
        ({"sub": "bob"}, 403),
        ({"sub": "bob", "groups": ["admin", "x"]}, 200),
        ({"sub": "bob", "groups": ["user"]}, 403),
        ({"level": 3}, 200),
        ({"level": 2}, 403),
        ({"level": "high"}, 403),
        (None, 403),
    ],
)
def test_claims_authorize(lab: SettingsLab, claims: dict[str, Any] | None, status: int) -> None:
    answer = lab.send("/claims") if claims is None else lab.send("/claims", authorization=token(**claims))
    assert answer.status == status


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"level": 3, "name": "a"}, 200),
        ({"level": 4, "name": "a"}, 403),
        ({"level": "3", "name": "a"}, 403),
        ({"level": 3}, 403),
        ({"name": "a"}, 200),
    ],
)
def test_an_expression_that_fails_denies_nothing(lab: SettingsLab, claims: dict[str, Any], status: int) -> None:
    assert lab.send("/unequal", authorization=token(**claims)).status == status


def test_a_deny_denies_and_says_who(lab: SettingsLab) -> None:
    assert lab.send("/deny").status == 200
    answer = lab.send("/deny", x_bad="yes")
    assert (answer.status, answer.body) == (403, b"denied by AgentgatewayPolicy/shop/deny\n")
    assert lab.send("/deny/secret?a=b").status == 403
    assert lab.send("/deny/secret/more").status == 200


def test_every_require_must_hold(lab: SettingsLab) -> None:
    assert lab.send("/require", x_id="1").status == 200
    assert lab.send("/require").status == 403
    assert lab.send("/require", "POST", b"", x_id="1").status == 403


def test_a_broken_require_denies(lab: SettingsLab) -> None:
    assert lab.send("/broken").status == 403


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_a_password_is_demanded(lab: SettingsLab) -> None:
    assert lab.send("/basic").status == 401
    assert lab.send("/basic", authorization=basic("alice", "wrong")).status == 401
    answer = lab.send("/basic", authorization=basic("alice", "secret"), x_tierwall_user="root")
    assert answer.status == 200
    assert "x-tierwall-user" not in answer.seen
    assert lab.send("/basic-secret", authorization=basic("alice", "secret")).status == 401
    assert lab.send("/basic-secret", authorization=basic("bob", "hunter2")).status == 200


def test_a_key_is_demanded(lab: SettingsLab) -> None:
    assert lab.send("/key").status == 401
    assert lab.send("/key", authorization="Bearer wrong").status == 401
    answer = lab.send("/key", authorization="Bearer open-sesame")
    assert answer.status == 200
    assert "authorization" not in answer.seen
    assert lab.send("/key", authorization="Bearer k2").status == 200
    assert lab.send("/key-header", x_api_key="k2").status == 200
    assert lab.send("/key-header", authorization="Bearer k2").status == 401
    assert lab.send("/key-query?k=k2").status == 200
    assert lab.send("/key-query").status == 401


def test_what_cannot_be_enforced_is_closed(lab: SettingsLab) -> None:
    before = len(lab.backend.paths)
    assert [lab.send("/missing").status, lab.send("/bcrypt").status] == [500, 500]
    assert len(lab.backend.paths) == before
    closed = sorted(str(diagnostic.message) for diagnostic in lab.diagnostics if diagnostic.code == "TW663")
    assert ["Secret/shop/nowhere does not exist" in closed[0], "htpasswd -s" in closed[1]] == [True, True]


def test_a_service_is_asked(lab: SettingsLab) -> None:
    before = len(lab.backend.paths)
    assert lab.send("/ask/x?y=1").status == 200
    assert lab.backend.paths[before:] == ["/check", "/ask/x?y=1"]


def test_a_service_is_asked_at_the_path_of_its_url() -> None:
    ways = [{"matches": [{"path": {"value": f"/{name}"}}], "backendRefs": to(name)} for name in ("one", "two")]
    with closing(EchoBackend()) as guard:
        url = f"http://127.0.0.1:{guard.address.port}/api/verify"
        objects = [
            gateway(),
            service("one"),
            service("two"),
            route("web", ways),
            policy("p", "Service/two", backend={"extAuth": {"url": url, "http": {}}}),
        ]
        with settings_lab(objects, ("one", "two")) as running:
            assert running.send("/one").status == 200
            assert guard.paths == []
            assert running.send("/two").status == 200
            assert guard.paths == ["/api/verify"]
            guard.refused.add("/api/verify")
            before = len(running.backend.paths)
            assert running.send("/two").status == 403
            assert len(running.backend.paths) == before
        objects.append(policy("q", "HTTPRoute/web", traffic={"extAuth": {"url": url, "http": {}}}))
        with settings_lab(objects, ("one", "two")) as running:
            assert running.send("/one").status == 403
            assert running.backend.paths == []
            assert guard.paths[-1] == "/api/verify"
