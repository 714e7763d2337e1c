"""Read a question as people type it, and return everything that it may mean (docs/explorer.md#ask).

    shop/web -> shop/db:5432          may these connect?
    alice create pods in dev          may this user do that?
    agents/shopper refund at prod/gw  may this agent call that tool?
    settings HTTPRoute/shop/api       which settings are in force there?

A name without a namespace stands for every object of that name. Several meanings are a choice for the person who asks;
nothing is guessed. A single word is looked up among all names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from tierwall.api.resource_names import VERBS
from tierwall.attach.place import GATEWAY, SERVICE
from tierwall.core.diagnostics import Diagnostic
from tierwall.explore import named
from tierwall.explore.page import address, policy_address
from tierwall.gateway.model.places import RequestPlace, reachable_places
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import INGRESS, PortRange
from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import offered_tools
from tierwall.tool.model import model
from tierwall.tool.ways import BackendWay, routed_ways, unrouted_ways
from tierwall.values.addresses import parse_address
from tierwall.world import World

# The most meanings that are offered, and the most characters of a question.
MAX_CHOICES, MAX_TEXT = 30, 1000
EXAMPLES = "`shop/web -> shop/db:5432`, `alice create pods in dev`, `shopper refund`, or `settings HTTPRoute/shop/api`"
_ARROW = re.compile(r"\s*(?:->|→|=>|⇒|➜|\s(?:can reach|may reach|reaches|reach|connects? to|talks? to|to)\s)\s*")
_PORT = re.compile(
    r"(?P<end>.+?)(?:\s*:\s*|\s+(?:on\s+)?(?:port\s+)?)(?:(?P<before>tcp|udp|sctp)\s+)?(?P<port>\d{1,5}|[a-z][-a-z0-9]*)"
    r"(?:/(?P<after>tcp|udp|sctp))?",
    re.IGNORECASE,
)
_LEAD = re.compile(r"(?:can|may|could|does|is|what if)\s+(?=\S+\s)", re.IGNORECASE)
_SETTINGS = re.compile(r"settings?(?:\s+(?:of|at|for|in force at))?\s+(?P<place>\S.*)", re.IGNORECASE)
_AT = re.compile(r"\s+(?:at|through|via)\s+(\S+)")
_ON = re.compile(r"\s+(?:on|of|from)\s+(\S+)")
_IN = re.compile(r"\s+(?:in|-n)\s+(?:namespace\s+)?(\S+)")


class Choice(Struct, frozen=True):
    """One meaning of what was typed: the words for it, its address, and the plane of a question."""

    words: str
    href: str
    plane: str = ""


class Meanings(Struct, frozen=True):
    """Everything that a text may mean, or what is wrong with it."""

    choices: tuple[Choice, ...] = ()
    problems: tuple[Diagnostic, ...] = ()


def meanings(world: World, text: str) -> Meanings:
    """Return what a text may mean in a world."""
    text = " ".join(text[:MAX_TEXT].split()).rstrip("?").strip()
    if not text:
        return Meanings(problems=(_problem("the question is empty", f"type one such as {EXAMPLES}"),))
    if match := _SETTINGS.fullmatch(text):
        return _bounded(_settings(world.snapshot, match["place"], world.namespace))
    plain = _LEAD.sub("", text, count=1)
    words = plain.split()
    # Before arrows: a verb in second place says who asks what, even in `alice bind clusterroles to …`.
    if len(words) > 2 and words[1].lower() in VERBS:
        return _bounded(_api(words, plain))
    if len(ends := _ARROW.split(plain)) == 2 and all(ends):
        return _network(world.snapshot, *ends)
    if len(ends) > 1:
        return Meanings(problems=(_problem("a connection has two ends", "write `shop/web -> shop/db:5432`"),))
    if len(words) == 1:
        return _bounded(_things(world.snapshot, words[0]), f"nothing here is called `{words[0]}`")
    if len(words) == 2 and words[1].lower() in VERBS:
        return Meanings(
            problems=(_problem(f"what may {words[0]} {words[1]}?", "add a resource, such as `pods in dev`"),)
        )
    return _bounded(_tool(world.snapshot, plain), f"`{text}` is not a question that can be read")


def _bounded(choices: Iterator[Choice], otherwise: str = "nothing here is called so") -> Meanings:
    unique: dict[str, Choice] = {}
    for choice in choices:
        unique.setdefault(choice.href, choice)
        if len(unique) == MAX_CHOICES:
            break
    if unique:
        return Meanings(tuple(unique.values()))
    return Meanings(problems=(_problem(otherwise, f"ask for example {EXAMPLES}"),))


def _problem(message: str, hint: str) -> Diagnostic:
    return Diagnostic("TW703", message, hint=hint)


def asking(plane: str, **terms: Any) -> str:
    """Return the address of a question; the names are those of policy tests."""
    return address("/ask", plane=plane, **terms)


# Network


def _network(snapshot: Snapshot, source: str, destination: str) -> Meanings:
    port, protocol, match = "", "TCP", _PORT.fullmatch(destination)
    is_address = parse_address(destination) is not None
    if match is not None and not is_address:
        destination, port = match["end"], match["port"]
        protocol = (match["before"] or match["after"] or "TCP").upper()
    destination = destination.removeprefix("[").removesuffix("]")
    choices: list[Choice] = []
    for here in _end(snapshot, source, is_target=False):
        for there in _end(snapshot, destination, is_target=True):
            for number, spoken in _ports(snapshot, there, port, protocol):
                words = f"May {here} open a connection to {there} on {spoken} port {number}?"
                terms = {"from_": here, "to": there, "port": number, "protocol": spoken if spoken != "TCP" else ""}
                choices.append(Choice(words, asking("network", **terms), "network"))
                if len(choices) == MAX_CHOICES:
                    return Meanings(tuple(choices))
    if choices:
        return Meanings(tuple(choices))
    return Meanings(problems=(_problem("on which port?", f"add one: `{source} -> {destination}:443`"),))


def _end(snapshot: Snapshot, text: str, is_target: bool) -> Iterator[str]:
    """Yield what an end may be. A name that nothing has is asked as it is: the answer says what is near."""
    if text.lower() in ("outside", "internet", "the internet", "world"):
        yield "outside"
    elif "/" in text or text.startswith("node:") or parse_address(text) is not None:
        bare, whole = text.rpartition("/")[2], f"Service/{text}"
        is_service = text.count("/") == 1 and text not in named.ends(snapshot).get(bare, ())
        yield whole if is_target and is_service and whole in named.services(snapshot).get(bare, ()) else text
    else:
        candidates = named.ends(snapshot).get(text, ())
        if not candidates and is_target:
            candidates = named.services(snapshot).get(text, ())
        yield from candidates or (text,)


def _ports(snapshot: Snapshot, end: str, port: str, protocol: str) -> Iterator[tuple[str, str]]:
    """Yield the port that was typed; else those that the other end is known to have."""
    if port:
        yield port, protocol
        return
    if end.startswith("Service/"):
        _, namespace, name = end.split("/", 2)
        service = snapshot.get(*SERVICE, namespace, name)
        for entry in list_of_maps(service.spec.get("ports")) if service is not None else ():
            yield str(entry.get("port")), str(entry.get("protocol") or "TCP")
        return
    network = network_model(snapshot)
    namespace, _, name = end.partition("/")
    known: dict[tuple[str, int], None] = {}
    for pod in network.pods:
        if pod.namespace == namespace and name in (pod.name, pod.workload.name if pod.workload else ""):
            for ports in pod.named_ports.values():
                known |= dict.fromkeys(ports)
            for tier in network.stack(pod, INGRESS):
                for rule in (rule for policy in tier.policies for rule in policy.rules(INGRESS) or ()):
                    known |= {
                        (ports.protocol, ports.first): None
                        for ports in rule.ports or ()
                        if isinstance(ports, PortRange) and ports.first == ports.last
                    }
            break
    yield from ((str(number), spoken) for spoken, number in sorted(known))


# API


def _api(words: list[str], text: str) -> Iterator[Choice]:
    user, verb, *_ = words
    rest = text.split(None, 2)[2]
    namespace = ""
    if match := _IN.search(f" {rest}"):
        namespace = match[1]
        rest = f" {rest}".replace(match[0], "", 1).strip()
    resource, _, name = rest.removeprefix("the ").removeprefix("a ").partition(" ")
    terms: dict[str, str] = {"user": user, "verb": verb.lower()}
    if resource.startswith("/"):
        terms["path"] = resource
    else:
        terms |= {"resource": resource, "name": name.strip(), "namespace": namespace}
    where = f" in {namespace}" if namespace else ""
    yield Choice(f"May {user} {verb.lower()} {rest}{where}?", asking("api", **terms), "api")


# Tool


def _tool(snapshot: Snapshot, text: str) -> Iterator[Choice]:
    gateway = backend = ""
    if match := _AT.search(text):
        gateway, text = match[1], text.replace(match[0], "", 1)
    if match := _ON.search(text):
        backend, text = match[1], text.replace(match[0], "", 1)
    words = [word for word in text.split() if word.lower() not in ("may", "can", "call", "use", "calls", "the")]
    if len(words) != 2:
        return
    caller, tool = words
    found_callers = [known for known in named.callers(snapshot) if caller in (known, known.rpartition("/")[2])]
    ways = [
        way
        for way in routed_ways(snapshot) or unrouted_ways(snapshot)
        if _is_named(way.gateway, gateway.partition("#")[0])
        and gateway.partition("#")[2] in ("", way.listener.name)
        and _is_named(way.resource, backend)
    ]
    offering = [way for way in ways if tool in offered_tools(model(snapshot), way.resource)]
    for known in found_callers or [caller]:
        for way in offering or ways:
            yield _tool_choice(known, tool, way)


def _tool_choice(caller: str, tool: str, way: BackendWay) -> Choice:
    gateway = f"{way.gateway.namespace}/{way.gateway.name}"
    backend = way.backend.reference
    words = f"May {caller} call {tool} of {backend} through {way.gateway.reference}#{way.listener.name}?"
    terms = {"gateway": gateway, "listener": way.listener.name, "backend": str(backend), "caller": caller}
    return Choice(words, asking("tool", **terms, method="tools/call", tool=tool), "tool")


def _is_named(resource: Resource, name: str) -> bool:
    return name in ("", resource.name, f"{resource.namespace}/{resource.name}", str(resource.reference))


# Settings


def _settings(snapshot: Snapshot, place: str, namespace: str) -> Iterator[Choice]:
    """Yield the places of an object: each that a request can reach, and a Gateway or route by itself."""
    name, _, listener = place.partition("#")
    for gateway in snapshot.of_kind(*GATEWAY):
        if _is_named(gateway, name):
            terms = {"gateway": f"{gateway.namespace}/{gateway.name}", "listener": listener}
            yield Choice(f"Settings at {gateway.reference}{place[len(name) :]}", asking("gateway", **terms), "gateway")
    for reached in reachable_places(snapshot):
        parts = [part for part in reached.objects if part.kind != "Gateway"]
        if any(_is_named(part, name) for part in parts):
            yield Choice(f"Settings at {reached}", asking("gateway", **place_terms(reached)), "gateway")


def place_terms(place: RequestPlace) -> dict[str, Any]:
    """Return a place as the terms of a question."""

    def name(resource: Resource | None) -> str:
        return f"{resource.namespace}/{resource.name}" if resource is not None else ""

    return {
        "gateway": name(place.gateway),
        "listenerSet": name(place.listener_set),
        "listener": place.listener.name if place.listener is not None else "",
        "route": str(place.route.reference) if place.route is not None else "",
        "rule": "" if place.rule is None else place.rule_name or place.rule,
        "backend": str(place.backend.reference) if place.backend is not None else "",
        "backendSection": place.section,
    }


# One word


def _things(snapshot: Snapshot, word: str) -> Iterator[Choice]:
    """Yield what has a name: a namespace, pods and workloads, an object, a caller, a user."""
    namespaces = {pod.namespace for pod in network_model(snapshot).pods}
    if word in namespaces:
        yield Choice(f"Who reaches namespace {word}, and whom it reaches", address("/network", focus=word))
    bare = word.rpartition("/")[2]
    for end in named.ends(snapshot).get(bare, ()):
        if word in (end, bare):
            yield Choice(f"Who reaches {end}, and whom it reaches", address("/network", focus=end))
    for caller in named.callers(snapshot):
        if word in (caller, caller.rpartition("/")[2]):
            yield Choice(f"The tools that {caller} may call", address("/tools", caller=caller))
    if word in named.users(snapshot):
        yield Choice(f"What {word} may do", address("/permissions", user=word))
    for resource in snapshot:
        if resource.kind != "Pod" and _is_named(resource, word):
            yield Choice(str(resource.reference), policy_address(resource.reference, resource.group))
