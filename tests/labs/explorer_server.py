"""An explorer on loopback, in a thread of the test, over a folder that the test may change."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx

from tests.labs.waiting import PATIENCE_S
from tierwall.resources.load import Loader, LoadSettings
from tierwall.serve.explorer.followed import ExplorerFollower
from tierwall.serve.explorer.run import ExplorerServer, ExplorerSettings
from tierwall.serve.files import FileSource


class ExplorerLab:
    """A running explorer. `client` has the cookie; `stranger` has not."""

    def __init__(self, *paths: Path, hosts: tuple[str, ...] = (), port: int = 0, **tls: str) -> None:
        names = tuple(map(str, paths))
        self._source = FileSource(Loader(names, LoadSettings(), leaves_out=True))
        self.follower = ExplorerFollower("-f manifests", ", ".join(path.name for path in paths))
        self.follower.begin(self._source)
        self.server = ExplorerServer(self.follower, ExplorerSettings(host="127.0.0.1", port=port, hosts=hosts, **tls))
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="explorer", daemon=True)
        self._thread.start()
        self.client = httpx.Client(base_url=self.server.origin, timeout=60)
        self.stranger = httpx.Client(base_url=self.server.origin, timeout=60)
        self.client.cookies.set(self.server.access.cookie, self.server.access.token)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.server.run(self._source, self._stop, lambda noticed: None))
        self._loop.close()

    def close(self) -> None:
        self.client.close()
        self.stranger.close()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the explorer does not stop"
