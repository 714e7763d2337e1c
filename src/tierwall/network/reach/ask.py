"""The matrix of a snapshot, whole or for some ends and ports: what `tierwall list` and comparisons ask for.

Ends are named `namespace`, `namespace/name` (a pod, or a workload), with `*` for any part of a name, as an IP
address, or `node:NAME`; ports `80`, `53/UDP`, `8000-8080/TCP`. A port without a protocol is that port of every
protocol.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from tierwall.core.diagnostics import Diagnostic, input_error, near_miss, no_such_name
from tierwall.network.model.ends import LAST_PORT, PROTOCOLS, End
from tierwall.network.model.model import Model, model
from tierwall.network.model.rules import PortRange
from tierwall.network.reach.classes import Classes, mask_of
from tierwall.network.reach.matrix import Matrix, matrix
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Block, Span, parse_address
from tierwall.values.pattern import pattern

if TYPE_CHECKING:
    from tierwall.core.protocols import Progress

_PORT = pattern(r"(\d{1,5})(?:-(\d{1,5}))?(?:/([A-Za-z]+))?", re.ASCII)


class Asked(NamedTuple):
    """Which part of the matrix, and how much to say about it."""

    sources: Sequence[str] = ()
    destinations: Sequence[str] = ()
    ports: Sequence[str] = ()
    why: bool = False
    denied: bool = False


class Chosen(NamedTuple):
    """Ends that were named: pods and nodes as a test, plain addresses as blocks."""

    holds: Callable[[End], bool]
    blocks: tuple[Block, ...]


def find(snapshot: Snapshot, asked: Asked, progress: Progress | None = None) -> Matrix:
    """The part of the matrix that was asked for; InputError names every end and port that there is not."""
    network = model(snapshot)
    problems: list[Diagnostic] = []
    sources = chosen(network, asked.sources, "from", problems)
    destinations = chosen(network, asked.destinations, "to", problems)
    ranges = [ports for text in asked.ports for ports in port_ranges(text, problems)]
    if problems:
        raise input_error(problems)
    blocks = (*sources.blocks, *destinations.blocks)
    classes = Classes(network, lambda end: (sources.holds(end), destinations.holds(end)), blocks, ranges)
    return matrix(
        classes,
        why=asked.why,
        denied=asked.denied,
        sources=_mask(classes, sources) if asked.sources else -1,
        destinations=_mask(classes, destinations) if asked.destinations else -1,
        ports=ranges or None,
        progress=progress,
    )


def chosen(network: Model, names: Sequence[str], key: str, problems: list[Diagnostic]) -> Chosen:
    """What some names stand for."""
    ends: set[End] = set()
    blocks: list[Block] = []
    for name in names:
        address = parse_address(name)
        if address is not None:
            pod = network.at(address)
            if pod is not None:
                ends.add(pod)
            else:
                blocks.append(Block(Span(address, address)))
            continue
        named = set(_named(network, name))
        if not named:
            words = f"there is no namespace, pod, workload or node `{name}` for `{key}`"
            problems.append(no_such_name(words, _hint(network, name)))
        ends |= named
    return Chosen(ends.__contains__, tuple(blocks))


def port_ranges(text: str, problems: list[Diagnostic]) -> list[PortRange]:
    """The ranges that a text such as `80`, `53/UDP` or `8000-8080/TCP` stands for."""
    match = _PORT.fullmatch(text)
    if match is not None:
        first, last = int(match[1]), int(match[2] or match[1])
        given = (match[3] or "").upper()
        if 1 <= first <= last <= LAST_PORT and given in ("", *PROTOCOLS):
            return [PortRange(protocol, first, last) for protocol in ([given] if given else PROTOCOLS)]
    words = f"expected a port such as `80`, `53/UDP` or `8000-8080/TCP` from 1 to {LAST_PORT}, found `{text}`"
    problems.append(Diagnostic("TW703", words))
    return []


def _named(network: Model, name: str) -> Iterator[End]:
    if name.startswith("node:"):
        yield from (node for node in network.nodes if fnmatchcase(node.name, name.removeprefix("node:")))
        return
    namespace, _, rest = name.partition("/")
    pattern = rest or "*"
    for pod in network.pods:
        if fnmatchcase(pod.namespace, namespace) and (
            fnmatchcase(pod.name, pattern) or (pod.workload is not None and fnmatchcase(pod.workload.name, pattern))
        ):
            yield pod


def _hint(network: Model, name: str) -> str:
    if name.startswith("node:"):
        return near_miss(name, (f"node:{node.name}" for node in network.nodes))
    namespace, slash, _ = name.partition("/")
    namespaces = {pod.namespace for pod in network.pods}
    if not slash or namespace not in namespaces:
        return near_miss(namespace, namespaces)
    siblings = [pod for pod in network.pods if pod.namespace == namespace]
    names = {str(pod) for pod in siblings}
    names |= {f"{namespace}/{pod.workload.name}" for pod in siblings if pod.workload is not None}
    return near_miss(name, names)


def _mask(classes: Classes, those: Chosen) -> int:
    wanted = 0
    for block in those.blocks:
        wanted |= classes.space.blocks[block]
    return mask_of(
        one.bit
        for one in classes.all
        if (classes.space.signature(one.spans[0].low) & wanted if one.spans else those.holds(one.one))
    )
