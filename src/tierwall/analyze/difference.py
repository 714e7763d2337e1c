"""A difference: one question that two snapshots answer differently (docs/compare.md#differences).

The question has the form of a policy test and can be asked again: `before` is what the old snapshot answers, `after`
what the new one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from tierwall.core.answer import Decider, Omission
from tierwall.core.reference import Reference
from tierwall.core.verdict import Verdict
from tierwall.gateway.detail import Setting
from tierwall.network.reach.compare import ADDED, CHANGED, REMOVED
from tierwall.resources.refused import MAX_EXAMPLES
from tierwall.resources.resource import Resource

Change: TypeAlias = Literal["opens", "closes", "alters"]
# What becomes of connections, in the words of a difference.
OF_CONNECTIONS: Mapping[str, Change] = {ADDED: "opens", REMOVED: "closes", CHANGED: "alters"}


class SettledVerdict(Struct, frozen=True):
    """The answer to a question before or after a change; `conditions` are those of a Conditional verdict."""

    verdict: Verdict
    decided_by: tuple[Decider, ...]
    conditions: tuple[str, ...] = ()
    # Whether every condition refuses, so that the request never passes.
    never_allows: bool = False

    @property
    def permits(self) -> bool:
        """Whether the request passes, at least under conditions."""
        return self.verdict in (Verdict.ALLOW, Verdict.CONDITIONAL) and not self.never_allows

    def __str__(self) -> str:
        by = ", ".join(map(str, self.decided_by))
        return f"{self.verdict}: {by}" if by else str(self.verdict)


class Difference(Struct, frozen=True, kw_only=True):
    """One question that a change answers differently."""

    plane: str
    change: Change
    # The question, with the keys of a policy test.
    question: Mapping[str, Any]
    # None where the question cannot be asked: an end or a way that does not exist; a setting that is not set.
    before: SettledVerdict | Setting | None
    after: SettledVerdict | Setting | None
    # The sentence in three parts. Differences that agree in the first and the last can be told in one sentence.
    words: tuple[str, str, str]
    # The setting that differs, on the gateway plane.
    field: str = ""
    # What the question stands for, in words, where that is more than itself: groups of ends, any other caller.
    covers: Mapping[str, str] = {}

    @property
    def sentence(self) -> str:
        """The difference in plain words."""
        return " ".join(filter(None, self.words))

    def __str__(self) -> str:
        return self.sentence


def change_of(before: SettledVerdict | None, after: SettledVerdict | None) -> Change | None:
    """Return what becomes of a request: it passes now, or no longer, or under other conditions; None if nothing."""
    then, now = (side is not None and side.permits for side in (before, after))
    if then != now:
        return "opens" if now else "closes"
    if not now or before is None or after is None:
        return None
    same = before.verdict is after.verdict and set(before.conditions) == set(after.conditions)
    return None if same else "alters"


def permission_words(before: SettledVerdict | None, after: SettledVerdict | None) -> tuple[str, str]:
    """Return the words before and after an action: `may now … under conditions`, `may no longer …`."""
    match change_of(before, after):
        case "opens":
            return "may now", "under conditions" if after and after.conditions else ""
        case "closes":
            return "may no longer", ""
        case _:
            then, now = (bool(side and side.conditions) for side in (before, after))
            return (
                "may",
                "under other conditions" if then and now else f"{'only under' if now else 'without'} conditions",
            )


def limits(objects: Iterable[Resource], effect: str) -> Iterator[Omission]:
    """Yield the objects that were not compared, or not in full, by kind."""
    by_kind: dict[tuple[str, str], dict[Reference, Resource]] = {}
    for resource in objects:
        by_kind.setdefault((resource.group, resource.kind), {}).setdefault(resource.reference, resource)
    for (group, kind), members in by_kind.items():
        yield Omission(
            reason="limit",
            kind=kind,
            group=group,
            count=len(members),
            examples=tuple(members)[:MAX_EXAMPLES],
            at=next(iter(members.values())).position(),
            effect=effect,
        )
