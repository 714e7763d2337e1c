"""Gaps of a snapshot: what could not be read from a cluster (docs/reference/sources.md#what-could-not-be-read).

A kind that this user may not list, or whose API did not answer, is an omission of each answer that its objects could
change, and of no other: a question has a stake in a kind if its plane reads the kind, in the namespaces that it is
about. Names that are not found because their kind could not be read are said to be unknown, not to be absent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from tierwall.core.answer import Omission, plural
from tierwall.core.words import join_names
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.unlisted import UnlistedKind

REPLACED = "replaced"


class KindStake(NamedTuple):
    """The stake of a question in a kind: the effect if objects are not known, and where they matter.

    `namespaces` is None if objects of every namespace matter.
    """

    effect: str
    namespaces: Collection[str] | None = None
    owner: str | None = None


def gaps(snapshot: Snapshot, stake_in: Callable[[KindKey], KindStake | None]) -> Iterator[Omission]:
    """Yield what could not be read, in the order of kinds, as far as a question has a stake in it."""
    for entry in snapshot.unlisted:
        if entry.reason == REPLACED:
            continue
        stake = stake_in((entry.group, entry.kind))
        if stake is None:
            continue
        known_everywhere = not entry.is_namespaced and not entry.read_namespaces
        missing = entry.namespaces if known_everywhere else entry.missing(stake.namespaces)
        if missing is not None:
            yield Omission(
                reason=entry.reason,
                kind=entry.kind or None,
                group=entry.group,
                owner=stake.owner,
                count=1,
                namespaces=missing,
                effect=stake.effect,
                why=_why(entry, missing),
            )


def _why(entry: UnlistedKind, missing: tuple[str, ...]) -> str:
    # Without the names of the others, those that were read tell more. Namespaces are in no namespace.
    is_local = (entry.group, entry.kind) != ("", "Namespace")
    where = f" in {join_names(missing)}" if missing and is_local else ""
    only = join_names(entry.read_namespaces) if is_local and not missing else ""
    if entry.reason == "forbidden":
        return f"you may list them only in {only}" if only else f"you may not list them{where}"
    return f"they could not be read{f' outside of {only}' if only else where}: {entry.message}"


def joined(omissions: Iterable[Omission]) -> tuple[Omission, ...]:
    """Join the omissions of several planes: a kind that matters to several of them is named once, with all effects."""
    by_kind: dict[object, Omission] = {}
    for omission in omissions:
        key = (omission.reason, omission.group, omission.kind, omission.why) if omission.why else omission
        first = by_kind.setdefault(key, omission)
        if omission.effect not in first.effect:
            by_kind[key] = replace(first, effect=f"{first.effect}; {omission.effect}")
    return tuple(by_kind.values())


def replacements(snapshot: Snapshot, namespaces: Collection[str] | None) -> Iterator[Omission]:
    """Yield the pods of a cluster that a file replaces by those of its template."""
    for entry in snapshot.unlisted:
        if entry.reason == REPLACED and (namespaces is None or any(map(entry.is_missing_in, namespaces))):
            yield Omission(
                reason=entry.reason,
                kind=entry.kind,
                group=entry.group,
                count=entry.count,
                namespaces=entry.namespaces,
                effect=entry.message,
            )


def unknown_because(snapshot: Snapshot, kinds: Iterable[KindKey], namespace: str = "") -> str:
    """Return why nobody knows whether an object of some kinds exists in a namespace; empty if all were read there."""
    wanted = set(kinds)
    for entry in snapshot.unlisted:
        if entry.reason != REPLACED and (entry.group, entry.kind) in wanted and entry.is_missing_in(namespace):
            where = f" in {namespace}" if namespace else ""
            name = plural(entry.kind)
            if entry.reason == "forbidden":
                return f"you may not list {name}{where}"
            return f"{name}{where} could not be read: {entry.message}"
    return ""


def missing(snapshot: Snapshot, what: str, hint: str, kinds: Iterable[KindKey], namespace: str = "") -> tuple[str, str]:
    """Return the message and the hint about a name that no object of some kinds has."""
    because = unknown_because(snapshot, kinds, namespace)
    if not because:
        return f"there is no {what}", hint
    article = "an" if what.startswith(("A", "E", "I", "O", "X", "HTTP")) else "a"
    return f"whether there is {article} {what} is not known: {because}", hint
