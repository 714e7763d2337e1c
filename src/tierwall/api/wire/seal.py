"""Seals, which recognise conditions that come back without keeping any state.

docs/semantics.md#conditions-come-back-as-they-left.

A condition set's seal is a MAC over everything that decides in it (failure mode, ids, effects, types, texts), carried
in the prefix of each id: `<mac>.seal.tierwall.io/name`. Every holder of the key accepts what another holder sealed. A
condition that was changed, added, dropped or forged is refused before it is read. The seal does not cover descriptions,
which may be left out on the way, and authorizer names, which one wire shape drops.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from tierwall.api.algebra.condition import Condition, ConditionalDecision, ConditionSet
from tierwall.api.algebra.decision import Decision

DOMAIN = "seal.tierwall.io"


class SealError(ValueError):
    """Conditions were not sealed with this key, or not in this form."""


class Sealer:
    """Seals and unseals condition sets with one key."""

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError("a sealing key needs at least 16 bytes")
        self._key = key

    def seal(self, decision: Decision) -> Decision:
        """Seal the conditions of a decision; a concrete decision stays as it is."""
        if not isinstance(decision, ConditionalDecision):
            return decision
        mac = self._mac(decision.conditions)
        conditions = tuple(
            replace(condition, id=_join(mac, condition.id)) for condition in decision.conditions.conditions
        )
        return replace(decision, conditions=replace(decision.conditions, conditions=conditions))

    def unseal(self, decision: Decision) -> Decision:
        """Remove the seals from a decision; SealError if one is not valid."""
        if not isinstance(decision, ConditionalDecision):
            return decision
        parts = [_split(condition.id) for condition in decision.conditions.conditions]
        conditions = tuple(
            replace(condition, id=id) for condition, (_, id) in zip(decision.conditions.conditions, parts, strict=True)
        )
        condition_set = replace(decision.conditions, conditions=conditions)
        mac = self._mac(condition_set)
        if not all(hmac.compare_digest(mac, sent_mac) for sent_mac, _ in parts):
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
        raise SealError("these conditions have no seal")
    prefix = rest.removesuffix(DOMAIN).removesuffix(".")
    return mac, f"{prefix}/{name}" if prefix else name
