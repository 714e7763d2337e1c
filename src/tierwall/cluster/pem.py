"""Certificates and keys as PEM: inline, or in a file that may be replaced at any time (docs/clusters.md#keys)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tierwall.cluster.kubeconfig import kubeconfig_error
from tierwall.cluster.kubeconfig_entries import ConfidentialData

# The bundle of a system has a quarter of this.
MAX_PEM = 1 << 20
_BEGIN, _END, _DASHES = b"-----BEGIN ", b"-----END ", b"-----"


class PemData(ConfidentialData, frozen=True):
    """Certificates or a key: bytes, or the file that has them."""

    data: bytes = b""
    file: Path | None = None

    def read(self) -> bytes:
        """Return the bytes as they are now; InputError if the file cannot be read."""
        return self.data if self.file is None else read_small(self.file, MAX_PEM)

    def __bool__(self) -> bool:
        return bool(self.data) or self.file is not None


def read_small(file: Path, limit: int) -> bytes:
    """Read a file that a kubeconfig names; InputError if it cannot be read or is larger than that."""
    try:
        with file.open("rb") as opened:
            data = opened.read(limit + 1)
    except OSError as error:
        raise kubeconfig_error(f"`{file}` cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise kubeconfig_error(f"`{file}` is larger than {limit >> 20} MiB")
    return data


def certificates(data: bytes) -> list[bytes]:
    """Return the certificates of a text, each as PEM; other blocks and words between them do not count."""
    return [block for label, block in _blocks(data) if label == b"CERTIFICATE"]


def certificate_with_key(certificate: bytes, key: bytes) -> bytes:
    """Return a client's certificates and its key as one text. Either may stand in a file with other things."""
    keys = [block for label, block in _blocks(key) if label.endswith(b"PRIVATE KEY")]
    return b"\n".join((*certificates(certificate), *keys[:1]))


def _blocks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the blocks of a PEM text with their labels."""
    start, end = data.find(_BEGIN), 0
    while start >= 0:
        label_end = data.find(_DASHES, start + len(_BEGIN))
        if label_end < 0:
            return
        # Each end is looked for once, however many blocks begin before it.
        end = data.find(_END, label_end) if end < label_end else end
        if end < 0:
            return
        label = data[start + len(_BEGIN) : label_end]
        ending = _END + label + _DASHES
        if data.startswith(ending, end):
            yield label, data[start : end + len(ending)] + b"\n"
        start = data.find(_BEGIN, label_end)
