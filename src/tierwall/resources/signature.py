"""What changes when a file is written, replaced, comes or goes; looked at now and then, where reading costs more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

Signature: TypeAlias = tuple[tuple[str, int, int, int], ...]


def signature(paths: Sequence[str]) -> Signature:
    """Name, time, size and number of every file under some paths; what is not there is left out."""
    out: list[tuple[str, int, int, int]] = []
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        for file in files:
            try:
                found = os.stat(file)
            except OSError:
                continue
            out.append((file, found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(sorted(out))
