"""The parts of a name: what is kept, what is replaced, and what is an address (docs/clusters.md#redact).

A name is replaced part by part: `web-0.shop` keeps its dash and its dot. Equal parts have equal stand-ins wherever they
stand, so `system:serviceaccount:shop:web` agrees with the ServiceAccount `web` in the namespace `shop`, and
`*.example.com` with the hosts below it. Words that belong to Kubernetes are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

from tierwall.redact.addresses import AddressTranslator
from tierwall.values.addresses import read_cidr, read_ip
from tierwall.values.pattern import pattern


class PartType(Enum):
    """Whether a part is kept, replaced by a stand-in, or translated as an address."""

    KEPT = "kept"
    TOKEN = "token"
    ADDRESS = "address"


NamePart: TypeAlias = tuple[PartType, str]

# What a list or a selector is made of: `app=web,tier in (front)`.
_WORD = pattern(r"[^\s,=!()\[\]{}\"'<>|;]+|[\s,=!()\[\]{}\"'<>|;]+")
# Names in the domains of Kubernetes, and Tierwall's own.
_OF_KUBERNETES = pattern(r"(?:[A-Za-z0-9_-]+\.)*(?:kubernetes\.io|(?:x-)?k8s\.io|tierwall\.io)(?:/[A-Za-z0-9._-]*)?")
_WITH_PORT = pattern(r"([0-9.]+)(:[0-9]+)")
_SYSTEM = (
    "masters|authenticated|unauthenticated|anonymous|serviceaccounts?|nodes?|bootstrap|bootstrappers|monitoring"
    "|apiserver|aggregated-api-server|controller|kube-scheduler|kube-controller-manager|kube-proxy|cloud-provider"
)
_KEPT_PART = (
    r"\A[a-z][a-z0-9+]*://"
    rf"|\Asystem(?::(?:{_SYSTEM})(?![A-Za-z0-9_-])|(?![A-Za-z0-9_]))"
    r"|(?<![A-Za-z0-9_-])kube(?![A-Za-z0-9_])(?:-(?:system|public|node|lease)(?![A-Za-z0-9_]))*+"
    r"|(?<![A-Za-z0-9_])default(?![A-Za-z0-9_])"
    # The pods that stand for a workload end in these.
    r"|(?<=-)[01](?![A-Za-z0-9_])"
    r"|(?<=/)(?:ns|sa)(?![A-Za-z0-9._-])"
    r"|(?<=\.)svc(?![A-Za-z0-9_-])"
    r"|(?<![A-Za-z0-9_-])cluster\.local(?![A-Za-z0-9_-])"
)
# Letters and digits of any script, and `_`, are parts; all other ASCII separates them.
_PART = pattern(rf"({_KEPT_PART})|([0-9A-Za-z_\x80-\U0010ffff]+)", re.ASCII)
_TOKEN = pattern(r"[0-9A-Za-z_\x80-\U0010ffff]+")
_DASHED = pattern(r"[0-9A-Za-z_-]+")
# Separators that sort after digits.
_HIGH = frozenset(":;<=>?@")
# The limit of a label's value and of what stands between the dots of a host; that of a name.
_MAX_LABEL, _MAX_NAME = 63, 253


def is_separator(char: str) -> bool:
    """Whether no part of a name can have this character."""
    return _TOKEN.fullmatch(char) is None


@lru_cache(maxsize=65536)
def parts_of(text: str) -> tuple[NamePart, ...]:
    """Return the parts of a text; separators are kept."""
    return tuple(part for match in _WORD.finditer(text) for part in _word_parts(match[0]))


def _word_parts(word: str) -> Iterator[NamePart]:
    if _is_address(word):
        yield PartType.ADDRESS, word
    elif (match := _WITH_PORT.fullmatch(word)) is not None and _is_address(match[1]):
        yield PartType.ADDRESS, match[1]
        yield PartType.KEPT, match[2]
    elif _OF_KUBERNETES.fullmatch(word) is not None:
        yield PartType.KEPT, word
    else:
        end = 0
        for match in _PART.finditer(word):
            if match.start() > end:
                yield PartType.KEPT, word[end : match.start()]
            yield (PartType.KEPT, match[1]) if match[1] is not None else (PartType.TOKEN, match[2])
            end = match.end()
        if end < len(word):
            yield PartType.KEPT, word[end:]


def _is_address(word: str) -> bool:
    if "." not in word and ":" not in word:
        return False
    return read_ip(word) is not None or read_cidr(word) is not None


def tokens_of(text: str) -> list[str]:
    """Return the parts of a text that are replaced unless they are kept."""
    return [part for kind, part in parts_of(text) if kind is PartType.TOKEN]


def kept_tokens_of(text: str) -> list[str]:
    """Return the parts of a text that are always kept, as far as stand-ins could be compared with them."""
    return [token for kind, part in parts_of(text) if kind is PartType.KEPT for token in _TOKEN.findall(part) if token]


def addresses_of(text: str) -> list[str]:
    """Return the addresses and blocks in a text."""
    return [part for kind, part in parts_of(text) if kind is PartType.ADDRESS]


@lru_cache(maxsize=65536)
def units_of(text: str) -> tuple[tuple[NamePart, ...], ...]:
    """Return the parts of a text in groups: parts with nothing but dashes between them are together."""
    groups: list[list[NamePart]] = [[]]
    for kind, part in parts_of(text):
        if kind is PartType.TOKEN or (kind is PartType.KEPT and _DASHED.fullmatch(part) is not None):
            groups[-1].append((kind, part))
        else:
            groups += ([(kind, part)], [])
    return tuple(tuple(group) for group in groups if group)


def dashed_names_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the groups of a text that have several parts, with the first part of each."""
    for group in units_of(text):
        if len(group) > 1:
            yield group[0][1], "".join(part for _, part in group)


def before_high_separators(text: str) -> Iterator[str]:
    """Yield the parts that a separator follows which sorts after digits: `a:b` sorts after `a0`, but `a-b` before."""
    for (kind, part), (after, separator) in pairwise(parts_of(text)):
        if kind is PartType.TOKEN and after is PartType.KEPT and separator[0] in _HIGH:
            yield part


class NameTranslator:
    """Replaces names.

    `whole` texts have one stand-in for all of their parts, and so have `dashed` names wherever they stand in a text.
    `unchanged` texts stay as they are. `names` are all names that the objects have.
    """

    def __init__(
        self,
        tokens: Mapping[str, str],
        addresses: AddressTranslator,
        labels: Set[str] = frozenset(),
        whole: Set[str] = frozenset(),
        dashed: Set[str] = frozenset(),
        unchanged: Set[str] = frozenset(),
        names: Set[str] = frozenset(),
    ) -> None:
        self.names = names
        self._tokens = tokens
        self._addresses = addresses
        self._labels = labels
        self._whole = whole
        self._dashed = dashed
        self._unchanged = unchanged
        self._known: dict[str, str] = {}

    def translate(self, text: str) -> str:
        """Return the stand-in of a name, host, address or any other text that is made of them."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._translate(text)
        return known

    def opaque(self, text: str) -> str:
        """Return one stand-in for a whole text."""
        return self._tokens.get(text, text)

    def is_too_long(self, text: str) -> bool:
        """Whether a name is short enough to be valid, but its stand-in is not."""
        result = self._joined(text)
        if len(text) <= _MAX_NAME < len(result) or (text in self._labels and len(text) <= _MAX_LABEL < len(result)):
            return True
        return any(
            len(before) <= _MAX_LABEL < len(after)
            for before, after in zip(text.split("."), result.split("."), strict=True)
        )

    def _translate(self, text: str) -> str:
        if text in self._unchanged:
            return text
        return self.opaque(text) if text in self._whole else self._joined(text)

    def _joined(self, text: str) -> str:
        if not self._dashed:
            return "".join([self._part(kind, part) for kind, part in parts_of(text)])
        return "".join([self._group(group) for group in units_of(text)])

    def _group(self, group: tuple[NamePart, ...]) -> str:
        if len(group) > 1 and (text := "".join([part for _, part in group])) in self._dashed:
            return self.opaque(text)
        return "".join([self._part(kind, part) for kind, part in group])

    def _part(self, kind: PartType, part: str) -> str:
        if kind is PartType.KEPT:
            return part
        if kind is PartType.TOKEN:
            return self._tokens.get(part, part)
        return self._addresses.translate(part)
