"""Decides every connection between the ends of a question, and joins those that are decided alike.

docs/network.md#ask-about-workloads-services-and-the-outside. One connection is decided for each pair of endpoints that
policies tell apart. A pod's connection with itself, which no policy applies to, counts only if there is no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from tierwall.core.answer import Decider
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.network.detail import ConnectionDecision, EndpointGroup
from tierwall.network.ends import AlikeEndpoints, AskedEndpoints
from tierwall.network.model.endpoints import Endpoint
from tierwall.values.addresses import merge_ranges

DecidePair: TypeAlias = Callable[[Endpoint, Endpoint, int], ConnectionDecision]
# What connections that are decided alike have in common.
_Alike: TypeAlias = tuple[Verdict, tuple[Decider, ...], StepVerdict, StepVerdict, tuple[str, ...]]


class _DecisionRow(Struct, frozen=True, eq=False):
    """The decisions from some sources to each destination; None where a pod would connect to itself."""

    sources: AlikeEndpoints
    decisions: tuple[ConnectionDecision | None, ...]

    @property
    def alike(self) -> tuple[_Alike | None, ...]:
        """The common part of each decision. A pod as its own destination is put with another destination of the row."""
        known = [None if decision is None else _alike(decision) for decision in self.decisions]
        other = next((alike for alike in known if alike is not None), None)
        return tuple(other if alike is None else alike for alike in known)


def decide_pairs(
    source: AskedEndpoints, to: AskedEndpoints, port: int, decide: DecidePair
) -> tuple[EndpointGroup, ...]:
    """Return the decisions about all connections from `source` to `to`, in groups that are decided alike."""
    rows = [_row(sources, to.groups, port, decide) for sources in source.groups]
    by_decisions: dict[tuple[_Alike | None, ...], list[_DecisionRow]] = {}
    for row in rows:
        if any(decision is not None for decision in row.decisions):
            by_decisions.setdefault(row.alike, []).append(row)
    if not by_decisions:
        (alone,) = source.groups[0].members
        return (_group(source.groups[:1], to.groups[:1], [decide(alone, alone, to.groups[0].port or port)]),)
    groups = []
    for alike, members in by_decisions.items():
        for key in dict.fromkeys(alike):
            columns = [number for number, other in enumerate(alike) if other == key]
            decisions = [row.decisions[number] for row in members for number in columns]
            groups.append(
                _group(
                    [row.sources for row in members],
                    [to.groups[number] for number in columns],
                    [decision for decision in decisions if decision is not None],
                )
            )
    return tuple(groups)


def _row(
    sources: AlikeEndpoints, destinations: Sequence[AlikeEndpoints], port: int, decide: DecidePair
) -> _DecisionRow:
    decisions: list[ConnectionDecision | None] = []
    for group in destinations:
        pair = _two(sources.members, group.members)
        decisions.append(None if pair is None else decide(*pair, group.port or port))
    return _DecisionRow(sources, tuple(decisions))


def _two(sources: Sequence[Endpoint], destinations: Sequence[Endpoint]) -> tuple[Endpoint, Endpoint] | None:
    """Return a source and another endpoint as its destination; None if there is only one and the same pod."""
    for source in sources[:2]:
        for destination in destinations[:2]:
            if source is not destination:
                return source, destination
    return None


def _alike(decision: ConnectionDecision) -> _Alike:
    directions = decision.egress.verdict, decision.ingress.verdict
    return decision.verdict, decision.decided_by, *directions, decision.domains


def _group(
    sources: Sequence[AlikeEndpoints], destinations: Sequence[AlikeEndpoints], decisions: Sequence[ConnectionDecision]
) -> EndpointGroup:
    return EndpointGroup(_names(sources), _names(destinations), tuple(decisions))


def _names(alike: Sequence[AlikeEndpoints]) -> tuple[str, ...]:
    """Name the pods in order, or the ranges of addresses, of which neighbours are joined."""
    pods = sorted(
        {(pod.namespace, pod.name): str(pod) for group in alike if not group.spans for pod in group.members}.items()
    )
    spans = merge_ranges(span for group in alike for span in group.spans)
    return (*(name for _, name in pods), *map(str, spans))
