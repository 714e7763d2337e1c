"""`/network`: who reaches whom. Groups of equal ends, folded by namespace; `?focus=NAMESPACE` unfolds one.

The table has the entries of `tierwall list`, the drawing the same facts folded. `?from=`, `?to=`, `?focus=` and
`?port=` narrow both as the options of the command do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from tierwall.core.diagnostics import InputError
from tierwall.explore.drawing import drawing
from tierwall.explore.fold import Fold, fold, namespaces, unfold
from tierwall.explore.markup import Child, Markup, joined, tag
from tierwall.explore.page import (
    ExploredWorld,
    Page,
    Query,
    address,
    counted,
    failed,
    given,
    link,
    omission_list,
    opening,
    page_links,
    page_number,
    row,
    table,
)
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.reach.connections import Connections, connections
from tierwall.network.reach.listing import MaskedEntry, masked_entries
from tierwall.network.reach.naming import EndpointNames
from tierwall.network.reach.narrowing import classes_of_namespace, focused
from tierwall.network.reach.spaces import bits
from tierwall.network.reach.ways_in import JudgedWay
from tierwall.render import listing
from tierwall.render.formats import View
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import format_address
from tierwall.world import World

FILTERS = ("focus", "from", "to", "port")
# Filters whose names are not the words for them.
_SPOKEN = {"focus": "around"}
# The entries on one page, the most ways in, and the most pods for which a policy's page lists connections.
PAGE, MAX_WAYS, MAX_EXPLAINED = 200, 100, 400


@per_snapshot
def everything(snapshot: Snapshot) -> Connections:
    """Return all connections, once."""
    return connections(snapshot)


@per_snapshot
def overview(snapshot: Snapshot) -> Fold:
    """Return all connections, folded by namespace, once."""
    matrix = everything(snapshot).matrix
    return fold(matrix, namespaces(matrix.classes))


@per_snapshot
def namespace_connections(snapshot: Snapshot, namespace: str) -> Connections:
    """Return what begins or ends in a namespace, from what is known already where that is the same."""
    whole = everything(snapshot)
    classes = whole.matrix.classes
    mask = classes_of_namespace(classes, namespace)
    if not mask:
        return connections(snapshot, focus=(namespace,))
    return msgspec.structs.replace(whole, matrix=focused(whole.matrix, mask), names=EndpointNames(classes))


def narrowed(snapshot: Snapshot, query: Query) -> Connections:
    """Return the connections that a query asks for. InputError names every end and port that does not exist."""
    focus, sources, destinations, ports = (given(query, name) for name in FILTERS)
    if not (focus or sources or destinations or ports):
        return everything(snapshot)
    if len(focus) == 1 and not (sources or destinations or ports) and _is_namespace(snapshot, focus[0]):
        return namespace_connections(snapshot, focus[0])
    return connections(snapshot, sources, destinations, ports, focus)


def _is_namespace(snapshot: Snapshot, name: str) -> bool:
    return any(unit.focus == name and name not in ("outside", "node:*") for unit in overview(snapshot).units)


def network(explored: ExploredWorld, query: Query) -> Page:
    """Show the connections, all of them or those that the query asks for."""
    snapshot = explored.world.snapshot
    # A field of the form may hold several names.
    query = {**query, **{name: tuple(",".join(given(query, name)).split(",")) for name in FILTERS}}
    filters = {name: given(query, name) for name in FILTERS if given(query, name)}
    try:
        reached = narrowed(snapshot, query)
        # Ways in are about everybody who comes from outside.
        from_outside = not given(query, "from") or "outside" in given(query, "from")
        destinations = given(query, "to") or given(query, "focus")
        ways = explored.world.ways_in(destinations, given(query, "port")) if from_outside else ()
    except InputError as error:
        # What was typed stays in the form, to be corrected.
        page = failed("Who reaches whom", error, "network")
        return msgspec.structs.replace(page, body=joined(page.body, _form(filters)))
    unprotected = () if filters else reached.unprotected()
    report = listing.ConnectionReport(reached, ways, unprotected, reached.parts)
    words = [part for name, values in filters.items() for value in values for part in (f"--{name}", value)]
    return Page(
        "Who reaches whom",
        lambda: "\n".join(listing.json(report, View(not_considered=reached.not_considered))),
        _body(explored, reached, query, filters, ways),
        command=explored.command("list", *words),
        room="network",
    )


def _body(
    explored: ExploredWorld,
    reached: Connections,
    query: Query,
    filters: dict[str, tuple[str, ...]],
    ways: tuple[JudgedWay, ...],
) -> Markup:
    snapshot = explored.world.snapshot
    folded = folded_view(snapshot, reached, filters)
    total = sum(len(group.sources) for group in reached.matrix.groups)
    page = min(page_number(query), max(1, (total + PAGE - 1) // PAGE))
    begin = (page - 1) * PAGE
    shown = list(islice(masked_entries(reached.matrix, reached.explain, reached.names), begin, begin + PAGE))
    rows = [entry_row(placed, reached) for placed in shown]
    unprotected = [] if filters else [str(pods) for pods in reached.unprotected()]
    terms = {f"{name}_" if name == "from" else name: values for name, values in filters.items()}
    return joined(
        opening("Who reaches whom", *_summary(folded, filters, total), announced=True),
        _form(filters),
        tag("ul", [tag("li", line) for line in unprotected], class_="facts") if unprotected else None,
        drawing(folded, "Connections between namespaces" if not filters else "Connections, unfolded") if rows else None,
        tag(
            "section",
            tag("h2", "The same as a table"),
            _pages(page, total, terms),
            table(("From", "To", "Ports", "Why"), rows, "Connections", data_filter="Filter these rows"),
            _pages(page, total, terms) if total > PAGE else None,
        )
        if rows
        else tag("p", _nothing(reached, filters), class_="empty"),
        ways_section(ways),
        omission_list(reached.not_considered),
    )


def folded_view(snapshot: Snapshot, reached: Connections, filters: dict[str, tuple[str, ...]]) -> Fold:
    """Return what the drawing shows: all namespaces folded, or those of the filters unfolded."""
    if not filters:
        return overview(snapshot)
    units = namespaces(reached.matrix.classes)
    named = {value.partition("/")[0] for name in ("focus", "from", "to") for value in filters.get(name, ())}
    opened = [unit for unit in units if unit.focus in named and unit.name != "outside"]
    if not opened:
        return fold(reached.matrix, units)
    names = reached.names or EndpointNames(reached.matrix.classes)
    return unfold(reached.matrix, names, opened, [unit for unit in units if unit not in opened])


def _summary(folded: Fold, filters: dict[str, tuple[str, ...]], total: int) -> tuple[Child, ...]:
    narrow = ", ".join(f"{_SPOKEN.get(name, name)} {value}" for name, values in filters.items() for value in values)
    number = sum(1 for unit in folded.units if unit.focus == unit.name != "outside")
    words = counted(total, "group") + " of connections"
    words += f", only {narrow}. " if narrow else f" between {counted(number, 'namespace')}. "
    return words, link("Fold everything", "/network") if filters else None


def _nothing(reached: Connections, filters: dict[str, tuple[str, ...]]) -> str:
    """Say why there is no connection to show."""
    if filters:
        return "Nothing connects these, or nothing else than what no policy can affect."
    if not any(end.representative.kind == "pod" for end in reached.matrix.classes.all):
        return "No pods or workloads are loaded, so there is nobody to connect. Add them to what is read."
    return "No connection is allowed."


def _form(filters: dict[str, tuple[str, ...]]) -> Markup:
    fields = [
        tag("label", f"{label} ", tag("input", name=name, value=", ".join(filters.get(name, ())), placeholder=example))
        for name, label, example in (
            ("focus", "Around", "shop"),
            ("from", "From", "shop/web"),
            ("to", "To", "shop/db"),
            ("port", "Port", "5432"),
        )
    ]
    return tag("form", fields, tag("button", "Show", type="submit"), action="/network", method="get", class_="filters")


def _pages(page: int, total: int, terms: dict[str, tuple[str, ...]]) -> Markup | None:
    if total <= PAGE:
        return None
    return page_links("/network", page, (total + PAGE - 1) // PAGE, "Pages of the table", **terms)


def entry_row(placed: MaskedEntry, reached: Connections) -> Markup:
    """Show an entry of the list; `Why?` asks about one pair of it."""
    return row(*entry_cells(placed, reached))


def entry_cells(placed: MaskedEntry, reached: Connections | None) -> tuple[Child, ...]:
    """Return the cells of an entry. In a file, without `reached`, nothing can be asked."""
    entry = placed.entry
    return str(entry.sources), str(entry.destinations), entry.ports, _why(placed, reached)


def _why(placed: MaskedEntry, reached: Connections | None) -> Child:
    if placed.entry.flows and placed.entry.flows[0].egress is not None:
        return joined(*(tag("p", f"{flow}: {flow.name_deciders()}") for flow in placed.entry.flows))
    if reached is None:
        return "—"
    classes = reached.matrix.classes.all
    there = classes[next(bits(placed.destinations))].members[-1]
    # An entry may lead from a class to itself, and nobody asks about a connection to oneself.
    sources = (member for bit in bits(placed.sources) for member in classes[bit].members[:2] if member is not there)
    here, flow = next(sources, None), placed.entry.flows[0]
    if not flow.ranges or here is None:
        return "—"
    ports = flow.ranges[0]
    href = address(
        "/ask", plane="network", from_=_name(here), to=_name(there), port=ports.first, protocol=ports.protocol
    )
    return link("Why?", href, aria_label=f"Why may {_name(here)} reach {_name(there)}?")


def _name(endpoint: Endpoint) -> str:
    if endpoint.kind == "address" and endpoint.addresses:
        return format_address(endpoint.addresses[0])
    return f"node:{endpoint.name}" if endpoint.kind == "node" else str(endpoint)


def ways_section(ways: tuple[JudgedWay, ...]) -> Markup | None:
    """Show the ways in from outside: what is exposed, through what, under which condition."""
    rows = [
        row(through, to, ports, condition or "—")
        for judged in ways[:MAX_WAYS]
        for through, to, ports, condition, _ in listing.way_rows(judged)
    ]
    if not rows:
        return None
    more = tag("p", f"and {len(ways) - MAX_WAYS:,} more ways") if len(ways) > MAX_WAYS else None
    heads = ("Through", "To", "Ports, or why none", "Condition")
    return tag("section", tag("h2", "Ways in from outside"), table(heads, rows, "Ways in from outside"), more)


def decided_connections(world: World, resource: Resource) -> Iterator[str]:
    """Yield what a network policy decides: the pods that it selects and, of small worlds, the connections."""
    model = network_model(world.snapshot)
    policy = next((policy for policy in model.policies if policy.resource.identity == resource.identity), None)
    if policy is None:
        return
    selected = [
        pod
        for pod in model.pods
        if pod.under_policy and policy.namespaces.matches(pod.namespace_labels) and policy.pods.matches(pod.labels)
    ]
    examples = ", ".join(map(str, selected[:5]))
    more = f" and {len(selected) - 5:,} more" if len(selected) > 5 else ""
    yield f"selects {len(selected):,} of {len(model.pods):,} pods" + (f": {examples}{more}" if selected else "")
    if not selected or len(model.pods) > MAX_EXPLAINED:
        return
    identity = (resource.kind, resource.namespace, resource.name)
    try:
        connections = world.connections(focus=sorted(map(str, selected)), explain=True, denied=True)
    except InputError:
        return  # No API server has pods of such names, and nobody can ask about them.
    for entry in connections:
        for flow in entry.flows:
            deciders = (*(flow.egress or ()), *(flow.ingress or ()))
            if any(_key(decider.policy) == identity for decider in deciders):
                yield f"{entry.sources} → {entry.destinations}: {flow}"


def _key(policy: object) -> tuple[object, ...]:
    return tuple(getattr(policy, name, None) for name in ("kind", "namespace", "name"))
