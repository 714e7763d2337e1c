"""Compares two snapshots: what a change of policies opens, closes or alters, plane by plane.

Only the network plane can be compared today. Asking for another plane is an error, not an empty answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from tierwall.core.answer import Decider
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.core.verdict import Verdict
from tierwall.network.reach.compare import ADDED, CHANGED, REMOVED, ChangedFlow, compare_connections
from tierwall.network.reach.listing import ConnectionEntry, ConnectionFlow
from tierwall.resources.snapshot import Snapshot

PLANES = ("network",)

Change: TypeAlias = Literal["opens", "closes", "alters"]
_CHANGES: Mapping[str, Change] = {ADDED: "opens", REMOVED: "closes", CHANGED: "alters"}
_VERBS = {"opens": "can now reach", "closes": "can no longer reach", "alters": "can reach, by other domain names,"}


class SettledVerdict(Struct, frozen=True):
    """The answer to a question before or after a change."""

    verdict: Verdict
    decided_by: tuple[Decider, ...]


class Difference(Struct, frozen=True):
    """One question that a change answers differently."""

    plane: str
    change: Change
    # The question, with the keys of a policy test. Its endpoints may be groups.
    question: Mapping[str, str]
    before: SettledVerdict | None
    after: SettledVerdict | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def differences(old: Snapshot, new: Snapshot, planes: Sequence[str] | None = None) -> Iterator[Difference]:
    """Yield everything that differs, the network plane first. Raise InputError for a plane that cannot be compared."""
    unknown = [plane for plane in planes or () if plane not in PLANES]
    if unknown:
        expected = f"expected one of {', '.join(PLANES)} as plane"
        raise InputError(
            Diagnostic("TW703", f"{expected}, found `{plane}`", hint=near_miss(plane, PLANES)) for plane in unknown
        )
    if planes is None or "network" in planes:
        return (difference for entry in compare_connections(old, new) for difference in _network(entry))
    return iter(())


def _network(entry: ConnectionEntry) -> Iterator[Difference]:
    change = _CHANGES[entry.change]
    for flow in entry.flows:
        before = flow.was if isinstance(flow, ChangedFlow) else None
        yield Difference(
            "network",
            change,
            {"from": str(entry.sources), "to": str(entry.destinations), "ports": flow.ports},
            _settled(before if before is not None else flow if change == "closes" else None),
            _settled(flow if before is not None or change != "closes" else None),
            f"{entry.sources} {_VERBS[change]} {entry.destinations} on {flow}",
        )


def _settled(flow: ConnectionFlow | None) -> SettledVerdict | None:
    if flow is None:
        return None
    return SettledVerdict(flow.verdict, tuple(dict.fromkeys((*(flow.egress or ()), *(flow.ingress or ())))))
