"""`tierwall envoy` asks for its certificate with the token of its pod, and never shows the token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.labs.recording_server import Authority
from tests.labs.waiting import PATIENCE_S
from tierwall.engines.envoy.config.options import SocketAddress
from tierwall.serve.gateway_proxy import GatewayProxy, ProxySettings

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("token", [b"", b"\n", b"secret\nsecret", b"secret\0", "secr\u00e9t".encode(), b"secr\xe9t"])
def test_a_file_without_a_token_is_named_and_not_shown(tmp_path: Path, token: bytes) -> None:
    (tmp_path / "token").write_bytes(token)
    (tmp_path / "ca.pem").write_bytes(Authority().pem)
    nobody = SocketAddress("127.0.0.1", 9)
    settings = ProxySettings(
        gateway="shop/agents",
        node="one",
        xds=(nobody,),
        certificates=nobody,
        server_name="controller",
        authority=tmp_path / "ca.pem",
        token=tmp_path / "token",
    )
    said: list[str] = []

    async def run() -> None:
        stop = asyncio.Event()

        def hear(message: str) -> None:
            said.append(message)
            if "certificate" in message:
                stop.set()

        async with asyncio.timeout(PATIENCE_S):
            await GatewayProxy(settings, hear).run(stop)

    asyncio.run(run())
    assert said[-1] == f"no certificate for Gateway shop/agents yet: `{tmp_path / 'token'}` does not hold a token"
    assert "secr" not in "".join(said).replace(str(tmp_path), "")
