"""References: `Kind/namespace/name`, `Kind/name` if cluster-scoped; `#section` may follow (docs/concepts.md#glossary).

A kind that is ambiguous carries its group, as kubectl writes it: `NetworkPolicy.crd.antrea.io/shop/web`.
"""

from __future__ import annotations

from typing import NamedTuple


class Reference(NamedTuple):
    """One object, by its own spelling of the kind. `group` is given only where the kind alone is ambiguous."""

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
    def or_text(cls, text: str) -> Reference | str:
        """The reference that a text spells; a text that spells none stays one."""
        try:
            reference = cls.parse(text)
        except ValueError:
            return text
        return reference if str(reference) == text else text

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a reference; ValueError says what is wrong with it."""
        body, _, section = text.partition("#")
        parts = body.split("/")
        if not 2 <= len(parts) <= 3 or not all(parts):
            raise ValueError(f"expected `Kind/namespace/name` or `Kind/name`, found `{text}`")
        kind, *place = parts
        kind, _, group = kind.partition(".")
        return cls(kind, place[0] if len(place) == 2 else "", place[-1], section, group)
