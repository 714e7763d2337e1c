"""List what a caller may use: every tool whose name is known, on every way, and whether other tools pass too.

docs/tool.md#what-tierwall-tools-lists.

Manifests do not list the tools of an MCP server. The known tools are those that policies name, those that expressions
compare with `request.mcp.tool_name`, and those that a backend declares in the annotation `tierwall.io/tools` (names
separated by commas or white space).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from tierwall.attach.backend import backend_refs
from tierwall.attach.place import GATEWAY, ROUTES, SERVICE
from tierwall.cel.syntax.demands import demands_of
from tierwall.core.answer import Decider, Omission
from tierwall.core.diagnostics import input_error, near_miss
from tierwall.core.reference import Reference
from tierwall.core.stack import Stack
from tierwall.core.verdict import Verdict
from tierwall.resources.finder import ResourceFinder
from tierwall.resources.foreign import omissions
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.joined import BEFORE_NAME, joined_item
from tierwall.tool.model import ToolModel, backend_of, model
from tierwall.tool.possible import OTHER, TOOL_NAME, possible
from tierwall.tool.protocol import CALL
from tierwall.tool.question import caller_of
from tierwall.tool.request import Backend, tool_request
from tierwall.tool.rules import AccessPolicy
from tierwall.tool.ways import BackendWay, backend_named, routed_ways, unrouted_ways

TOOLS_ANNOTATION = "tierwall.io/tools"


class Permit(Struct, frozen=True, kw_only=True):
    """Whether requests of one form may pass: the verdict, the rules behind it, and the conditions."""

    verdict: Verdict
    decided_by: tuple[Decider, ...]
    conditions: tuple[str, ...] = ()


class ToolRow(Permit, frozen=True, kw_only=True):
    """Whether a caller may call one tool on one way; `*` is any tool that has no row of its own."""

    gateway: Reference
    listener: str
    # The ListenerSet that has the listener; None if the Gateway has it.
    listener_set: str | None = None
    backend: Reference
    tool: str
    # Whether the caller may open a session, which comes before any call.
    initialize: Permit


class Grants(Struct, frozen=True, kw_only=True):
    """The tools that a caller may use, by way and then name, `*` last.

    Where no route leads along these ways, `routed` is False, and every Gateway counts as leading to every backend, as
    in a folder that holds policies alone.
    """

    caller: str | None
    # The rows of each way; every way has at least a row for `*`.
    ways: tuple[tuple[ToolRow, ...], ...]
    routed: bool
    not_considered: tuple[Omission, ...] = ()

    @property
    def rows(self) -> tuple[ToolRow, ...]:
        """All rows."""
        return tuple(row for rows in self.ways for row in rows)


def grants(
    snapshot: Snapshot,
    caller: object = None,
    gateway: str | None = None,
    backend: str | None = None,
    tools: Iterable[str] = (),
) -> Grants:
    """List what a caller may use, of the known tools and of `tools`.

    `caller`, `gateway` and `backend` are written as in a question; InputError holds every problem with them.
    """
    finder = ResourceFinder(snapshot, [])
    spiffe = caller_of(caller, finder)
    from_gateway = finder.by_name("gateway", gateway, (GATEWAY,)) if gateway is not None else None
    to_backend = _backend(finder, backend) if backend is not None else None
    if finder.problems:
        raise input_error(finder.problems)

    def is_selected(way: BackendWay) -> bool:
        return from_gateway in (None, way.gateway) and to_backend in (None, way.resource)

    routed = [way for way in routed_ways(snapshot) if is_selected(way)]
    ways = routed or [way for way in unrouted_ways(snapshot) if is_selected(way)]
    tools = tuple(tools)
    rows_by_way = (tuple(_rows(model(snapshot), way, spiffe, tools)) for way in ways)
    if gateway is None and backend is None:
        left_out = omissions(snapshot, "tool")
    else:
        named = [end for end in (from_gateway, to_backend) if end is not None]
        left_out = _left_out(snapshot, ways, named, is_any_backend=to_backend is None)
    return Grants(caller=spiffe, ways=tuple(rows_by_way), routed=bool(routed) or not ways, not_considered=left_out)


def _left_out(
    snapshot: Snapshot, ways: Iterable[BackendWay], named: Iterable[Resource], is_any_backend: bool
) -> tuple[Omission, ...]:
    """Return what was not considered on some ways, and which ways there may be besides."""
    ends = [end for way in ways for end in (way.gateway, way.resource)]
    targets, namespaces = [end.reference for end in ends], {end.namespace for end in ends}
    left_out = omissions(snapshot, "tool", namespaces, targets=targets) if ends else ()
    if not snapshot.unlisted:
        return left_out
    # A backend that could not be read is at the end of no way: only routes tell where it may be.
    routes = [route for key in ROUTES for route in snapshot.of_kind(*key)] if is_any_backend else []
    led = {ref.place.namespace for route in routes for ref in backend_refs(route)}
    anywhere = is_any_backend and not led
    reached = None if anywhere else namespaces | led | {end.namespace for end in named}
    unread = omissions(snapshot, "tool", reached, targets=[*targets, *(end.reference for end in named)])
    return (*(entry for entry in left_out if not entry.why), *(entry for entry in unread if entry.why))


def _backend(finder: ResourceFinder, value: str) -> Resource | None:
    backend = backend_named(finder, value)
    if isinstance(backend, Backend):
        # A question may name a Service without an object, but no way leads there.
        finder.report_unknown(f"Service `{backend.namespace}/{backend.name}`", "", (SERVICE,), backend.namespace)
        return None
    return backend


def _rows(policies: ToolModel, way: BackendWay, caller: str | None, tools: Iterable[str]) -> Iterator[ToolRow]:
    stack = policies.stack(way.gateway, way.listener, way.resource)
    backend, port = way.backend, way.listener.port
    opening = possible(stack, tool_request(backend, caller, "initialize", port=port))
    initialize = Permit(verdict=opening.verdict, decided_by=opening.decided_by, conditions=opening.conditions)
    known = {*_shown_names(backend, known_tools(stack, backend)), *declared_tools(way.resource), *tools} - {OTHER}
    for tool in (*sorted(known), OTHER):
        if backend.targets and tool != OTHER:
            item = joined_item(backend.targets, tool, None)
            # The gateway sends no such call anywhere.
            if item is None:
                continue
            asked = item.tool
        else:
            asked = tool
        calling = possible(stack, tool_request(backend, caller, CALL, asked, port=port))
        yield ToolRow(
            gateway=way.gateway.reference,
            listener=way.listener.name,
            listener_set=way.listener_set,
            backend=backend.reference,
            tool=tool,
            initialize=initialize,
            verdict=calling.verdict,
            decided_by=calling.decided_by,
            conditions=calling.conditions,
        )


def _shown_names(backend: Backend, tools: Iterable[str]) -> set[str]:
    """Return the names by which callers know tools that policies name: joined servers each may have them."""
    return {f"{target}{BEFORE_NAME}{tool}" for target in backend.targets for tool in tools} or set(tools)


def nearest_caller(snapshot: Snapshot, caller: str | None) -> str:
    """Return a hint at the nearest caller that a rule names, if no rule names this one."""
    policies = model(snapshot)
    named = {named for resource in policies.resources for named in policies.policy(resource).allows.callers()}
    return near_miss(caller, named) if caller is not None and caller not in named else ""


def known_tools(stack: Stack[AccessPolicy], backend: Backend) -> set[str]:
    """Return the tools of this backend that the policies on a way name."""
    return {name for tier in stack for policy in tier.policies for name in named_tools(policy, backend)}


def named_tools(policy: AccessPolicy, backend: Backend) -> set[str]:
    """Return the tools of this backend that a policy names."""
    tools: set[str] = set()
    for rule in (*policy.allows.all, *policy.asks.all):
        for method in rule.methods:
            if method.name != CALL:
                continue
            if method.names is not None:
                tools |= method.names.bare
                for name in method.names.scoped:
                    if (name.namespace, name.backend) == (backend.namespace, backend.name):
                        tools.add(name.tool)
            if method.condition is not None:
                for demand in demands_of(method.condition.program.tree):
                    if demand.path == TOOL_NAME:
                        tools.update(value for value in demand.values if isinstance(value, str))
    return tools


def declared_tools(resource: Resource) -> set[str]:
    """Return the tools that a backend declares."""
    annotations = resource.metadata.get("annotations")
    declared = annotations.get(TOOLS_ANNOTATION) if isinstance(annotations, dict) else None
    return set(declared.replace(",", " ").split()) if isinstance(declared, str) else set()


def offered_tools(policies: ToolModel, resource: Resource) -> set[str]:
    """Return the tools that a backend is known to offer: those it declares, and those that policies on it name."""
    backend = backend_of(resource)
    return declared_tools(resource) | known_tools((policies.backend_tier(resource),), backend)
