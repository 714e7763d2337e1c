"""Questions about tools: may a caller use one, and which may a caller use at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from tierwall.attach.place import GATEWAY
from tierwall.core.diagnostics import near_miss
from tierwall.explore import named
from tierwall.explore.asked import forms
from tierwall.explore.asked.meaning import MAX_CHOICES, MAX_COMPARED, Choice, asking
from tierwall.explore.page import address
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import offered_tools
from tierwall.tool.model import BACKENDS, model
from tierwall.tool.protocol import BY_URI, CALL, KNOWN_METHODS, MUST_HAVE_NAME
from tierwall.tool.ways import BackendWay, routed_ways, unrouted_ways

_FILLING = (
    "may",
    "can",
    "call",
    "use",
    "calls",
    "uses",
    "calling",
    "using",
    "the",
    "a",
    "tool",
    "named",
    "called",
    "denied",
    "refused",
    "allowed",
)
_ANY = ("anything", "everything", "any", "all", "*", "tools")


def callers(snapshot: Snapshot, name: str) -> list[str]:
    """Return the callers that have a name, with or without its namespace."""
    return [
        known
        for known in named.callers(snapshot)
        if name in (known, known.rpartition("/")[2]) or named.short_caller(name) == known
    ]


def all_of(snapshot: Snapshot, caller: str, text: str = "") -> Iterator[Choice]:
    """Yield the tools that a caller may use; `text` may name the gateway or the backend: ` at prod/gw`."""
    gateway, backend, _ = _places(snapshot, text)
    for known in callers(snapshot, caller):
        for gateway_name in gateway or [""]:
            for backend_name in backend or [""]:
                where = "".join(f" at {place}" for place in (backend_name, gateway_name) if place)
                href = address("/tools", caller=known, gateway=gateway_name, backend=backend_name)
                yield Choice(f"The tools that {known} may call{where}", href)


def _places(snapshot: Snapshot, text: str) -> tuple[list[str], list[str], str]:
    """Return the gateways and backends that ` at …` and ` on …` name in a text, and the rest of it."""
    gateways: list[str] = []
    backends: list[str] = []
    for form in (forms.AT, forms.ON):
        if match := form.search(text):
            named_gateways = (each for each in snapshot.of_kind(*GATEWAY) if is_named(each, match[1]))
            gateways += [f"{gateway.namespace}/{gateway.name}" for gateway in named_gateways]
            backends += _backends(snapshot, match[1])
            text = text.replace(match[0], "", 1)
    return gateways, backends, text


def _backends(snapshot: Snapshot, name: str) -> list[str]:
    return [str(each.reference) for key in BACKENDS for each in snapshot.of_kind(*key) if is_named(each, name)]


def calls(snapshot: Snapshot, text: str) -> Iterator[Choice]:
    """Yield the questions whether a caller may use a tool, or another method of MCP."""
    gateway = backend = ""
    if match := forms.AT.search(text):
        gateway, text = match[1], text.replace(match[0], "", 1)
    if match := forms.ON.search(text):
        backend, text = match[1], text.replace(match[0], "", 1)
    words = [word for word in text.split() if word.lower() not in _FILLING]
    method = next((word for word in words[1:2] if word in KNOWN_METHODS), CALL)
    if method in words:
        words.remove(method)
        if len(words) != (2 if method in MUST_HAVE_NAME or method in BY_URI else 1):
            return
        words = [*words, ""][:2]
    if len(words) != 2:
        return
    caller, tool = words
    known_tools, known_callers = named.tools(snapshot), callers(snapshot, caller)
    if not known_callers and caller.lower() in forms.ANYBODY:
        known_callers = list(named.callers(snapshot)[: MAX_CHOICES - 1])
        if backends := _backends(snapshot, tool):
            for name in backends:
                yield Choice(f"Who may call which tool of {name}", address("/tools", backend=name))
            return
        yield Choice("Which tools each caller may call", address("/tools"))
    if not known_callers and tool not in known_tools:
        return
    if tool.lower() in _ANY and tool not in known_tools:
        yield from all_of(snapshot, caller)
        return
    # What is spelled nearly like a name may mean it: then both are offered.
    is_known = method != CALL or tool in known_tools
    near = [] if is_known else get_close_matches(tool, known_tools[:MAX_COMPARED], n=3, cutoff=0.7)
    if not known_callers:
        names = {known.rpartition("/")[2]: known for known in named.callers(snapshot)[:MAX_COMPARED]}
        near_callers = get_close_matches(caller.rpartition("/")[2], names, n=3, cutoff=0.7)
        known_callers = [*(names[name] for name in near_callers), caller]
    yield from _through(snapshot, gateway, backend, method, (*near, tool), known_callers)


def between(snapshot: Snapshot, caller: str, text: str) -> Iterator[Choice]:
    """Yield what an arrow from a caller to a backend, to a tool, or to a tool of a backend means."""
    backend, _, tool = text.partition(" ")
    if "/" in text and not _backends(snapshot, backend) and _backends(snapshot, text.rpartition("/")[0]):
        backend, _, tool = text.rpartition("/")
    if not _backends(snapshot, backend):
        yield from calls(snapshot, f"{caller} {text}")
    elif tool:
        yield from calls(snapshot, f"{caller} {tool} on {backend}")
    else:
        yield from all_of(snapshot, caller, f" on {backend}")


def _through(
    snapshot: Snapshot, gateway: str, backend: str, method: str, tools: Iterable[str], known_callers: list[str]
) -> Iterator[Choice]:
    """Yield a question for each way that leads to a tool."""
    ways = [
        way
        for way in routed_ways(snapshot) or unrouted_ways(snapshot)
        if is_named(way.gateway, gateway.partition("#")[0])
        and gateway.partition("#")[2] in ("", way.listener.name)
        and is_named(way.resource, backend)
    ]
    for tool in tools:
        offering = [way for way in ways if method == CALL and tool in offered_tools(model(snapshot), way.resource)]
        for known in known_callers:
            for way in offering or ways:
                yield _choice(known, method, tool, way)


def _choice(caller: str, method: str, tool: str, way: BackendWay) -> Choice:
    gateway = f"{way.gateway.namespace}/{way.gateway.name}"
    backend = way.backend.reference
    what = f"call {tool}" if method == CALL else f"use {method} {tool}".strip()
    words = f"May {caller} {what} of {backend} through {way.gateway.reference}#{way.listener.name}?"
    terms = {"gateway": gateway, "listener": way.listener.name, "backend": str(backend), "caller": caller}
    named_by = "uri" if method in BY_URI else "tool"
    return Choice(words, asking("tool", **terms, method=method, **{named_by: tool}), "tool")


def near_gateway(snapshot: Snapshot, text: str) -> str:
    """Return a hint with the Gateway whose name is nearly that after ` at `; empty if no name is near."""
    match = forms.AT.search(text)
    gateways = {f"{gateway.namespace}/{gateway.name}" for gateway in snapshot.of_kind(*GATEWAY)}
    return near_miss(match[1], gateways) if match else ""


def is_named(resource: Resource, name: str) -> bool:
    """Whether an object has a name, with or without its namespace and kind; it has the empty name."""
    return name in ("", resource.name, f"{resource.namespace}/{resource.name}", str(resource.reference))
