"""The reports of engines about policies: whether they hold this generation (docs/controller.md#programmed).

The parts that talk to node agents and to Envoys give an `EnginesState`; statuses are computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias

# The uid and generation of an object.
Generation: TypeAlias = tuple[str, int]


class ProgrammedReason(StrEnum):
    """The reasons of a `Programmed` condition; only the first one is True."""

    PROGRAMMED = "Programmed"
    RECONCILING = "Reconciling"
    ENGINE_REFUSED = "EngineRefused"
    NODES_MISSING = "NodesMissing"


class ProgrammedState(NamedTuple):
    """Whether one generation of an object is in force, with the engine's words or the names of nodes if it is not."""

    reason: ProgrammedReason = ProgrammedReason.RECONCILING
    message: str = ""
    nodes: tuple[str, ...] = ()


RECONCILING = ProgrammedState()


class GatewayState(NamedTuple):
    """The Envoys of a Gateway: what is programmed in them, and the addresses of their Service, each with its type."""

    programmed: ProgrammedState = RECONCILING
    addresses: tuple[tuple[str, str], ...] = ()


class EnginesState(NamedTuple):
    """The reports of all engines. A generation that is not among the keys is not in force yet."""

    # By policy of the network plane; None if no node agent is installed.
    network: Mapping[Generation, ProgrammedState] | None = None
    # By AccessPolicy; None if no Envoys are served.
    envoys: Mapping[Generation, ProgrammedState] | None = None
    # By namespace and name of Gateways of our class.
    gateways: Mapping[tuple[str, str], GatewayState] = {}


NO_ENGINES = EnginesState()
