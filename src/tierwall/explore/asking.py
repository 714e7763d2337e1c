"""Read a question as people type it, and return everything that it may mean (docs/explorer.md#ask).

    shop/web -> shop/db:5432          may these connect?
    alice create pods in dev          may this user do that?
    agents/shopper refund at prod/gw  may this agent call that tool?
    settings HTTPRoute/shop/api       which settings are in force there?

A name without a namespace stands for every object of that name. Several meanings are a choice for the person who asks;
nothing is guessed. A single word is looked up among all names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Any

from msgspec import Struct

from tierwall.api.resource_names import VERBS
from tierwall.attach.place import GATEWAY
from tierwall.core.diagnostics import Diagnostic, near_miss
from tierwall.explore import asked_forms as forms
from tierwall.explore import named
from tierwall.explore.asked_ends import AskedEnd, AskedPort, ends, near_end, pod_namespaces, ports_of, split_port
from tierwall.explore.page import address, policy_address
from tierwall.gateway.model.places import RequestPlace, reachable_places
from tierwall.render.quotation import shortened
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import offered_tools
from tierwall.tool.model import model
from tierwall.tool.ways import BackendWay, routed_ways, unrouted_ways
from tierwall.world import World

# The most meanings that are offered, characters of a question, and names that a misspelled one is compared with.
MAX_CHOICES, MAX_TEXT, MAX_COMPARED = 30, 1000, 2000
EXAMPLES = "`shop/web -> shop/db:5432`, `alice create pods in dev`, `shopper refund`, or `settings HTTPRoute/shop/api`"
_PAGES = ("network", "tools", "settings", "permissions", "findings", "change")


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
    """Return what a text may mean in a world; names may stand in quotes."""
    if len(text) > MAX_TEXT:
        return _unclear(f"the question has more than {MAX_TEXT:,} characters", "ask a shorter one")
    # A name that nobody validated may hold quotes itself.
    if not _has_quotes(world.snapshot):
        text = forms.QUOTED.sub(r"\g<name>", text)
    return _meanings(world, text)


@per_snapshot
def _has_quotes(snapshot: Snapshot) -> bool:
    return any(quote in name for name in _names(snapshot) for quote in "\"'`“”‘’„«»")


def _meanings(world: World, text: str) -> Meanings:
    text = " ".join(text.split()).rstrip("?.!").strip().replace(" / ", "/")
    if not text:
        return _unclear("the question is empty", f"type one such as {EXAMPLES}")
    if match := forms.SETTINGS.fullmatch(text):
        return _bounded(_settings(world.snapshot, match["place"], world.namespace), "no place has this name")
    if about := list(_about(world.snapshot, text)):
        return _bounded(iter(about))
    if match := forms.WHO_REACHES.fullmatch(text) or forms.REACHES_WHOM.fullmatch(text):
        return _unknown(world.snapshot, split_port(match["end"])[0])
    plain = forms.LEAD.sub("", text, count=1)
    if forms.ARROW.search(plain):
        plain = forms.FROM.sub("", plain, count=1)
    if (match := forms.ALLOWED.match(plain)) and _verb(match["verb"]):
        plain = f"{match['who']} {plain[match.start('verb') :]}"
    words = plain.split()
    # Before arrows: a verb in second place says who asks what, even in `alice bind clusterroles to …`.
    if len(words) > 2 and _verb(words[1]):
        return _bounded(_api(world.snapshot, words, plain))
    sides = forms.ARROW.split(plain)
    if len(sides) == 1 and len(back := forms.BACK.split(plain)) == 2:
        sides = back[::-1]
    if len(sides) == 2 and all(sides):
        return _network(world.snapshot, *sides)
    if len(sides) > 1:
        return _unclear("a connection has two ends", "write `shop/web -> shop/db:5432`")
    if len(words) == 1:
        hint = near_miss(words[0], _names(world.snapshot))
        return _bounded(_things(world.snapshot, words[0]), f"nothing here is called `{shortened(words[0], 60)}`", hint)
    if len(words) == 2 and _verb(words[1]):
        return _unclear(f"what may {words[0]} {words[1]}?", "add a resource, such as `pods in dev`")
    choices = [*_two_ends(world.snapshot, words), *_tool(world.snapshot, plain)]
    hint = near_miss(words[1].lower(), VERBS) if len(words) > 2 else ""
    if not choices and (match := forms.AT.search(plain)):
        gateways = {f"{gateway.namespace}/{gateway.name}" for gateway in world.snapshot.of_kind(*GATEWAY)}
        hint = near_miss(match[1], gateways) or hint
    return _bounded(iter(choices), f"`{shortened(text, 200)}` is not a question that can be read", hint)


def _bounded(choices: Iterator[Choice], otherwise: str = "nothing here is called so", hint: str = "") -> Meanings:
    unique: dict[str, Choice] = {}
    for choice in choices:
        unique.setdefault(choice.href, choice)
        if len(unique) == MAX_CHOICES:
            break
    if unique:
        return Meanings(tuple(unique.values()))
    return _unclear(otherwise, hint or f"ask for example {EXAMPLES}")


def _unclear(message: str, hint: str) -> Meanings:
    return Meanings(problems=(Diagnostic("TW703", message, hint=hint),))


def asking(plane: str, **terms: Any) -> str:
    """Return the address of a question; the names are those of policy tests."""
    return address("/ask", plane=plane, **terms)


# Network


def _about(snapshot: Snapshot, text: str) -> Iterator[Choice]:
    """Yield what a question about all ends, tools or permissions means."""
    if match := forms.WHO_REACHES.fullmatch(text):
        end, port = split_port(match["end"])
        for each in ends(snapshot, end):
            terms = {"to": each.name, "port": _listed(port)}
            yield Choice(f"Who reaches {each.name}{_on(port)}", address("/network", **terms))
    elif match := forms.REACHES_WHOM.fullmatch(text):
        for each in ends(snapshot, match["end"]):
            yield Choice(f"Whom {each.name} reaches", address("/network", from_=each.name))
    elif match := forms.WHAT_MAY.fullmatch(text):
        who = match["who"]
        for caller in _callers(snapshot, who):
            yield Choice(f"The tools that {caller} may call", address("/tools", caller=caller))
        if match["what"].lower() == "do":
            where = match["where"] or ""
            known = list(_permissions(snapshot, who, where))
            words = f"What {who} may do{_inside(where)}"
            yield from known or [Choice(words, address("/permissions", user=who, namespace=where))]


def _network(snapshot: Snapshot, source: str, destination: str) -> Meanings:
    destination, port = split_port(destination)
    sources, destinations = list(ends(snapshot, source)), list(ends(snapshot, destination, is_target=True))
    unknown = [text for text, meant in ((source, sources), (destination, destinations)) if not meant]
    if unknown:
        return _unknown(snapshot, *unknown)
    choices = list(islice(_connections(snapshot, sources, destinations, port), MAX_CHOICES))
    if choices:
        return Meanings(tuple(choices))
    if port.text:
        return _unclear(f"`{destination}` has no port that is called `{port.text}`", "write its number")
    return _unclear("on which port?", f"add one: `{source} -> {destination}:443`")


def _unknown(snapshot: Snapshot, *names: str) -> Meanings:
    messages = ((name, f"nothing here is called `{shortened(name, 60)}`") for name in names)
    return Meanings(problems=tuple(Diagnostic("TW704", each, hint=near_end(snapshot, name)) for name, each in messages))


def _connections(
    snapshot: Snapshot, sources: Iterable[AskedEnd], destinations: Collection[AskedEnd], port: AskedPort
) -> Iterator[Choice]:
    for here in sources:
        for there in destinations:
            if here.is_namespace or there.is_namespace:
                if (number := _listed(port)) is not None:
                    terms = {"from_": here.name, "to": there.name, "port": number}
                    words = f"Who of {here.name} reaches {there.name}{_on(port)}" if here.is_namespace else ""
                    words = words or f"Whom of {there.name} {here.name} reaches{_on(port)}"
                    yield Choice(words, address("/network", **terms))
                continue
            for known in ports_of(snapshot, there.name, port):
                words = f"May {here.name} open a connection to {there.name} on {known.protocol} port {known.text}?"
                spoken = known.protocol if known.protocol != "TCP" else ""
                terms = {"from_": here.name, "to": there.name, "port": known.text, "protocol": spoken}
                yield Choice(words, asking("network", **terms), "network")


def _listed(port: AskedPort) -> str | None:
    """Return a port as lists of connections take it; None for the name of a port."""
    if not port.text:
        return ""
    return f"{port.text}/{port.protocol}" if port.text.isdigit() else None


def _on(port: AskedPort) -> str:
    return f" on {port.protocol} port {port.text}" if port.text else ""


def _two_ends(snapshot: Snapshot, words: list[str]) -> Iterator[Choice]:
    """Yield the connections that two names without an arrow mean, if both are names of pods or workloads."""
    destination, port = split_port(" ".join(words[1:]))
    if " " not in destination:
        sources, destinations = list(ends(snapshot, words[0])), list(ends(snapshot, destination, is_target=True))
        if all(_is_known(snapshot, end) for end in (*sources, *destinations)):
            yield from _connections(snapshot, sources, destinations, port)


def _is_known(snapshot: Snapshot, end: AskedEnd) -> bool:
    name = end.name.rpartition("/")[2]
    return end.name in named.ends(snapshot).get(name, ()) or end.name in named.services(snapshot).get(name, ())


# API


def _permissions(snapshot: Snapshot, name: str, namespace: str) -> Iterator[Choice]:
    """Yield the permissions of the users and of the group that have a name."""
    for user in named.called(named.users(snapshot), name):
        words = f"What {user} may do{_inside(namespace)}"
        yield Choice(words, address("/permissions", user=user, namespace=namespace))
    if name in named.groups(snapshot):
        words = f"What members of {name} may do{_inside(namespace)}"
        yield Choice(words, address("/permissions", group=name, namespace=namespace))


def _inside(namespace: str) -> str:
    return f" in {namespace}" if namespace else ""


def _verb(word: str) -> str:
    """Return the verb that a word is, also in `alice creates pods`; empty for any other word."""
    word = word.lower()
    return next((verb for verb in (word, word.removesuffix("s"), word.removesuffix("es")) if verb in VERBS), "")


def _api(snapshot: Snapshot, words: list[str], text: str) -> Iterator[Choice]:
    verb, rest = _verb(words[1]), text.split(None, 2)[2]
    users = [words[0]]
    if words[0].lower() in forms.ANYBODY and words[0] not in named.users(snapshot):
        users = list(named.users(snapshot)[: MAX_CHOICES - 1])
        # Nobody knows all users, so even one is a choice and no answer.
        yield Choice("What each user may do", address("/permissions"))
    for user in users:
        yield from _requests(snapshot, user, verb, rest)


def _requests(snapshot: Snapshot, user: str, verb: str, rest: str) -> Iterator[Choice]:
    namespace = ""
    if match := forms.IN.search(f" {rest}"):
        namespace = match[1]
        rest = f" {rest}".replace(match[0], "", 1).strip()
    resource, _, name = rest.removeprefix("the ").removeprefix("a ").partition(" ")
    name = name.strip()
    if resource.startswith("/"):
        yield Choice(f"May {user} {verb} {rest}?", asking("api", user=user, verb=verb, path=resource), "api")
        return
    # A name may be that of a namespace without its `in`.
    meant = [(name, namespace), *([("", name)] if name and not namespace and _is_namespace(snapshot, name) else ())]
    for called, inside in meant:
        where = _inside(inside)
        terms = {"user": user, "verb": verb, "resource": resource, "name": called, "namespace": inside}
        yield Choice(f"May {user} {verb} {f'{resource} {called}'.strip()}{where}?", asking("api", **terms), "api")


def _is_namespace(snapshot: Snapshot, name: str) -> bool:
    return name in pod_namespaces(snapshot) or snapshot.get("", "Namespace", "", name) is not None


# Tool


def _callers(snapshot: Snapshot, name: str) -> list[str]:
    return [known for known in named.callers(snapshot) if name in (known, known.rpartition("/")[2])]


def _tool(snapshot: Snapshot, text: str) -> Iterator[Choice]:
    gateway = backend = ""
    if match := forms.AT.search(text):
        gateway, text = match[1], text.replace(match[0], "", 1)
    if match := forms.ON.search(text):
        backend, text = match[1], text.replace(match[0], "", 1)
    words = [word for word in text.split() if word.lower() not in ("may", "can", "call", "use", "calls", "uses", "the")]
    if len(words) != 2:
        return
    caller, tool = words
    known_tools, callers = named.tools(snapshot), _callers(snapshot, caller)
    if not callers and caller.lower() in forms.ANYBODY:
        callers = list(named.callers(snapshot)[: MAX_CHOICES - 1])
        yield Choice("Which tools each caller may call", address("/tools"))
    if not callers and tool not in known_tools:
        return
    # What is spelled nearly like a name may mean it: then both are offered.
    near = get_close_matches(tool, known_tools[:MAX_COMPARED], n=3, cutoff=0.7) if tool not in known_tools else []
    if not callers:
        names = {known.rpartition("/")[2]: known for known in named.callers(snapshot)[:MAX_COMPARED]}
        callers = [names[name] for name in get_close_matches(caller.rpartition("/")[2], names, n=3, cutoff=0.7)]
        callers.append(caller)
    ways = [
        way
        for way in routed_ways(snapshot) or unrouted_ways(snapshot)
        if _is_named(way.gateway, gateway.partition("#")[0])
        and gateway.partition("#")[2] in ("", way.listener.name)
        and _is_named(way.resource, backend)
    ]
    for called in (*near, tool):
        offering = [way for way in ways if called in offered_tools(model(snapshot), way.resource)]
        for known in callers:
            for way in offering or ways:
                yield _tool_choice(known, called, way)


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
    if word.lower() in _PAGES:
        yield Choice(f"The page {word.title()}", f"/{word.lower()}")
    if word in pod_namespaces(snapshot):
        yield Choice(f"Who reaches namespace {word}, and whom it reaches", address("/network", focus=word))
    bare = word.rpartition("/")[2]
    for end in named.ends(snapshot).get(bare, ()):
        if word in (end, bare):
            yield Choice(f"Who reaches {end}, and whom it reaches", address("/network", focus=end))
    for caller in _callers(snapshot, word):
        yield Choice(f"The tools that {caller} may call", address("/tools", caller=caller))
    yield from _permissions(snapshot, word, "")
    for resource in snapshot:
        if resource.kind != "Pod" and _is_named(resource, word):
            yield Choice(str(resource.reference), policy_address(resource.reference, resource.group))


def _names(snapshot: Snapshot) -> Iterator[str]:
    """Yield the names that a single word may be, for hints."""
    yield from (
        *named.ends(snapshot),
        *pod_namespaces(snapshot),
        *named.users(snapshot),
        *named.groups(snapshot),
        *_PAGES,
    )
    yield from (caller.rpartition("/")[2] for caller in named.callers(snapshot))
    yield from (resource.name for resource in snapshot if resource.kind != "Pod")
