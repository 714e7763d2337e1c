"""Files, folders and sockets that only this user can use, whatever the umask is: keys, logs, the way to an Envoy.

Other users of the machine may make files and links where everybody may write, such as `/tmp`. So nothing is created
through a link, and a link that another user made is not followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from tierwall.core.diagnostics import Diagnostic, InputError

# The kernel's limit for the path of a Unix socket, without the final zero byte (unix(7)).
MAX_SOCKET_PATH = 107
# Where sockets may be if the path of the usual temporary folder is too long.
_SHORT_FOLDERS = ("/run", "/tmp", "/dev/shm")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only this user can read; FileExistsError if anything has that name."""
    with os.fdopen(_create(path), "wb") as file:
        file.write(data)


def _create(path: Path, flags: int = 0) -> int:
    """Create a file; return its descriptor."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    os.fchmod(number, 0o600)
    return number


def append_private(path: Path) -> int:
    """Open a file for appending and return its descriptor; a new file can be read by this user only.

    An existing file keeps its owner and its permissions. OSError if another user has made a link there, or a file where
    everybody may write.
    """
    with contextlib.suppress(FileExistsError):
        return _create(path, os.O_APPEND)
    status = path.lstat()
    is_link = stat.S_ISLNK(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0) and (is_link or path.parent.stat().st_mode & stat.S_IWOTH):
        raise PermissionError(errno.EPERM, f"user {status.st_uid} has made it, and could read it")
    flags = os.O_CREAT if is_link else os.O_NOFOLLOW
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)


def readers(number: int) -> str:
    """Return who else can read or write an open file, or an empty string; devices and pipes have no readers."""
    status = os.fstat(number)
    if not stat.S_ISREG(status.st_mode):
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}"
    return f"its mode is {stat.S_IMODE(status.st_mode):04o}" if status.st_mode & _OTHERS else ""


def private_folder(longest: str = "admin.sock") -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder that only this user can enter; InputError if there is no place for it.

    The path of a socket in it is short enough; `longest` is the longest name of a socket.
    """
    reasons = []
    for parent in dict.fromkeys((tempfile.gettempdir(), *_SHORT_FOLDERS)):
        try:
            folder = tempfile.TemporaryDirectory(prefix="tierwall-envoy-", dir=parent)
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
            continue
        if len(os.fsencode(Path(folder.name) / longest)) <= MAX_SOCKET_PATH:
            os.chmod(folder.name, 0o700)
            return folder
        folder.cleanup()
        reasons.append(f"{parent}: its path is too long for a socket")
    raise InputError([Diagnostic("TW641", f"there is no folder for private sockets: {'; '.join(reasons)}")])


def folder_problem(folder: Path) -> str:
    """Return why others may reach what is in a folder, or an empty string; a missing folder is created."""
    with contextlib.suppress(FileExistsError):
        try:
            folder.mkdir(0o700)
            folder.chmod(0o700)
        except FileNotFoundError:
            return "the folder above it does not exist"
        except PermissionError as error:
            return str(error.strerror)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}"
    return f"other users may enter it (mode {stat.S_IMODE(status.st_mode):04o})" if status.st_mode & _OTHERS else ""
