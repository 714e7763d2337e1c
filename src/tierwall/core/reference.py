"""References: `Kind/namespace/name` or `Kind/name`, optionally with `#section` (docs/concepts.md#glossary).

An ambiguous kind has its group, as in kubectl: `NetworkPolicy.crd.antrea.io/shop/web`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Reference(NamedTuple):
    """A reference to one object, in the object's own spelling of the kind. `group` is set only for ambiguous kinds."""

    kind: str
    namespace: str
    name: str
    section: str = ""
    group: str = ""

    def __str__(self) -> str:
        kind, namespace, name, section, group = self
        if group:
            kind = f"{kind}.{group}"
        place = f"{kind}/{namespace}/{name}" if namespace else f"{kind}/{name}"
        return f"{place}#{section}" if section else place

    @classmethod
    def parse_or_string(cls, text: str) -> Reference | str:
        """Parse a reference; return a string that is not a reference unchanged."""
        try:
            reference = cls.parse(text)
        except ValueError:
            return text
        return reference if str(reference) == text else text

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse a reference; raise ValueError if it is malformed."""
        body, _, section = text.partition("#")
        parts = body.split("/")
        if not 2 <= len(parts) <= 3 or not all(parts):
            raise ValueError(f"expected `Kind/namespace/name` or `Kind/name`, found `{text}`")
        kind, *place = parts
        kind, _, group = kind.partition(".")
        return cls(kind, place[0] if len(place) == 2 else "", place[-1], section, group)


def full_name(name: T, namespace: str) -> T | str:
    """Put a namespace into a name that has none: `web-0` or `Service/db`. Anything else stays as it is."""
    if not isinstance(name, str) or not name:
        return name
    return full_reference(name, namespace) if "/" in name else f"{namespace}/{name}"


def full_reference(name: T, namespace: str) -> T | str:
    """Put a namespace into a reference that has none: `HTTPRoute/api`. Anything else stays as it is.

    A kind begins with a capital letter, which no namespace does.
    """
    if not isinstance(name, str):
        return name
    first, _, rest = name.partition("/")
    return f"{first}/{namespace}/{rest}" if first[:1].isupper() and rest and "/" not in rest else name


def named_namespaces(texts: Iterable[str]) -> set[str]:
    """Return the namespaces in names such as `namespace/name` and `Kind/namespace/name`."""
    parts = [text.split("/") for text in texts]
    return {part[-2] for part in parts if len(part) in (2, 3)}
