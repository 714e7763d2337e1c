"""Credentials that expire, rotate or fail (docs/clusters.md#plugins), and the proxies of the environment (#proxies)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.labs.recording_server import Authority
from tierwall.cluster import credential
from tierwall.cluster.access import ClusterAccess, Impersonation
from tierwall.cluster.credential import Credential, CredentialSource
from tierwall.cluster.kubeconfig_entries import PluginEntry
from tierwall.cluster.pem import PemData
from tierwall.cluster.plugin import PluginCredential
from tierwall.cluster.proxies import environment_proxy
from tierwall.core.diagnostics import InputError

ACCESS = ClusterAccess("x", "https://127.0.0.1:6443", "default")
WITH_PLUGIN = replace(ACCESS, plugin=PluginEntry(command="x"))


def token(given: Credential) -> str:
    (value,) = (value for name, value in given.headers if name == "authorization")
    return value.removeprefix("Bearer ")


class CountingPlugin:
    """Gives `token-1`, `token-2`, …, each good for ten seconds of a clock that tests set."""

    def __init__(self) -> None:
        self.runs = 0
        self.now = 1000.0
        self.fails = False
        self.source = CredentialSource(WITH_PLUGIN, self.run, lambda: self.now)

    async def run(self, access: ClusterAccess) -> PluginCredential:
        self.runs += 1
        await asyncio.sleep(0)
        if self.fails:
            raise InputError([])
        return PluginCredential(f"token-{self.runs}", expires=self.now + 10)


def test_requests_side_by_side_share_one_run() -> None:
    async def check() -> None:
        plugin = CountingPlugin()
        shared = await asyncio.gather(*(plugin.source.current() for _ in range(20)))
        assert {token(given) for given in shared} == {"token-1"}
        assert plugin.runs == 1

    asyncio.run(check())


def test_an_expired_credential_is_fetched_again() -> None:
    async def check() -> None:
        plugin = CountingPlugin()
        assert token(await plugin.source.current()) == "token-1"
        plugin.now += 9
        assert token(await plugin.source.current()) == "token-1"
        plugin.now += 1
        assert token(await plugin.source.current()) == "token-2"

    asyncio.run(check())


def test_a_refused_credential_is_fetched_again_once_for_all() -> None:
    async def check() -> None:
        plugin = CountingPlugin()
        refused = await plugin.source.current()
        renewed = await asyncio.gather(*(plugin.source.renewed(refused) for _ in range(5)))
        assert {token(again) for again in renewed if again is not None} == {"token-2"}
        assert plugin.runs == 2

    asyncio.run(check())


def test_a_failure_is_shared_and_not_remembered() -> None:
    async def check() -> None:
        plugin = CountingPlugin()
        plugin.fails = True
        results = await asyncio.gather(*(plugin.source.current() for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [InputError] * 3
        assert plugin.runs == 1
        plugin.fails = False
        assert token(await plugin.source.current()) == "token-2"

    asyncio.run(check())


def test_a_token_file_is_read_again_when_it_is_due_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    source = CredentialSource(replace(ACCESS, token_file=file))

    async def check() -> None:
        first = await source.current()
        file.write_text("two\n")
        assert token(await source.current()) == token(first) == "one"
        renewed = await source.renewed(first)
        assert renewed is not None
        assert token(renewed) == "two"
        assert await source.renewed(renewed) is None, "there is no other"
        for text in ("", "a\nb"):
            file.write_text(text)
            monkeypatch.setattr(credential, "_TOKEN_AGE", 0.0)
            assert token(await source.current()) == "two", "the last good one counts"
        file.unlink()
        assert token(await source.current()) == "two"
        file.write_text("three")
        assert token(await source.current()) == "three"

    asyncio.run(check())


def test_a_certificate_that_is_being_replaced_keeps_its_last_content(tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = authority.issue("carol")
    (tmp_path / "crt").write_bytes(certificate)
    (tmp_path / "key").write_bytes(key)
    pair = {name: PemData(file=tmp_path / end) for name, end in (("certificate", "crt"), ("key", "key"))}
    source = CredentialSource(replace(ACCESS, **pair))

    async def check() -> None:
        first = (await source.current()).certificate
        assert first
        (tmp_path / "key").unlink()
        assert (await source.current()).certificate == first

    asyncio.run(check())


@pytest.mark.parametrize(
    "more", [{"token": "t"}, {"basic": ("u", "p")}, {"certificate": PemData(b"x"), "key": PemData(b"y")}]
)
def test_no_credential_is_sent_without_tls(more: dict[str, Any]) -> None:
    access = replace(ACCESS, server="http://127.0.0.1:8080", impersonation=Impersonation("jane"), **more)
    given = asyncio.run(CredentialSource(access).current())
    assert given == Credential((("Impersonate-User", "jane"),))


@pytest.mark.parametrize(
    ("server", "listed", "is_direct"),
    [
        ("https://api.example.com", "", False),
        ("https://api.example.com", "example.com", True),
        ("https://api.example.com", ".example.com", True),
        ("https://example.com", ".example.com", False),
        ("https://notexample.com", "example.com", False),
        ("https://api.example.com", "*", True),
        ("https://api.example.com:6443", "example.com:6443", True),
        ("https://api.example.com:6443", "example.com:443", False),
        ("https://10.1.2.3", "10.0.0.0/8", True),
        ("https://11.1.2.3", "10.0.0.0/8", False),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
        ("https://localhost:6443", "", True),
        ("https://127.0.0.9", "", True),
        ("https://[::1]", "", True),
        ("https://API.Example.COM", " other , EXAMPLE.com ", True),
        ("https://api.example.com", "10.0.0.0/99,[,:,/", False),
    ],
)
def test_the_proxy_of_the_environment(server: str, listed: str, is_direct: bool) -> None:
    environment = {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": listed}
    assert environment_proxy(server, environment) == ("" if is_direct else "http://proxy:3128")
    assert environment_proxy(server, {"https_proxy": "socks5://p", "no_proxy": listed}) == (
        "" if is_direct else "socks5://p"
    )


def test_a_header_of_a_request_sets_no_proxy() -> None:
    assert environment_proxy("http://api", {"HTTP_PROXY": "http://evil", "REQUEST_METHOD": "GET"}) == ""
