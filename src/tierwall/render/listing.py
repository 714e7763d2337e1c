"""The output of `list`: connections, ways in from outside, and, in JSON, the pods that no policy protects.

docs/network.md#ways-in-from-outside, docs/network.md#pods-that-no-policy-protects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from tierwall.network.reach.listing import ConnectionEntry, ConnectionFlow
from tierwall.network.reach.naming import EVERYONE
from tierwall.network.reach.unprotected import UnprotectedPods
from tierwall.network.reach.ways_in import JudgedWay, WayConnection, way_condition
from tierwall.render import connections
from tierwall.render.formats import View

# The most host names on a line of text.
MAX_HOSTS = 3


def no_parts(name: str) -> None:
    """Return None: every name is of one endpoint."""


class ConnectionReport(Struct, frozen=True, eq=False):
    """Everything that `list` shows."""

    entries: Iterable[ConnectionEntry]
    ways_in: tuple[JudgedWay, ...] = ()
    unprotected: tuple[UnprotectedPods, ...] = ()
    # Returns the members of a group by its name, of which some may be groups; None for one endpoint.
    parts: Callable[[str], list[str] | None] = no_parts


def text(report: ConnectionReport, view: View) -> Iterator[str]:
    """Write a line for each entry and for each way in."""
    yield from connections.text(report.entries, view)
    for judged in report.ways_in:
        for through, to, ports, condition, flows in way_rows(judged):
            yield f"through {through} => {to} : {ports}" + (f", {condition}" if condition else "")
            for flow in flows:
                if deciders := flow.name_deciders():
                    yield f"    {flow}: {deciders}"


def json(report: ConnectionReport, view: View) -> Iterator[str]:
    """Write the document of the connections, with the members of `groups`, `waysIn` and `unprotected`."""
    named = [pods.pods for pods in report.unprotected]
    named += [connection.destinations for judged in report.ways_in for connection in judged.connections]
    more = {
        "waysIn": [_document(judged) for judged in report.ways_in],
        "unprotected": {
            pods.where: {"count": pods.count, "of": pods.of, "pods": connections.named_document(pods.pods)}
            for pods in report.unprotected
        },
    }
    return connections.json(report.entries, view, more, connections.GroupTable(report.parts, named))


def comma_separated(report: ConnectionReport, view: View) -> Iterator[str]:
    """Write the connections alone: ways in have other columns."""
    return connections.comma_separated(report.entries, view)


def markdown(report: ConnectionReport, view: View) -> Iterator[str]:
    """Write a table of connections and a table of ways in."""
    yield from connections.markdown(report.entries, view)
    if report.ways_in:
        yield from ("", "| way in | to | ports | condition |", "|---|---|---|---|")
    for judged in report.ways_in:
        for *cells, _ in way_rows(judged):
            yield f"| {' | '.join(map(connections.in_cell, cells))} |"


def way_rows(judged: JudgedWay) -> Iterator[tuple[str, str, str, str, tuple[ConnectionFlow, ...]]]:
    """Yield what a way leads through, to whom, on which ports, under which condition, and the flows."""
    way = judged.way
    hosts = list(way.hosts[:MAX_HOSTS])
    if len(way.hosts) > MAX_HOSTS:
        hosts.append(f"{len(way.hosts) - MAX_HOSTS} more hosts")
    objects = list(way.through)
    if way.is_elsewhere:
        objects[0] += " (not among the objects)"
    if hosts:
        objects[-1] += f" ({', '.join(hosts)})"
    if way.by_controller and way.service:
        objects.append(f"{way.service}:{way.port}" if way.port else way.service)
    elif way.port:
        objects[-1] += f":{way.port} ({way.offered})"
    through = ", ".join(objects)
    for connection in judged.connections:
        ports, condition = ", ".join(map(str, connection.flows)), way_condition(way, connection)
        yield through, str(connection.destinations), ports, condition, connection.flows
    if way.problem:
        yield through, "nobody", way.problem, "", ()


def _document(judged: JudgedWay) -> dict[str, Any]:
    way = judged.way
    document: dict[str, Any] = {"through": list(way.through)}
    if way.offered:
        document["offered"] = way.offered
    if way.is_elsewhere:
        document["notAmongObjects"] = way.through[0]
    if way.by_controller:
        document["controller"] = [str(pod) for pod in way.controllers] or None
    document |= {
        key: value
        for key, value in (
            ("hosts", list(way.hosts)),
            ("service", way.service),
            ("port", way.port),
            ("problem", way.problem),
        )
        if value
    }
    document["connections"] = [_connection(connection) for connection in judged.connections]
    return document


def _connection(connection: WayConnection) -> dict[str, Any]:
    ends = [*connection.pods, *connection.addresses]
    return {
        "from": {"ends": ends} if ends else {"all": [EVERYONE]},
        "to": connections.named_document(connection.destinations),
        "flows": [connections.flow_document(flow) for flow in connection.flows],
    }
