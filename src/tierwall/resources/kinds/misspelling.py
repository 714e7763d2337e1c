"""Near misses of kinds and groups that Tierwall judges (docs/reference/sources.md#misspelled-kinds).

An API server would refuse such an object, and its author believes that it is in force. An object is a near miss if no
table has its group and kind (the kinds of Kubernetes and Gateway API, those of Tierwall, the foreign ones), and

* its group is one that Tierwall judges, and its kind has nearly the letters of a judged kind of that group;
* or its group is one of Kubernetes or ends in `k8s.io`, and its kind is, nearly or exactly, a judged one of another
  group; a missing group counts as the core group;
* or its group is one of which Tierwall knows every kind.

Kinds with fewer than six letters are not compared.

Whoever has the CustomResourceDefinitions among the objects asks them first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from tierwall.core.diagnostics import near_miss
from tierwall.resources.kinds.registry import is_built_in, judged_kinds, versions_of
from tierwall.resources.kinds.served import foreign_kinds, is_kubernetes_group, is_kubernetes_kind

_SHORTEST = 6
# An API has no longer words: they are not compared, which would take long.
_LONGEST = 63
# Every kind of these groups is known: any other kind is a mistake.
_WHOLE_GROUPS = frozenset(
    {
        "policy.networking.k8s.io",
        "rbac.authorization.k8s.io",
        "tierwall.io",
        "agentic.networking.x-k8s.io",
        "agentic.prototype.x-k8s.io",
    }
)


class MisspelledKind(NamedTuple):
    """The kind that was meant, as far as that is clear, and a hint."""

    group: str
    kind: str
    hint: str


@lru_cache(maxsize=1024)
def misspelled_kind(group: str, kind: str) -> MisspelledKind | None:
    """Return the judged kind that an object was meant to be of; None if it is of a known kind or of a strange one."""
    kinds = judged_kinds()
    if is_built_in(group, kind) or is_kubernetes_kind(group, kind):
        return None
    if kind in foreign_kinds(group, "namespaced", "everywhere"):
        return None
    meant = _meant(group, kind, kinds)
    if meant is not None:
        return meant
    if group in _WHOLE_GROUPS:
        return MisspelledKind(group, kinds[group][0], near_miss(kind, kinds[group]))
    return None


def _meant(group: str, kind: str, kinds: dict[str, tuple[str, ...]]) -> MisspelledKind | None:
    if len(kind) > _LONGEST:
        return None
    is_upstream = is_kubernetes_group(group) or group == "k8s.io" or group.endswith((".k8s.io", "-k8s.io"))
    if len(kind) >= _SHORTEST:
        for name in _nearest(kind, kinds.get(group, ())):
            return MisspelledKind(group, name, f"did you mean `{name}`?")
    elif kind.lower() in {name.lower() for name in kinds.get(group, ())}:
        name = next(name for name in kinds[group] if name.lower() == kind.lower())
        return MisspelledKind(group, name, f"did you mean `{name}`?")
    if not is_upstream or len(kind) < _SHORTEST:
        return None
    homes = {name: home for home, names in kinds.items() for name in names}
    for name in _nearest(kind, homes):
        home = homes[name]
        versions = " or ".join(f"`{version}`" for version in versions_of(home, name))
        word = "" if name == kind else f"`{name}` and "
        return MisspelledKind(home, name, f"use {word}apiVersion {versions}")
    return None


def _nearest(word: str, known: Iterable[str]) -> Iterator[str]:
    """Yield the known words that differ from a word in case or in few letters, the nearest first."""
    limit = 1 if len(word) < 8 else 2
    lower = word.lower()
    if lower.endswith("ies"):
        lower = f"{lower[:-3]}y"  # `NetworkPolicies`; other plurals differ in one letter.
    ranked = ((_distance(lower, name.lower(), limit), name) for name in known)
    yield from (name for distance, name in sorted(ranked) if distance <= limit)


def _distance(word: str, other: str, limit: int) -> int:
    """Return how many letters must be added, dropped, changed or swapped with the next; a number over `limit` if many.

    This is the optimal string alignment distance.
    """
    if abs(len(word) - len(other)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for index, letter in enumerate(word, 1):
        older, before, row = before, row, [index]
        for column, wanted in enumerate(other, 1):
            cost = min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != wanted))
            if index > 1 and column > 1 and letter == other[column - 2] and word[index - 2] == wanted:
                cost = min(cost, older[column - 2] + 1)
            row.append(cost)
    return row[-1]
