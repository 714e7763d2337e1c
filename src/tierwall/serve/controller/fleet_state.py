"""Whether policies and Gateways are in force in every Envoy that must hold them, from the reports of all replicas.

A generation is programmed if each Envoy of each of its Gateways holds it. The Envoys of a Gateway are those that some
replica has, those that it had a moment ago, and the running pods that the controller made for it: an Envoy that lost
its connection goes on serving what it has, so it counts until it is certainly gone.

An Envoy that moves from one replica to another keeps what it has, and holds it all the time. So what it held counts
until its new replica has a report about it, for a few seconds at most: a rollout of the controller changes no status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from tierwall.core.words import join_names
from tierwall.resources.resource import Identity
from tierwall.serve.controller.envoy_report import EnvoyReport, Generation, generation_digest

# How long an Envoy may be without a connection before it counts as away, in seconds.
GRACE_S = 5.0
# How long an Envoy that is away is remembered if no pod says that it is still there, in seconds.
AWAY_S = 60.0


class ProgrammedReason(StrEnum):
    """The reasons of a `Programmed` condition, from the best to the worst; only the first one is True."""

    PROGRAMMED = "Programmed"
    RECONCILING = "Reconciling"
    ENGINE_REFUSED = "EngineRefused"


class ProgrammedState(NamedTuple):
    """Whether a generation is in force, and if not, why."""

    reason: ProgrammedReason
    message: str = ""


class GatewayDemand(NamedTuple):
    """The generations that the Envoys of one Gateway must hold, those that are closed, and the pods that serve it."""

    gateway: Generation
    generations: frozenset[Generation]
    refused: Mapping[Generation, str]
    pods: frozenset[str] = frozenset()
    # Other objects that are closed because Envoy refuses them, with its words.
    closed: Mapping[Identity, str] = {}


class _Known(NamedTuple):
    """An Envoy: what it held when a replica last had it, and when that was."""

    held: frozenset[str]
    seen: float
    # Whether it ever was connected. If not, `seen` is when its pod was first seen.
    has_connected: bool = True


class FleetState(NamedTuple):
    """Whether generations are in force: of policies over all of their Gateways, and of Gateways by name."""

    policies: Mapping[Generation, ProgrammedState]
    gateways: Mapping[str, ProgrammedState]
    # The objects that are closed because Envoy refuses them, with its words, by Gateway.
    closed: Mapping[str, Mapping[Identity, str]] = {}


class FleetView:
    """Remembers Envoys from one look at the reports to the next."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, _Known]] = {}

    def state(
        self, needs: Mapping[str, GatewayDemand], reports: Iterable[tuple[str, EnvoyReport]], now: float
    ) -> FleetState:
        """Return what is in force. `reports` are those of all replicas, each with its Gateway; `now` is in seconds."""
        by_gateway: dict[str, list[EnvoyReport]] = {}
        for name, report in reports:
            by_gateway.setdefault(name, []).append(report)
        self._known = {name: known for name, known in self._known.items() if name in needs}
        worst: dict[Generation, ProgrammedState] = {}
        gateways: dict[str, ProgrammedState] = {}
        for name, need in needs.items():
            said = by_gateway.get(name, [])
            envoys = self._envoys(name, said, need.pods, now)
            words = {digest: text for report in said for digest, text in report.refused.items()}
            problems = tuple(text for report in said for text in report.problems)
            for generation in need.generations | need.refused.keys():
                digest = generation_digest(generation)
                refusal = need.refused.get(generation) or words.get(digest, "")
                state = _state(name, digest, envoys, refusal)
                if generation == need.gateway:
                    if problems and state.reason is not ProgrammedReason.PROGRAMMED:
                        state = ProgrammedState(ProgrammedReason.ENGINE_REFUSED, "; ".join(problems))
                    gateways[name] = state
                else:
                    worst[generation] = max(worst.get(generation, state), state, key=_rank)
            gateways.setdefault(name, _state(name, generation_digest(need.gateway), envoys, ""))
        return FleetState(worst, gateways, {name: need.closed for name, need in needs.items() if need.closed})

    def _envoys(
        self, name: str, reports: Iterable[EnvoyReport], pods: frozenset[str], now: float
    ) -> dict[str, frozenset[str] | None]:
        """Return what each Envoy of a Gateway holds; None for one that is away."""
        before = self._known.get(name, {})
        after: dict[str, _Known] = {}
        for report in reports:
            for envoy, held in report.held.items():
                known = before.get(envoy)
                if envoy in report.arriving:
                    if known is None or not known.has_connected:
                        # It has nothing yet, so it serves nothing.
                        continue
                    held = known.held
                after[envoy] = _Known(held & after[envoy].held if envoy in after else held, now)
        for envoy, known in before.items():
            if envoy not in after and (envoy in pods or (known.has_connected and now - known.seen < AWAY_S)):
                after[envoy] = known
        for envoy in pods - after.keys():
            after[envoy] = _Known(frozenset(), now, has_connected=False)
        self._known[name] = after
        return {
            envoy: known.held if now - known.seen < GRACE_S else None
            for envoy, known in after.items()
            # A pod that starts serves nothing. One that never connects, as far as this replica knows, may serve.
            if known.has_connected or now - known.seen >= AWAY_S
        }


def _state(gateway: str, digest: str, envoys: Mapping[str, frozenset[str] | None], refusal: str) -> ProgrammedState:
    if refusal:
        return ProgrammedState(ProgrammedReason.ENGINE_REFUSED, refusal)
    if not envoys:
        return ProgrammedState(ProgrammedReason.RECONCILING, f"No Envoy of Gateway {gateway} is connected")
    away = sorted(envoy for envoy, held in envoys.items() if held is None)
    if away:
        words = f"{_names(away)} of Gateway {gateway} {'is' if len(away) == 1 else 'are'} not connected"
        return ProgrammedState(ProgrammedReason.RECONCILING, words)
    behind = sorted(envoy for envoy, held in envoys.items() if held is not None and digest not in held)
    if behind:
        words = f"Not acknowledged yet by {_names(behind)} of Gateway {gateway}"
        return ProgrammedState(ProgrammedReason.RECONCILING, words)
    return ProgrammedState(ProgrammedReason.PROGRAMMED)


def _rank(state: ProgrammedState) -> int:
    return list(ProgrammedReason).index(state.reason)


def _names(envoys: list[str]) -> str:
    return f"Envoy{'s' if len(envoys) > 1 else ''} {join_names(envoys)}"
