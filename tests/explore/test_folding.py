"""Folded and narrowed connections are those of the whole matrix, seen from further away or from one namespace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.network_clusters import NAMESPACES, clusters
from tests.worlds.network_snapshots import snapshot
from tierwall.core.verdict import Verdict
from tierwall.explore.fold import fold, namespaces
from tierwall.network.reach.connections import Connections, connections
from tierwall.network.reach.listing import pair_entries
from tierwall.network.reach.narrowing import classes_of_namespace, focused


def flows(reached: Connections) -> dict[tuple[str, str], str]:
    """Return what passes between each pair of endpoints."""
    pairs: dict[tuple[str, str], str] = {}
    for entry in pair_entries(reached.matrix):
        pairs[entry.sources.ends[0], entry.destinations.ends[0]] = entry.ports
    return pairs


@given(clusters(), st.sampled_from(NAMESPACES))
def test_a_namespace_is_narrowed_to_as_if_it_were_asked_for(objects: list[Any], namespace: str) -> None:
    world = snapshot(objects)
    whole = connections(world)
    mask = classes_of_namespace(whole.matrix.classes, namespace)
    if not mask:
        return
    known = Connections(focused(whole.matrix, mask))
    assert flows(known) == flows(connections(world, focus=(namespace,)))


@given(clusters())
def test_a_cell_says_what_passes_between_two_namespaces(objects: list[Any]) -> None:
    reached = connections(snapshot(objects))
    folded = fold(reached.matrix, namespaces(reached.matrix.classes))
    names = [unit.name for unit in folded.units]
    cells = {(names[source], names[to]): cell for (source, to), cell in folded.cells.items()}
    pods = [str(pod) for pod in reached.matrix.classes.model.pods]
    allowed = {
        (entry.sources.ends[0], entry.destinations.ends[0]): entry
        for entry in pair_entries(reached.matrix)
        if any(flow.verdict is not Verdict.DENY for flow in entry.flows)
    }
    for here in set(names) & set(NAMESPACES):
        for there in set(names) & set(NAMESPACES):
            between = [pair for pair in allowed if _is_between(pair, here, there)]
            cell = cells.get((here, there))
            # A cell also counts a pod and itself, which is not a pair.
            assert (cell is not None) >= bool(between)
            if cell is None or not cell.is_whole:
                continue
            possible = {(a, b) for a in pods for b in pods if a != b and _is_between((a, b), here, there)}
            listed = set(allowed)
            assert all(allowed[pair].ports == "all" for pair in possible & listed)


def _is_between(pair: Iterable[str], here: str, there: str) -> bool:
    source, destination = pair
    return source.startswith(f"{here}/") and destination.startswith(f"{there}/")
