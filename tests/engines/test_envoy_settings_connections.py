"""A real Envoy obeys settings of connections: TLS, HTTP and TCP on both sides (docs/gateway.md#obeyed-by-run)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs.settings_lab import SettingsLab, settings_lab
from tests.worlds.gateway_settings import Object, gateway, policy, route, secret, service, to
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.probe.client import CertificateAuthority
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

AUTHORITY = CertificateAuthority()
SERVER = AUTHORITY.server()
CERTIFICATE = secret("tls", None, **{"tls.crt": SERVER.chain.decode(), "tls.key": SERVER.key.decode()})
SECURE = {"protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "tls"}]}}
ALL: list[Object] = [{"backendRefs": to("one")}]
BUNDLE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "ca", "namespace": "shop"},
    "data": {"ca.crt": AUTHORITY.pem.decode()},
}


def shaken(lab: SettingsLab, version: ssl.TLSVersion, alpn: str) -> str:
    """The version and protocol of a handshake, or an empty string if it fails."""
    context = AUTHORITY.context(None)
    context.check_hostname = False
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols([alpn])
    with socket.create_connection(lab.address, timeout=10) as plain:
        try:
            with context.wrap_socket(plain) as secure:
                return f"{secure.version()} {secure.selected_alpn_protocol()}"
        except ssl.SSLError:
            return ""


def test_versions_and_protocols_of_tls() -> None:
    only_new = policy("p", "Gateway/edge", frontend={"tls": {"minProtocolVersion": "1.3", "alpnProtocols": ["h2"]}})
    objects = [gateway(**SECURE), service("one"), route("web", ALL), CERTIFICATE, only_new]
    with settings_lab(objects) as lab:
        assert shaken(lab, ssl.TLSVersion.TLSv1_2, "h2") == ""
        assert shaken(lab, ssl.TLSVersion.TLSv1_3, "h2") == "TLSv1.3 h2"
        assert shaken(lab, ssl.TLSVersion.TLSv1_3, "http/1.1") == "TLSv1.3 None"


def test_cipher_suites() -> None:
    suites = ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"]
    chosen = {"tls": {"cipherSuites": suites, "maxProtocolVersion": "1.2", "keyExchangeGroups": ["P-256"] * 2}}
    objects = [
        gateway(**SECURE),
        service("one"),
        route("web", ALL),
        CERTIFICATE,
        policy("p", "Gateway/edge", frontend=chosen),
    ]
    with settings_lab(objects) as lab:
        assert shaken(lab, ssl.TLSVersion.TLSv1_3, "h2") == ""
        assert shaken(lab, ssl.TLSVersion.TLSv1_2, "h2") == "TLSv1.2 h2"


@pytest.fixture(scope="module")
def limited() -> Iterator[SettingsLab]:
    http = {"http1MaxHeaders": 20, "http1IdleTimeout": "1s", "http2WindowSize": "1Mi", "http2KeepaliveInterval": "30s"}
    settings = {"http": {**http, "http2MaxHeaderSize": "4Ki"}, "tcp": {"keepalive": {"retries": 3, "time": "30s"}}}
    with settings_lab(
        [gateway(), service("one"), route("web", ALL), policy("p", "Gateway/edge", frontend=settings)]
    ) as lab:
        yield lab


def test_headers_are_limited(limited: SettingsLab) -> None:
    assert limited.send("/").status == 200
    assert limited.send("/", **{f"x-{number}": "y" for number in range(30)}).status == 431  # type: ignore[arg-type]
    assert limited.send("/", x_long="y" * 5000).status == 431


def test_a_silent_connection_ends(limited: SettingsLab) -> None:
    with socket.create_connection(limited.address, timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        read = b""
        while chunk := connection.recv(4096):
            read += chunk
        assert read.startswith(b"HTTP/1.1 200")


def test_a_port_has_its_own_settings() -> None:
    """A policy on a port beats the one on the Gateway there; settings that leave no version close the routes."""
    wide = policy("wide", "Gateway/edge", frontend={"tls": {"minProtocolVersion": "1.3", "maxProtocolVersion": "1.2"}})
    objects = [gateway(**SECURE), service("one"), route("web", ALL), CERTIFICATE]
    resources, _ = compile(Snapshot.of(load_objects([*objects, wide])), EnvoyOptions())
    (configuration,) = resources.routes.values()
    assert configuration.virtual_hosts[0].routes[-1].direct_response.status == 500
    narrow = policy("narrow", "Gateway/edge", frontend={"tls": {"minProtocolVersion": "1.2"}})
    narrow["spec"]["targetRefs"][0]["port"] = 8080
    resources, _ = compile(Snapshot.of(load_objects([*objects, wide, narrow])), EnvoyOptions())
    (configuration,) = resources.routes.values()
    assert configuration.virtual_hosts[0].routes[-1].HasField("route")


# TLS settings of the rule at the path of this name, and whether a backend with a certificate for 127.0.0.1 is good.
TLS: dict[str, tuple[dict[str, Any], bool]] = {
    "trusted": ({"caCertificateRefs": [{"name": "ca"}]}, True),
    "other-name": ({"caCertificateRefs": [{"name": "ca"}], "sni": "other.example"}, False),
    "named": (
        {"caCertificateRefs": [{"name": "ca"}], "sni": "a.example", "verifySubjectAltNames": ["127.0.0.1"]},
        True,
    ),
    "no-name": ({"caCertificateRefs": [{"name": "ca"}], "sni": "a.example", "insecureSkipVerify": "Hostname"}, True),
    "system": ({}, False),
    "anybody": ({"insecureSkipVerify": "All"}, True),
    "missing": ({"caCertificateRefs": [{"name": "nowhere"}]}, False),
}


@pytest.fixture(scope="module")
def secured() -> Iterator[SettingsLab]:
    rules = [{"name": name, "matches": [{"path": {"value": f"/{name}"}}], "backendRefs": to("one")} for name in TLS]
    policies = [policy(name, "HTTPRoute/web", section=name, backend={"tls": value}) for name, (value, _) in TLS.items()]
    limits = {"tcp": {"connectTimeout": "2s"}, "http": {"version": "HTTP1", "requestTimeout": "1s"}}
    slow = policy("slow", "Service/one", backend=limits)
    objects = [gateway(), service("one"), route("web", rules), BUNDLE, slow, *policies]
    with settings_lab(objects, certificate=SERVER) as lab:
        yield lab


@pytest.mark.parametrize("name", TLS)
def test_a_backend_is_reached_over_tls_and_checked(secured: SettingsLab, name: str) -> None:
    is_good = TLS[name][1]
    answer = secured.send(f"/{name}")
    assert (answer.status == 200) is is_good
    assert is_good or answer.status == (500 if name == "missing" else 503)


def test_a_backend_answers_in_time() -> None:
    limited = policy("p", "Service/two", backend={"http": {"requestTimeout": "500ms"}})
    shares = [{"matches": [{"path": {"value": f"/{name}"}}], "backendRefs": to(name)} for name in ("one", "two")]
    objects = [gateway(), service("one"), service("two"), route("web", shares), limited]
    with settings_lab(objects, ("one", "two")) as lab:
        assert [lab.send("/one", x_sleep="1").status, lab.send("/two", x_sleep="1").status] == [200, 504]
        assert lab.send("/two").status == 200
