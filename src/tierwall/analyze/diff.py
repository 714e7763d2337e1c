"""Compares two snapshots: what a change of policies opens, closes or alters, plane by plane (docs/compare.md)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from tierwall.analyze.difference import Difference
from tierwall.analyze.future_pods import lacks_pods, uncompared, with_future_pods
from tierwall.analyze.rollout import rolled_out
from tierwall.core.answer import Omission
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.gateway.model.fields import PROFILES
from tierwall.network.reach.compare import compare_connections
from tierwall.network.reach.first_changes import first_changes
from tierwall.network.reach.listing import ConnectionEntry, Picture, picture_of_changes
from tierwall.resources.snapshot import Snapshot

# The planes in order, each with the function that compares it and says what was too much to compare.
PLANES: Mapping[str, str] = {
    "network": "tierwall.analyze.diff_network:network_differences",
    "tool": "tierwall.analyze.diff_tool:tool_differences",
    "gateway": "tierwall.analyze.diff_gateway:gateway_differences",
    "api": "tierwall.analyze.diff_api:api_differences",
}


class DifferenceStream(Iterator[Difference]):
    """The differences of two snapshots, one after the other, and what was left out of the comparison."""

    def __init__(self, compared: Iterable[Difference | Omission]) -> None:
        self._compared = iter(compared)
        self._omissions: dict[Omission, None] = {}

    def __next__(self) -> Difference:
        for member in self._compared:
            if isinstance(member, Difference):
                return member
            self._omissions[member] = None
        raise StopIteration

    @property
    def not_considered(self) -> tuple[Omission, ...]:
        """The limits that the comparison reached so far; complete when the last difference has been read."""
        return tuple(self._omissions)


def differences(
    old: Snapshot, new: Snapshot, planes: Sequence[str] | None = None, profile: str | None = None
) -> DifferenceStream:
    """Return everything that differs, the network plane first. Raise InputError for a plane that does not exist.

    Settings of gateways are compared under both profiles, or under this one.
    """
    problems = [problem for plane in planes or () for problem in _unknown("plane", plane, PLANES)]
    problems += _unknown("profile", profile, PROFILES) if profile is not None else ()
    if problems:
        raise InputError(problems)
    wanted = [plane for plane in PLANES if planes is None or plane in planes]
    new = rolled_out(old, new)
    return DifferenceStream(member for plane in wanted for member in _comparison(plane, profile)(old, new))


def _unknown(what: str, name: str, known: Collection[str]) -> Iterator[Diagnostic]:
    if name not in known:
        expected = f"expected one of {', '.join(known)} as {what}"
        yield Diagnostic("TW703", f"{expected}, found `{name}`", hint=near_miss(name, known))


def _comparison(plane: str, profile: str | None) -> Callable[[Snapshot, Snapshot], Iterator[Difference | Omission]]:
    module, _, name = PLANES[plane].partition(":")
    compare: Callable[..., Iterator[Difference | Omission]]
    compare = getattr(importlib.import_module(module), name)
    return partial(compare, profiles=(profile,)) if plane == "gateway" and profile is not None else compare


class PlaneComparison(Struct, frozen=True):
    """The differences on some planes. `connections` are the groups of the network plane, where they are asked for."""

    connections: tuple[ConnectionEntry, ...] = ()
    differences: tuple[Difference, ...] = ()
    # What was too much to compare.
    not_considered: tuple[Omission, ...] = ()
    # Of a bounded comparison: how many more changes of connections there are of each kind, and what it did not get to.
    more: Mapping[str, int] = msgspec.field(default_factory=dict)
    cut: tuple[Omission, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.connections or self.differences)

    def picture(self) -> Picture:
        """Return the picture of the connections. Raise TooManyBlocks if it would be too large to read."""
        return picture_of_changes(self.connections)


def compare(
    old: Snapshot,
    new: Snapshot,
    planes: Sequence[str] = (),
    grouped: bool = True,
    profile: str | None = None,
    most: int | None = None,
) -> PlaneComparison:
    """Compare two snapshots on some planes, or on all. If not `grouped`, connections are differences as well.

    With `most`, only so many groups of connections get names, and of very many not all are compared.
    """
    wanted = [plane for plane in PLANES if not planes or plane in planes]
    new = rolled_out(old, new)
    connections: tuple[ConnectionEntry, ...] = ()
    left_out: tuple[Omission, ...] = ()
    more: Mapping[str, int] = {}
    cut: tuple[Omission, ...] = ()
    if grouped and "network" in wanted:
        wanted.remove("network")
        if lacks_pods(old, new):
            future = with_future_pods(old, new)
            connections, left_out = tuple(future.changes()), tuple(future.limits())
        else:
            if most is None:
                connections = tuple(compare_connections(old, new))
            else:
                connections, more, number = first_changes(old, new, most)
                cut = _cut(number)
            left_out = tuple(uncompared(old, new)) if not connections else ()
    others = differences(old, new, wanted, profile)
    return PlaneComparison(connections, tuple(others), (*left_out, *others.not_considered), more, cut)


def _cut(destinations: int) -> tuple[Omission, ...]:
    if not destinations:
        return ()
    effect = "so many connections change that these were not compared; `tierwall diff` compares everything"
    return (Omission(reason="limit", count=destinations, form="more destination", effect=effect),)
