"""A real Envoy asks services about requests and changes headers by expressions (docs/gateway.md#obeyed-by-run)."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from tests.labs.envoy_services import EnvoyServices
from tests.labs.settings_lab import EchoBackend, SettingsLab, settings_lab
from tests.worlds.gateway_settings import Object, gateway, policy, route, secret, service, to

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
SERVICE = {"backendRef": {"name": "ask", "port": 80}}
UNREACHABLE = {"backendRef": {"name": "down", "port": 80}}


def descriptor(**entries: str) -> dict[str, Any]:
    return {"entries": [{"name": name, "expression": expression} for name, expression in entries.items()]}


def transformed(*headers: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"set": [{"name": name, "value": value} for name, value in headers], **more}


QUOTA = {"rateLimit": {"global": {**SERVICE, "domain": "shop", "descriptors": [descriptor(who="'all'")]}}}
SETTINGS: dict[str, dict[str, Any]] = {
    "process": {"extProc": SERVICE},
    "no-bodies": {"extProc": {**SERVICE, "processingOptions": {"requestBodyMode": "None", "responseBodyMode": "None"}}},
    "headers-only": {
        "extProc": {
            **SERVICE,
            "processingOptions": {
                "requestBodyMode": "None",
                "responseBodyMode": "None",
                "responseHeaderMode": "Skip",
                "requestTrailerMode": "Skip",
                "responseTrailerMode": "Skip",
            },
        }
    },
    "process-down": {"extProc": UNREACHABLE},
    "process-attributes": {"extProc": {**SERVICE, "requestAttributes": {"a": "request.path"}}},
    "quota": QUOTA,
    "quota-user": {
        "rateLimit": {
            "global": {
                **SERVICE,
                "domain": "users",
                "descriptors": [descriptor(user="request.headers['x-user']", path="request.path")],
            }
        }
    },
    "quota-adds": {
        "rateLimit": {
            "global": {**SERVICE, "domain": "adds", "descriptors": [descriptor(adds="request.headers['x-adds']")]}
        }
    },
    "quota-other": {
        "rateLimit": {"global": {**UNREACHABLE, "domain": "shop", "descriptors": [descriptor(who="'all'")]}}
    },
    "quota-tokens": {
        "rateLimit": {
            "global": {**SERVICE, "domain": "shop", "descriptors": [{**descriptor(a="'b'"), "unit": "Tokens"}]}
        }
    },
    "transform": {
        "transformation": {
            "request": transformed(
                ("x-user", "request.headers['x-name'] + '@' + request.method"),
                ("x-constant", "'50%'"),
                ("x-path", "request.path"),
                remove=["x-name"],
                add=[{"name": "x-list", "value": "'b'"}],
            ),
            "response": transformed(("x-code", "string(response.code)"), ("x-was", "response.headers['x-from']")),
        }
    },
    "transform-swap": {
        "transformation": {
            "request": transformed(("x-a", "request.headers['x-b']"), ("x-b", "request.headers['x-a'] + '!'"))
        }
    },
    "transform-break": {"transformation": {"request": transformed(("x-a", r"'a\r\nx-b: c'"), ("x-c", "'c'"))}},
    "ask-break": {"extAuth": {**SERVICE, "http": {"path": r"'/a\r\nx-b: c'"}}},
    "keys-break": {
        "jwtAuthentication": {
            "providers": [{"issuer": "i", "jwks": {"remote": {**SERVICE, "jwksPath": "/a\r\nx-b: c"}}}]
        }
    },
    "token-break": {
        "jwtAuthentication": {
            "providers": [{"issuer": "i", "jwks": {"remote": {**SERVICE, "jwksPath": "/a"}}}],
            "location": {"header": {"name": "x-token", "prefix": "a\r\nb"}},
        }
    },
    "transform-fails": {"transformation": {"request": transformed(("x-user", "request.headers['x-absent']"))}},
    "transform-host": {"transformation": {"request": transformed((":authority", "'evil'"))}},
    # Each is said, and the others of its policy would be made.
    **{
        f"transform-{name}": {
            "transformation": {"request": transformed((header, "'other'"), remove=["X-Method-Override"])}
        }
        for name, header in (("own", "X-Tierwall-Caller"), ("caller", "X-Forwarded-Client-Cert"))
    },
    "transform-timeout": {
        "timeouts": {"request": "300ms"},
        "transformation": {"request": transformed(("X-Envoy-Upstream-Rq-Timeout-Ms", "'9000'"))},
    },
    "modify-attempts": {
        "headerModifiers": {
            "request": {
                "set": [{"name": "X-Envoy-Retry-On", "value": "5xx"}, {"name": "X-Envoy-Max-Retries", "value": "4"}]
            }
        }
    },
    "modify-method": {"headerModifiers": {"request": {"set": [{"name": "X-HTTP-Method-Override", "value": "GET"}]}}},
    "ask": {"extAuth": {**SERVICE, "grpc": {}}},
    "transform-body": {"transformation": {"request": transformed(("x-a", "'1'"), body="'{}'")}},
}


@pytest.fixture(scope="module")
def services() -> Iterator[EnvoyServices]:
    with closing(EnvoyServices()) as running:
        yield running


@pytest.fixture(scope="module")
def lab(services: EnvoyServices) -> Iterator[SettingsLab]:
    names = list(SETTINGS)
    every = [{"name": name, "matches": [{"path": {"value": f"/{name}"}}], "backendRefs": to("one")} for name in names]
    # A rule list has at most 16 entries.
    routes = [route(f"r{start}", every[start : start + 16]) for start in range(0, len(every), 16)]
    policies: list[Object] = [
        policy(name, f"HTTPRoute/r{number // 16 * 16}", section=name, traffic=SETTINGS[name])
        for number, name in enumerate(names)
    ]
    objects = [gateway(), service("one"), service("ask"), service("down"), *routes, *policies]
    with closing(socket.socket()) as taken:
        # A port where nobody listens.
        taken.bind(("127.0.0.1", 0))
        down = type(services.address)("127.0.0.1", taken.getsockname()[1])
        with settings_lab(objects, elsewhere={"ask": services.address, "down": down}) as running:
            yield running


@pytest.mark.parametrize("path", ["/process", "/headers-only", "/no-bodies"])
@pytest.mark.parametrize(
    "untrue", ["content-length 1", "content-length 9", "transfer-encoding chunked", "connection x"]
)
def test_a_service_does_not_say_where_a_request_ends(lab: SettingsLab, path: str, untrue: str) -> None:
    """A server would read the rest of the body as another request, or the next request as the rest of the body."""
    lab.send(path, "POST", b"abcde", x_put=untrue)
    assert lab.backend.bodies[-1] == b"abcde"
    lab.send(path, x_put=untrue)
    assert (lab.backend.bodies[-1], lab.backend.headers[-1].get("connection")) == (b"", None)
    # The client reads the whole response, and finds the header of its request there.
    assert lab.send(path, x_put_back=untrue).seen["x-put-back"] == untrue


@pytest.mark.parametrize("path", ["/process", "/headers-only"])
def test_a_service_processes_requests(lab: SettingsLab, path: str) -> None:
    answer = lab.send(path, "POST", b"abc")
    assert answer.status == 200
    assert answer.seen["x-processed"] == "yes"
    before = len(lab.backend.paths)
    assert lab.send(path, x_block="1").status == 403
    assert len(lab.backend.paths) == before


def test_without_the_service_no_request_passes(lab: SettingsLab) -> None:
    assert lab.send("/process-down").status >= 500
    assert lab.send("/process-attributes").status == 500


def test_a_service_counts_requests(lab: SettingsLab, services: EnvoyServices) -> None:
    assert [lab.send("/quota").status for _ in range(4)] == [200, 200, 429, 429]
    assert services.counted["shop", "who=all"] == 4


def test_a_service_counts_by_expressions(lab: SettingsLab, services: EnvoyServices) -> None:
    assert [lab.send("/quota-user/x?y=1", x_user="ann").status for _ in range(3)] == [200, 200, 429]
    assert lab.send("/quota-user/x", x_user="bob").status == 200
    assert services.counted["users", "user=ann", "path=/quota-user/x"] == 3


@pytest.mark.parametrize(
    "header",
    [
        "content-length 3",
        "transfer-encoding chunked",
        "Connection x-user",
        "te trailers",
        ":path /other",
        ":authority other",
        "host other",
        ":method GET",
        "x-forwarded-client-cert URI=other",
        "x-tierwall-caller other",
        "x-envoy-upstream-rq-timeout-ms 1",
    ],
)
def test_a_service_that_counts_does_not_change_what_a_request_is(lab: SettingsLab, header: str) -> None:
    """Envoy adds what the service says, and `content-length: 5,3` or another path reach the backend."""
    before = len(lab.backend.paths)
    assert lab.send("/quota-adds", "POST", b"abcde", x_adds=header).status == 500
    assert len(lab.backend.paths) == before
    answer = lab.send("/quota-adds", "POST", b"abcde", x_adds=f"x-team {header.replace(' ', '-')}")
    assert (answer.status, answer.seen["x-team"]) == (200, header.replace(" ", "-"))


def test_without_a_service_that_counts_no_request_passes(lab: SettingsLab) -> None:
    assert [lab.send("/quota-other").status, lab.send("/quota-tokens").status] == [500, 500]
    closed = [str(problem.message) for problem in lab.diagnostics if problem.code == "TW663"]
    assert any("descriptors.unit=Tokens" in message for message in closed)
    assert not any("quota-other" in message for message in closed)


def test_headers_are_expressions(lab: SettingsLab) -> None:
    answer = lab.send("/transform/a?b=c", x_name="ann", x_list="a")
    assert answer.seen["x-user"] == "ann@GET"
    assert answer.seen["x-constant"] == "50%"
    assert answer.seen["x-path"] == "/transform/a"
    assert answer.seen["x-list"] == "b"
    assert "x-name" not in answer.seen
    assert (answer.headers["x-code"], answer.headers["x-was"]) == ("200", "backend")


def test_expressions_see_the_request_as_it_came(lab: SettingsLab) -> None:
    answer = lab.send("/transform-swap", x_a="1", x_b="2")
    assert (answer.seen["x-a"], answer.seen["x-b"]) == ("2", "1!")
    assert [name for name in answer.seen if name.startswith("~")] == []


def test_an_expression_that_fails_sets_nothing(lab: SettingsLab) -> None:
    answer = lab.send("/transform-fails", x_user="own")
    assert answer.status == 200
    # What the client sent does not count.
    assert "x-user" not in answer.seen


def test_line_breaks_in_settings_reach_neither_envoy_nor_a_backend(lab: SettingsLab, backends: SettingsLab) -> None:
    """Envoy would refuse the settings of everybody else with them."""
    seen = lab.send("/transform-break").seen
    assert not {"x-a", "x-b"} & seen.keys()
    assert [lab.send(f"/{name}-break").status for name in ("ask", "keys", "token")] == [500] * 3
    assert "x-api-key" not in backends.send("/broken", x_api_key="own").seen


def test_what_envoy_does_not_change_is_said(lab: SettingsLab) -> None:
    assert lab.send("/transform-host").seen["host"] != "evil"
    assert lab.send("/transform-body", "POST", b"abc").seen["x-a"] == "1"
    said = {str(problem.message) for problem in lab.diagnostics if problem.code == "TW662"}
    assert any("`:authority`" in message for message in said)
    assert any("`traffic.transformation.request.body`" in message for message in said)


def test_no_setting_and_no_service_sets_the_headers_by_which_policies_judge(lab: SettingsLab) -> None:
    assert "x-tierwall-caller" not in lab.send("/transform-own").seen
    said = [str(problem.message) for problem in lab.diagnostics]
    for path, name in (("/transform-caller", "X-Forwarded-Client-Cert"), ("/modify-method", "X-HTTP-Method-Override")):
        assert name.lower() not in lab.send(path).seen
    protected = ("X-Tierwall-Caller", "X-Forwarded-Client-Cert", "X-HTTP-Method-Override")
    for name in (*protected, "X-Envoy-Upstream-Rq-Timeout-Ms", "X-Envoy-Retry-On"):
        assert any("change" in message and f"header `{name}`" in message for message in said)
    assert lab.send("/headers-only", x_put="x-forwarded-client-cert URI=other").status == 200
    assert "x-forwarded-client-cert" not in lab.backend.headers[-1]
    # Neither is a timeout nor are attempts changed past the settings for them.
    assert lab.send("/transform-timeout", x_sleep="1.5").status == 504
    before = len(lab.backend.paths)
    assert lab.send("/modify-attempts", x_status="503").status == 503
    assert lab.backend.paths[before:] == ["/modify-attempts"]
    # Such a header may be removed.
    assert not any("`X-Method-Override`" in message for message in said)
    assert lab.send("/ask", x_wanted="x-team").seen["x-team"] == "granted"
    before = len(lab.backend.paths)
    assert lab.send("/ask", x_wanted="x-tierwall-caller").status >= 400
    assert len(lab.backend.paths) == before


# Settings of the Service of this name.
BACKENDS: dict[str, dict[str, Any]] = {
    "inline": {"auth": {"key": "100%"}},
    "stored": {"auth": {"secretRef": {"name": "keys"}}},
    "named": {
        "auth": {
            "key": "k",
            "location": {"header": {"name": "x-api-key"}},
            "credentials": [
                {
                    "secretRef": {"name": "keys", "key": "other"},
                    "location": {"header": {"name": "x-more", "prefix": "p "}},
                }
            ],
        },
        "http": {"version": "HTTP1"},
        "transformation": {
            "request": transformed(("x-path", "'at ' + request.path")),
            "response": transformed(("x-code", "string(response.code)")),
        },
    },
    "broken": {"auth": {"key": "k", "location": {"header": {"name": "x-api-key", "prefix": "a\r\nx-b: "}}}},
    "absent": {"auth": {"secretRef": {"name": "nowhere"}}},
    "keyless": {
        "auth": {
            "secretRef": {"name": "keys"},
            "credentials": [
                {"secretRef": {"name": "keys", "key": "no"}, "location": {"header": {"name": "x-more"}}},
                {"secretRef": {"name": "nowhere", "key": "no"}, "location": {"header": {"name": "authorization"}}},
            ],
        },
    },
    "elsewhere": {"auth": {"gcp": {}}},
    "signed": {"auth": {"jwtSign": {"signingKeyRef": {"name": "k"}, "location": {"header": {"name": "x-token"}}}}},
    "query": {"auth": {"key": "k", "location": {"queryParameter": {"name": "key"}}}},
}


@pytest.fixture(scope="module")
def backends() -> Iterator[SettingsLab]:
    rules = [{"matches": [{"path": {"value": f"/{name}"}}], "backendRefs": to(name)} for name in (*BACKENDS, "one")]
    policies = [policy(f"p-{name}", f"Service/{name}", backend=value) for name, value in BACKENDS.items()]
    keys = secret("keys", Authorization="Bearer stored-key", other="o")
    names = (*BACKENDS, "one")
    with settings_lab([gateway(), *map(service, names), route("r", rules), keys, *policies], names) as running:
        yield running


def test_a_backend_gets_its_credentials_and_no_other_does(backends: SettingsLab) -> None:
    assert backends.send("/inline", authorization="own").seen["authorization"] == "Bearer 100%"
    assert backends.send("/stored").seen["authorization"] == "Bearer stored-key"
    seen = backends.send("/named", authorization="own").seen
    assert (seen["authorization"], seen["x-api-key"], seen["x-more"]) == ("own", "k", "p o")
    assert "authorization" not in backends.send("/one").seen


def test_headers_of_requests_to_a_backend_are_expressions(backends: SettingsLab) -> None:
    answer = backends.send("/named/a?b=c", x_path="own")
    assert (answer.seen["x-path"], answer.headers["x-code"]) == ("at /named/a", "200")


def test_a_backend_without_its_credentials_is_said(backends: SettingsLab) -> None:
    said = [str(problem.message) for problem in backends.diagnostics]
    absent = next(message for message in said if "`backend.auth` of AgentgatewayPolicy/shop/p-absent" in message)
    assert absent.endswith("a header `Authorization` of the client is removed; requests pass without it")
    assert any("the Secret has no key `no`; a header `x-more` of the client" in message for message in said)


def test_the_client_does_not_stand_in_for_credentials_that_are_missing(backends: SettingsLab) -> None:
    def seen(path: str) -> Mapping[str, str]:
        return backends.send(path, authorization="own", x_more="own", x_token="own").seen

    assert "authorization" not in seen("/absent")
    assert "authorization" not in seen("/elsewhere")
    assert seen("/signed")["authorization"] == "own"
    assert "x-token" not in seen("/signed")
    assert seen("/keyless")["authorization"] == "Bearer stored-key"
    assert "x-more" not in seen("/keyless")


def test_a_place_for_credentials_that_envoy_does_not_fill_is_closed(backends: SettingsLab) -> None:
    assert backends.send("/query?key=own").status == 500


@pytest.mark.parametrize(
    ("value", "first", "answered"),
    [
        ({}, b"PROXY TCP4 203.0.113.9 127.0.0.1 5 80\r\n", False),
        ({}, b"", False),
        ({"version": "V1"}, b"PROXY TCP4 203.0.113.9 127.0.0.1 5 80\r\n", True),
        ({"version": "All", "mode": "Optional"}, b"", True),
        (
            {"version": "V2"},
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes((203, 0, 113, 9, 127, 0, 0, 1, 0, 5, 0, 80)),
            True,
        ),
    ],
)
def test_connections_begin_with_a_proxy_header(value: Object, first: bytes, answered: bool) -> None:
    objects = [gateway(), service("one"), route("web", [{"backendRefs": to("one")}])]
    objects.append(policy("p", "Gateway/edge", frontend={"proxyProtocol": value}))
    with settings_lab(objects) as lab, socket.create_connection(lab.address, timeout=20) as client:
        client.sendall(first + b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        received = b""
        try:
            while part := client.recv(4096):
                received += part
        except ConnectionError:
            pass
        assert received.startswith(b"HTTP/1.1 200") is answered
        assert (b"203.0.113.9" in received) is (answered and bool(first))


@pytest.mark.parametrize(
    "traffic",
    [
        {"extProc": SERVICE},
        {"phase": "PreRouting", "extProc": SERVICE},
        {"extProc": {**SERVICE, "processingOptions": {"allowModeOverride": True}}},
    ],
)
def test_no_service_leads_a_request_past_the_settings_of_its_route(traffic: Object) -> None:
    """A request has the filters of its first route, so it keeps that route."""
    ways = {name: [{"matches": [{"path": {"value": f"/{name}"}}], "backendRefs": to(name)}] for name in ("one", "two")}
    keys = policy("keys", "HTTPRoute/two", traffic={"apiKeyAuthentication": {"secretRef": {"name": "keys"}}})
    processed = policy("p", "Gateway/edge" if "phase" in traffic else "HTTPRoute/one", traffic=traffic)
    objects = [gateway(), *map(service, ("one", "two", "ask")), secret("keys", None, first="k1"), keys, processed]
    with closing(EnvoyServices()) as services, closing(EchoBackend()) as two:
        elsewhere = {"ask": services.address, "two": two.address}
        with settings_lab([*objects, *(route(*way) for way in ways.items())], elsewhere=elsewhere) as lab:
            assert lab.send("/two").status == 401
            assert lab.send("/one", x_lead_to="/two").status == 200
            assert (lab.backend.paths, two.paths) == (["/two"], [])
