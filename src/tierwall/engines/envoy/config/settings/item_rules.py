"""The rules of `backend.mcp.authorization` about items, as a reader of lists needs them (`control.item_view`).

Envoy judges each use of an item by itself. Which entries of a list a caller may use, the control plane says; the route
tells it the name of the rules, in a header that clients cannot send. The name is a digest of the rules: whoever knows
the name knows exactly these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from tierwall.resources.resource import nested_map


class ItemRules(Struct, frozen=True):
    """The expressions of all levels, each with its action, and the name of the server in them."""

    target: str
    expressions: tuple[tuple[str, str], ...]
    # The actions of the values: an Allow without expressions allows nothing.
    actions: frozenset[str]

    @classmethod
    def of(cls, values: Iterable[Mapping[str, Any]], target: str) -> ItemRules:
        """Return the rules of the values of a field."""
        expressions: list[tuple[str, str]] = []
        actions: set[str] = set()
        for value in values:
            action = value.get("action", "Allow")
            actions.add(action)
            texts: Sequence[Any] = nested_map(value, "policy").get("matchExpressions") or ()
            expressions += ((action, str(text)) for text in texts)
        return cls(target, tuple(expressions), frozenset(actions))

    @property
    def name(self) -> str:
        """A name that only these rules have."""
        content = repr((self.target, self.expressions, sorted(self.actions)))
        return blake2b(content.encode(), digest_size=16).hexdigest()
