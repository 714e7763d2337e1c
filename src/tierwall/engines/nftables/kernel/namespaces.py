"""Network namespaces without names: each lives as long as a file descriptor to it, and ends with this process.

So nothing is left behind, whatever happens to the process: no names under /run/netns, no devices, no tables.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tierwall.core.diagnostics import Diagnostic, InputError

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkNamespace:
    """A new network namespace."""

    def __init__(self) -> None:
        home = _current()
        try:
            if _libc.unshare(_CLONE_NEWNET) != 0:
                code = ctypes.get_errno()
                message = f"cannot create a network namespace: {os.strerror(code).lower()}"
                hint = "run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN"
                raise InputError([Diagnostic("TW601", message, hint=hint)])
            self.descriptor = _current()
            _enter(home)
        finally:
            os.close(home)

    @property
    def path(self) -> str:
        """The path by which other programs can enter."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Put this thread, and the processes it starts, into the namespace. Sockets made meanwhile stay in it."""
        home = _current()
        try:
            _enter(self.descriptor)
            yield
        finally:
            _enter(home)
            os.close(home)

    def close(self) -> None:
        """Release the namespace; the kernel removes it after its last socket and process."""
        os.close(self.descriptor)


def _current() -> int:
    return os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
