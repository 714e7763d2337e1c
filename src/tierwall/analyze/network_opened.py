"""Finds pods that a change opens to addresses outside the cluster (TW217)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import inf

from tierwall.analyze.network_cells import TooManyCells
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.outcome import ALLOW
from tierwall.core.words import join_names
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.rules import INGRESS, PortRange
from tierwall.network.reach.classes import EndpointClasses, RelevantAttributes
from tierwall.network.reach.naming import EndpointNames
from tierwall.network.reach.rows import Rows
from tierwall.network.reach.spaces import bits
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

OPENED = "TW217"


def opened_to_outside(
    before: Snapshot, after: Snapshot, changed: Resource, until: float = inf, are_examples: bool = False
) -> Iterator[Diagnostic]:
    """Find pods that connections from outside reach after a change and did not reach before it.

    Both snapshots have the same pods; `are_examples`: there are more. `changed` is the policy that the finding is
    about. At `until` (`time.thread_time`), the pods that were found so far are told; TooManyCells if nothing was found.
    """
    models = network_model(before), network_model(after)
    blocks = {block: None for model in models for block in RelevantAttributes(model).blocks}
    ports = {ports for model in models for ports in _port_ranges(model)}
    # Both divide addresses and ports alike, and each pod is a class of its own.
    sides = [Rows(EndpointClasses(model, _name, blocks, ports), False) for model in models]
    classes = sides[1].classes
    opened: dict[Endpoint, dict[int, int]] = {}
    for pod in models[1].pods:
        was = models[0].pod(pod.namespace, pod.name)
        if was is None or not pod.under_policy:
            continue
        if until < inf and time.thread_time() > until:
            if not opened:
                raise TooManyCells
            are_examples = True
            break
        earlier, later = _from_outside(sides[0], was), _from_outside(sides[1], pod)
        more = {place: now & ~earlier.get(place, 0) for place, now in later.items()}
        if any(more.values()):
            opened[pod] = {place: now for place, now in more.items() if now}
    if not opened:
        return
    pod, places = next(iter(opened.items()))
    widest = max(places.values(), key=int.bit_count)
    mask = sum(1 << place for place, now in places.items() if now == widest) << _first_outside(classes)
    addresses = EndpointNames(classes).describe(mask)
    kind, _, rest = str(addresses).partition(" ")
    where = f"{addresses}, outside the cluster,"
    if kind == "outside":
        where = f"{rest} addresses outside the cluster".strip()
    shown = sides[1].ports.show(widest)
    names = join_names([str(pod) for pod in opened], 2)
    if are_examples:
        names = f"at least {names}"
    message = f"{changed.reference} opens {names} to {where} on {'all ports' if shown == 'all' else shown}"
    yield changed.diagnostic(OPENED, message, ("spec",), places=("ingress",))


def _name(endpoint: Endpoint) -> str:
    return str(endpoint) if endpoint.kind == "pod" else ""


def _port_ranges(model: NetworkModel) -> Iterator[PortRange]:
    """Yield the ranges of ports that policies mention, those behind names too."""
    relevant = RelevantAttributes(model)
    yield from relevant.port_ranges
    for pod in model.pods:
        for name, pairs in pod.named_ports.items():
            if name in relevant.named_ports:
                yield from (PortRange(protocol, number, number) for protocol, number in pairs)


def _from_outside(rows: Rows, pod: Endpoint) -> dict[int, int]:
    """Return the ports on which a pod can be reached, by the place of the outside addresses among all of them."""
    classes = rows.classes
    allowed: dict[int, int] = {}
    first = _first_outside(classes)
    for ports, parts in rows.row(classes.of(pod), INGRESS).cells:
        for outcome, mask in parts:
            if outcome.verdict is ALLOW:
                for bit in bits(mask & classes.outside):
                    allowed[bit - first] = allowed.get(bit - first, 0) | ports
    return allowed


def _first_outside(classes: EndpointClasses) -> int:
    """Return the number of the first class of outside addresses, which are the last classes."""
    return len(classes.all) - classes.outside.bit_count()
