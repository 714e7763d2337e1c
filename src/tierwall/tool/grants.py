"""What a caller may use, way by way: every tool that is known by name, and whether others pass too.

Manifests do not list the tools of an MCP server. Known are those that policies name, those that expressions compare
`request.mcp.tool_name` with, and those that a backend declares in the annotation `tierwall.io/tools` (names separated
by commas or white space).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.attach.place import GATEWAY, SERVICE
from tierwall.attach.reach import reach
from tierwall.cel.analysis import constant_conjuncts
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.methods import Method
from tierwall.tool.model import BACKENDS, Model, Stack, backend_of, model
from tierwall.tool.possible import OTHER, TOOL_NAME, Possibility, possible
from tierwall.tool.request import CALL, Backend, request
from tierwall.tool.rules import Policy

TOOLS_ANNOTATION = "tierwall.io/tools"


class Passage(Struct, frozen=True, eq=False):
    """A way from a listener to a backend that some route takes."""

    gateway: Resource
    listener: Listener
    resource: Resource
    backend: Backend

    @property
    def entrance(self) -> str:
        """The Gateway and its listener, as references name them."""
        return f"{self.gateway.reference}#{self.listener.name}"


class Listing(Struct, frozen=True, eq=False):
    """What a caller may use on one way; `initialize` is whether a client gets as far as asking."""

    passage: Passage
    initialize: Possibility
    tools: dict[str, Possibility]


@per_snapshot
def passages(snapshot: Snapshot) -> tuple[Passage, ...]:
    """Every way that a route takes from a listener to an XBackend or Service, each once, by name."""
    found: dict[tuple[str, str], Passage] = {}
    for way in reach(snapshot).ways():
        place = way.backend.place if way.backend is not None else None
        resource = place.resource(snapshot) if place is not None else None
        if resource is not None and (resource.group, resource.kind) in (*BACKENDS, SERVICE):
            one = Passage(way.gateway, way.listener, resource, backend_of(resource))
            found.setdefault((one.entrance, f"{resource.group}/{one.backend}"), one)
    return tuple(one for _, one in sorted(found.items()))


def combinations(snapshot: Snapshot) -> tuple[Passage, ...]:
    """Every listener of every Gateway with every XBackend, for manifests that hold no routes."""
    gateways = sorted(snapshot.of_kind(*GATEWAY), key=lambda one: (one.namespace, one.name))
    backends = sorted(
        (one for kind in BACKENDS for one in snapshot.of_kind(*kind)), key=lambda one: (one.namespace, one.name)
    )
    return tuple(
        Passage(gateway, listener, backend, backend_of(backend))
        for gateway in gateways
        for listener in gateway_listeners(snapshot, gateway)
        for backend in backends
    )


def listings(
    snapshot: Snapshot, caller: str | None, ways: Iterable[Passage], more: Iterable[str] = ()
) -> Iterator[Listing]:
    """What a caller may use on each of these ways, tools by name, `*` (any other tool) last."""
    this, more = model(snapshot), tuple(more)
    for passage in ways:
        stack = this.stack(passage.gateway, passage.listener, passage.resource)
        backend, port = passage.backend, passage.listener.port
        names = sorted({*known_tools(stack, backend), *declared_tools(passage.resource), *more} - {OTHER})
        yield Listing(
            passage,
            possible(stack, request(backend, caller, "initialize", port=port)),
            {name: possible(stack, request(backend, caller, CALL, name, port=port)) for name in (*names, OTHER)},
        )


def known_tools(stack: Stack, backend: Backend) -> set[str]:
    """The tools that the policies on a way name, as far as they are about this backend."""
    return {name for policy in (*stack.gateway, *stack.backend) for name in named_tools(policy, backend)}


def named_tools(policy: Policy, backend: Backend) -> set[str]:
    """The tools that a policy names, as far as they are about this backend."""
    found: set[str] = set()
    for rule in (*policy.allows.all, *policy.asks.all):
        for clause in rule.clauses:
            if not isinstance(clause, Method) or clause.name != CALL:
                continue
            if clause.names is not None:
                found |= clause.names.bare
                here = backend.namespace, backend.name
                found |= {one.tool for one in clause.names.scoped if (one.namespace, one.backend) == here}
            if clause.condition is not None:
                for demand in constant_conjuncts(clause.condition.program.tree):
                    if demand.path == TOOL_NAME:
                        found |= {value for value in demand.values if isinstance(value, str)}
    return found


def declared_tools(resource: Resource) -> set[str]:
    """The tools that a backend declares."""
    annotations = resource.metadata.get("annotations")
    text = annotations.get(TOOLS_ANNOTATION) if isinstance(annotations, dict) else None
    return set(text.replace(",", " ").split()) if isinstance(text, str) else set()


def offered_tools(this: Model, resource: Resource) -> set[str]:
    """The tools that a backend is known to offer: those it declares and those that policies on it name."""
    backend = backend_of(resource)
    return declared_tools(resource) | known_tools(Stack((), this.on_backend(resource)), backend)
