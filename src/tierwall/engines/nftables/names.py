"""Names and comments of the table.

A chain or set is named by a digest of what it stands for, so that the same policies always give the same names and
two parts that mean the same are one. User text never becomes an identifier; in comments it is reduced to harmless
characters and to the length that nftables takes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

# nftables takes 128 octets with the closing zero.
MOST_COMMENT = 127
# A log prefix has the same limit in the kernel (NF_LOG_PREFIXLEN).
MOST_PREFIX = 127

_HARMFUL = re.compile(r"[^A-Za-z0-9 /._:;,()\[\]#=!*+-]")
_SHORT, _STEP = 12, 8


class Names:
    """Gives each meaning its own name; two meanings never share one, even if someone seeks collisions."""

    def __init__(self) -> None:
        self._meanings: dict[str, str] = {}

    def name(self, kind: str, meaning: str) -> str:
        """`kind_<digest>`."""
        digest = hashlib.sha256(meaning.encode(errors="surrogatepass")).hexdigest()
        for length in range(_SHORT, len(digest) + 1, _STEP):
            found = f"{kind}_{digest[:length]}"
            if self._meanings.setdefault(found, meaning) == meaning:
                return found
        raise AssertionError("two texts with one SHA-256 digest")


def comment(text: str, most: int = MOST_COMMENT) -> str:
    """A text fit for a comment; one that is too long keeps its start and gets a digest of the whole."""
    clean = _HARMFUL.sub("?", text)
    if len(clean) <= most:
        return clean
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{clean[: most - 9]}+{digest}"


def marked(rules: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Rules with a digest of them as the comment of the first, and their mark."""
    lines = tuple(rules)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_SHORT]
    return (f'{lines[0]} comment "{digest}"', *lines[1:]), f"{digest} {len(lines)}"
