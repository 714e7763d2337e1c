"""Lookups of pod interfaces other than the kernel's routes: a command, or the results that CNI plugins leave.

The command runs as `COMMAND namespace/name`, without a shell, and prints the pod's interfaces, one per line. It gets
`SECONDS` and may print `MAX_BYTES`. A command that fails, hangs or prints anything else leaves its pod unknown and is
asked again later. Commands run side by side, and nothing waits for them except the first table. An answer holds for
as long as the pod has the same addresses and the interface is the same one, whatever its name.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import NamedTuple

import msgspec

from tierwall.engines.nftables.kernel.interfaces import NAME
from tierwall.engines.nftables.kernel.links import NetworkLink
from tierwall.network.model.endpoints import Endpoint
from tierwall.values.addresses import Address

SECONDS, MAX_BYTES = 5.0, 4096
# How long to wait for all commands together before the first table, and when to ask again after a failure.
SETTLE_SECONDS, RETRY_SECONDS = 10.0, 5.0
_AT_ONCE = 8
_LOOPBACK = "lo"

_PodKey = tuple[str, tuple[Address, ...]]


class _Answer(NamedTuple):
    """The answer of a command: interfaces or a problem, and when it came."""

    names: tuple[str, ...]
    problem: str
    at: float


class CommandLookup:
    """Asks a command for the interfaces of each pod."""

    def __init__(self, command: Iterable[str]) -> None:
        self._command = tuple(command)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="interface-of")
        self._asked: dict[_PodKey, Future[_Answer]] = {}
        # The number of each interface when its pod's answer was first used.
        self._numbers: dict[_PodKey, dict[str, int]] = {}
        self._wrong: dict[str, str] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def names(self, pod: Endpoint, links: Mapping[str, NetworkLink]) -> tuple[str, ...]:
        """Return the interfaces that the command printed; none while it runs, or if it failed."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)
        key = str(pod), pod.addresses
        future = self._ask(key)
        if not future.done():
            self._wrong[str(pod)] = "the command has not answered yet"
            return ()
        answer = future.result()
        problem = answer.problem or next((_problem(name, links) for name in answer.names if _problem(name, links)), "")
        numbers = {name: links[name].number for name in answer.names if name in links}
        if not problem and self._numbers.setdefault(key, numbers) != numbers:
            problem = "its interface was replaced"
            self._asked.pop(key)
            self._numbers.pop(key)
            self._ask(key)
        if problem:
            self._wrong[str(pod)] = problem
            if time.monotonic() - answer.at > RETRY_SECONDS:
                self._asked.pop(key, None)
                self._ask(key)
            return ()
        self._wrong.pop(str(pod), None)
        return answer.names

    def settle(self, pods: Iterable[Endpoint], links: Mapping[str, NetworkLink]) -> None:
        """Wait until the command has answered for these pods, or taken too long."""
        wait([self._ask((str(pod), pod.addresses)) for pod in pods], SETTLE_SECONDS)

    def problems(self) -> Mapping[str, str]:
        """Return why the interfaces of some pods are not known, by pod."""
        return self._wrong

    def forget_others(self, pods: Iterable[Endpoint]) -> None:
        """Forget all pods but these, so that a pod that comes back is asked about again."""
        keys = {(str(pod), pod.addresses) for pod in pods}
        for key in self._asked.keys() - keys:
            self._asked.pop(key).cancel()
            self._numbers.pop(key, None)
        names = {name for name, _ in keys}
        self._wrong = {name: problem for name, problem in self._wrong.items() if name in names}

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when the command has answered."""
        return self._woken

    def close(self) -> None:
        """End all commands under way."""
        with self._lock:
            self._is_closed = True
            for process in self._running:
                _kill(process)
        self._pool.shutdown(cancel_futures=True)
        os.close(self._woken)

    def _ask(self, key: _PodKey) -> Future[_Answer]:
        future = self._asked.get(key)
        if future is None:
            future = self._asked[key] = self._pool.submit(self._run, key[0])
        return future

    def _run(self, pod: str) -> _Answer:
        try:
            names, problem = self._answer(pod), ""
        except (OSError, ValueError) as error:
            names, problem = (), str(error)
        answer = _Answer(names, problem, time.monotonic())
        os.eventfd_write(self._woken, 1)
        return answer

    def _answer(self, pod: str) -> tuple[str, ...]:
        """Run the command for one pod; ValueError or OSError says what is wrong with it or its answer."""
        # A session of its own, so that whatever the command starts ends with it.
        with self._lock:
            if self._is_closed:
                raise ValueError("nobody asks any more")
            process = subprocess.Popen(
                [*self._command, pod],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output = _read(process, time.monotonic() + SECONDS)
        finally:
            with self._lock:
                self._running.discard(process)
            _kill(process)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        return _parse(output)


def _read(process: subprocess.Popen[bytes], until: float) -> bytes:
    """Read what a process prints until it ends; ValueError if it fails, takes too long or prints too much."""
    assert process.stdout is not None
    output = b""
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    while True:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise ValueError(f"the command took longer than {SECONDS:g} seconds")
        chunk = os.read(process.stdout.fileno(), MAX_BYTES)
        if not chunk:
            break
        output += chunk
        if len(output) > MAX_BYTES:
            raise ValueError(f"the command printed more than {MAX_BYTES} bytes")
    try:
        code = process.wait(max(0.01, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise ValueError(f"the command took longer than {SECONDS:g} seconds") from None
    if code:
        raise ValueError(f"the command ended with code {code}")
    return output


def _parse(output: bytes) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(output.decode(errors="replace").split()))
    if not names:
        raise ValueError("the command printed nothing")
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"expected names of interfaces from the command, found {name[:40]!a}")
    return names


def _problem(name: str, links: Mapping[str, NetworkLink]) -> str:
    """Return why a name cannot be the interface of a pod; empty if it can."""
    if name not in links:
        return f"there is no interface `{name}`"
    if name == _LOOPBACK:
        return f"`{name}` is the loopback interface"
    return f"`{name}` leads to a gateway or has an address of a node" if links[name].is_uplink else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and whatever it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


_MAX_RESULT_BYTES = 1 << 20
# Kinds of devices that many pods share.
_SHARED = ("bridge",)


class CniLookup:
    """Reads the results that CNI plugins leave in a folder, one file for each interface of each pod (`cniCacheV1`).

    A result lists the interfaces that the plugin made. Those outside the pod's sandbox are the pod's on this machine.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._read: dict[str, tuple[tuple[int, int, int], str, tuple[str, ...]]] = {}
        self._by_pod: dict[str, list[str]] = {}
        self._wrong: dict[str, str] = {}
        self._read_at = float("-inf")

    def names(self, pod: Endpoint, links: Mapping[str, NetworkLink]) -> tuple[str, ...]:
        """Return the interfaces of a pod that still exist."""
        if time.monotonic() - self._read_at > 0.1:
            self._look()
        names = [name for name in self._by_pod.get(str(pod), ()) if name in links]
        usable = tuple(name for name in names if links[name].kind not in _SHARED and not _problem(name, links))
        usable = tuple(filter(NAME.fullmatch, usable))
        if usable:
            self._wrong.pop(str(pod), None)
        elif pod.addresses:
            self._wrong[str(pod)] = f"no result in `{self._folder}` names an interface of it"
        return usable

    def settle(self, pods: Iterable[Endpoint], links: Mapping[str, NetworkLink]) -> None:
        """Return at once: files are read when they are needed."""

    def problems(self) -> Mapping[str, str]:
        """Return why the interfaces of some pods are not known, by pod."""
        return self._wrong

    def forget_others(self, pods: Iterable[Endpoint]) -> None:
        """Forget the problems of other pods."""
        names = {str(pod) for pod in pods}
        self._wrong = {name: problem for name, problem in self._wrong.items() if name in names}

    def fileno(self) -> int:
        """Return -1: the folder is looked at again whenever interfaces change, and while pods are missing."""
        return -1

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _look(self) -> None:
        """Read the files that are new or changed."""
        seen = {}
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError, ValueError, msgspec.MsgspecError):
                    status = entry.stat()
                    version = status.st_mtime_ns, status.st_size, status.st_ino
                    before = self._read.get(entry.name)
                    if before is not None and before[0] == version:
                        seen[entry.name] = before
                    elif entry.is_file() and status.st_size <= _MAX_RESULT_BYTES:
                        with open(entry.path, "rb") as file:
                            seen[entry.name] = (version, *_result(file.read(_MAX_RESULT_BYTES)))
        self._read = seen
        self._by_pod = {}
        for _, pod, names in seen.values():
            self._by_pod.setdefault(pod, []).extend(names)
        self._read_at = time.monotonic()


class _CniInterface(msgspec.Struct):
    name: str
    sandbox: str = ""


class _CniResult(msgspec.Struct):
    interfaces: list[_CniInterface] = []


class _CniCache(msgspec.Struct, rename="camel"):
    cni_args: list[list[str]] = []
    result: _CniResult = msgspec.field(default_factory=_CniResult)


def _result(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the pod of a cached result, and the interfaces outside its sandbox."""
    cache = msgspec.json.decode(data, type=_CniCache)
    arguments = {pair[0]: pair[1] for pair in cache.cni_args if len(pair) == 2}
    pod = f"{arguments.get('K8S_POD_NAMESPACE', '')}/{arguments.get('K8S_POD_NAME', '')}"
    return pod, tuple(interface.name for interface in cache.result.interfaces if not interface.sandbox)
