"""Seals: conditions that went out are recognised when they come back, without any state.

docs/semantics.md#conditions-come-back-as-they-left.

A condition set's seal is a MAC over everything that decides in it (failure mode, ids, effects, types, texts), carried
in the prefix of each id: `<mac>.seal.tierwall.io/name`. Whoever holds the key accepts what any holder sealed; a
condition that was changed, added, dropped or made up is refused before it is read. Descriptions and authorizer names
are not covered: the first may be left out on the way, and one wire shape drops the second.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from tierwall.api.algebra.condition import Condition, Conditional, ConditionSet
from tierwall.api.algebra.decision import Decision

DOMAIN = "seal.tierwall.io"


class SealError(ValueError):
    """Conditions that were not sealed with this key, or not in this form."""


class Sealer:
    """Seals and opens condition sets with one key."""

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError("a sealing key needs at least 16 bytes")
        self._key = key

    def sealed(self, decision: Decision) -> Decision:
        """The decision with its conditions sealed; a concrete one as it is."""
        if not isinstance(decision, Conditional):
            return decision
        mac = self._mac(decision.conditions)
        conditions = tuple(
            replace(condition, id=_join(mac, condition.id)) for condition in decision.conditions.conditions
        )
        return replace(decision, conditions=replace(decision.conditions, conditions=conditions))

    def opened(self, decision: Decision) -> Decision:
        """The decision with the seals taken off; SealError if one does not fit."""
        if not isinstance(decision, Conditional):
            return decision
        parts = [_split(condition.id) for condition in decision.conditions.conditions]
        conditions = tuple(
            replace(condition, id=id) for condition, (_, id) in zip(decision.conditions.conditions, parts, strict=True)
        )
        condition_set = replace(decision.conditions, conditions=conditions)
        mac = self._mac(condition_set)
        if not all(hmac.compare_digest(mac, given) for given, _ in parts):
            raise SealError("these conditions were not issued here, or were changed on the way")
        return replace(decision, conditions=condition_set)

    def _mac(self, conditions: ConditionSet) -> str:
        content = msgspec.json.encode([str(conditions.failure_mode), sorted(_content(conditions.conditions))])
        return hmac.digest(self._key, content, "sha256").hex()[:32]


def _content(conditions: Iterable[Condition]) -> Iterable[list[str]]:
    return ([condition.id, str(condition.effect), condition.type, condition.text] for condition in conditions)


def _join(mac: str, id: str) -> str:
    prefix, slash, name = id.rpartition("/")
    return f"{mac}.{prefix}.{DOMAIN}/{name}" if slash else f"{mac}.{DOMAIN}/{name}"


def _split(id: str) -> tuple[str, str]:
    whole, slash, name = id.rpartition("/")
    mac, _, rest = whole.partition(".")
    if not slash or (rest != DOMAIN and not rest.endswith(f".{DOMAIN}")):
        raise SealError("these conditions carry no seal")
    prefix = rest.removesuffix(DOMAIN).removesuffix(".")
    return mac, f"{prefix}/{name}" if prefix else name
