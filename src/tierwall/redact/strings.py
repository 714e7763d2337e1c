"""Classes of strings in an expression, and its tests on names (docs/clusters.md#redact): see `redact.expressions`."""

from __future__ import annotations

import msgspec

from tierwall.redact.fields import TextType
from tierwall.redact.words import is_separator

NAMES = frozenset(
    (
        *(TextType.NAME, TextType.NAMESPACE, TextType.USER, TextType.GROUP, TextType.HOST, TextType.ADDRESS),
        *(TextType.LABEL_KEY, TextType.LABEL_VALUE, TextType.HEADER, TextType.OTHER),
    )
)
LOWER = "lowerAscii"
# Of a rule that matches headers: the pattern matches the whole value.
FULL_MATCH = "fullmatch"


class NameCheck(msgspec.Struct, frozen=True):
    """A test that looks inside names: `startsWith`, `endsWith`, `contains` or `matches` of a constant."""

    function: str
    constant: str
    types: frozenset[TextType]
    at: int

    @property
    def keeps_parts(self) -> bool:
        """Whether the constant begins and ends where parts of names do, so that its stand-in tells the same."""
        return keeps_parts(self.function, self.constant)


def keeps_parts(function: str, text: str) -> bool:
    """Whether the text that a function looks for begins and ends where parts of names do."""
    begins = function == "startsWith" or is_separator(text[:1] or " ")
    ends = function == "endsWith" or is_separator(text[-1:] or " ")
    return function not in ("matches", FULL_MATCH, LOWER) and begins and ends


class StringClass:
    """Values that are compared with each other, and the constants among them by offset."""

    def __init__(self, *types: TextType) -> None:
        self.types: set[TextType] = set(types)
        self.constants: dict[int, str] = {}
        self.checks: list[tuple[str, str, int]] = []
        self.is_opaque = False
        self.is_map = False
        # Whether values are made of several: a test on them cannot be tried on names.
        self.is_composed = False
        self._parent: StringClass | None = None
        self._inner: StringClass | None = None
        self._keys: StringClass | None = None

    @property
    def root(self) -> StringClass:
        """The class that this class has become a part of."""
        here = self
        while here._parent is not None:
            here = here._parent
        return here

    @property
    def is_container(self) -> bool:
        """Whether something is known about values in it: it is a list or a map."""
        root = self.root
        return root.is_map or root._inner is not None or root._keys is not None

    def look_into(self) -> None:
        """Note that nothing is known about what is done with the values, or with those in them."""
        waiting = [self.root]
        while waiting:
            root = waiting.pop().root
            root.is_opaque = True
            waiting += (part for part in (root._inner, root._keys) if part is not None and not part.root.is_opaque)

    @property
    def inner(self) -> StringClass:
        """The class of the values in this list or map."""
        root = self.root
        if root._inner is None:
            # What is in a value that is kept is kept.
            root._inner = StringClass(*(root.types & {TextType.KEPT}))
        return root._inner.root

    @property
    def keys(self) -> StringClass:
        """The class of the keys of this map."""
        root = self.root
        if root._keys is None:
            root._keys = StringClass(*(root.types & {TextType.KEPT}))
        return root._keys.root

    def join(self, other: StringClass) -> None:
        """Make one class of two."""
        pairs = [(self, other)]
        while pairs:
            first, second = (member.root for member in pairs.pop())
            if first is second:
                continue
            second._parent = first
            first.types |= second.types
            first.constants |= second.constants
            first.checks += second.checks
            first.is_opaque |= second.is_opaque
            first.is_map |= second.is_map
            first.is_composed |= second.is_composed
            for mine, theirs in ((first._inner, second._inner), (first._keys, second._keys)):
                if mine is not None and theirs is not None:
                    pairs.append((mine, theirs))
            first._inner = first._inner or second._inner
            first._keys = first._keys or second._keys
