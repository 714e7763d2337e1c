"""Questions about connections: between two ends, between many, and about all that one end reaches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from tierwall.core.diagnostics import Diagnostic
from tierwall.explore import named
from tierwall.explore.asked import forms
from tierwall.explore.asked.ends import (
    AskedEnd,
    AskedPort,
    behind,
    ends,
    near_end,
    own_ports,
    ports_behind,
    ports_of,
    service_of,
    split_port,
)
from tierwall.explore.asked.meaning import Choice, Meanings, asking, bounded, first_of, unclear
from tierwall.explore.page import address
from tierwall.render.quotation import shortened
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import parse_address


def about_one_end(snapshot: Snapshot, text: str) -> Meanings | None:
    """Return what a question means that names one end: who reaches it, or whom it reaches; None for any other."""
    if match := forms.WHO_REACHES.fullmatch(text):
        return _who_reaches(snapshot, match["end"])
    if match := forms.REACHES_WHOM.fullmatch(text):
        port = match["port"] or match["its"] or ""
        return _reaches_whom(snapshot, match["end"] or match["it"], split_port(f"x{port}")[1])
    if match := forms.DIRECTION.fullmatch(text):
        end, port_of_end = split_port(match["end"])
        return _who_reaches(snapshot, match["end"]) if match["arriving"] else _reaches_whom(snapshot, end, port_of_end)
    if (match := forms.TRIED.fullmatch(text)) and any(ends(snapshot, split_port(match["end"])[0], is_target=True)):
        who = match["who"]
        return between(snapshot, who, match["end"]) if who else _who_reaches(snapshot, match["end"])
    if match := forms.FROM_WHOM.fullmatch(text):
        from_whom = list(two_ends(snapshot, [match["who"], match["end"]]))
        if from_whom:
            return bounded(iter(from_whom))
    if match := forms.PORT.fullmatch(text):
        return _on_port(AskedPort(match["port"], (match["before"] or match["after"] or "TCP").upper()))
    if match := forms.REACHED.fullmatch(text):
        end, port = match["end"], match["port"] or ""
        who = (match["who"] or "").strip()
        if not who and end.lower() in forms.EVERYBODY:
            words = "Ways in from outside, and pods that no policy protects"
            return Meanings((Choice(words, address("/network", port=split_port(f"x{port}")[1].listed)),))
        if not who or who.lower() in forms.EVERYBODY:
            return _who_reaches(snapshot, f"{end}{port}")
        if end.lower() in forms.EVERYBODY:
            return _reaches_whom(snapshot, who, split_port(f"x{port}")[1])
        return between(snapshot, who, f"{end}{port}")
    return None


def _who_reaches(snapshot: Snapshot, text: str) -> Meanings:
    end, port = split_port(text)
    known_ends = list(ends(snapshot, end, is_target=True))
    choices = (
        Choice(f"Who reaches {shown}{_on(known)}", address("/network", to=names, port=known.listed))
        for each in known_ends
        for shown, names, known in _reached(snapshot, each, port)
    )
    nobody = "no pod is behind it" if not port.text else f"{_no_port(end, port)}, or no pod is behind it"
    return bounded(choices, nobody, "write a number or name a pod") if known_ends else unknown(snapshot, end)


def _reached(snapshot: Snapshot, end: AskedEnd, port: AskedPort) -> Iterator[tuple[str, tuple[str, ...], AskedPort]]:
    """Yield an end as lists of connections know it: a Service as what is behind it, a port by name as its numbers."""
    is_service = end.name.startswith("Service/")
    service = end.name if is_service else service_of(snapshot, end.name)
    names = behind(snapshot, service) if service else ()
    shown = f"{', '.join(names)}, behind {service}"
    if is_service:
        ports = list(ports_behind(snapshot, service, port)) if port.text else [port]
        # No port of the Service, but perhaps one of its pods.
        ports = ports or [port] * any(port in ports_of(snapshot, name, AskedPort()) for name in names)
        yield from ((shown, names, known) for known in ports if names)
        return
    direct = [port] if port.listed or not port.text else list(ports_of(snapshot, end.name, port))
    yield from ((end.name, (end.name,), known) for known in direct)
    # A number may be that of the Service, which leads to another one.
    known_ports = list(ports_of(snapshot, end.name, AskedPort())) if names and port.is_one and port.text else []
    if port not in known_ports:
        through = ports_behind(snapshot, service, port) if names else ()
        yield from ((shown, names, known) for known in dict.fromkeys(through) if known not in direct)


def _reaches_whom(snapshot: Snapshot, text: str, port: AskedPort) -> Meanings:
    known_ends = list(ends(snapshot, text))
    choices = (
        Choice(f"Whom {each.name} reaches{_on(port)}", address("/network", from_=each.name, port=port.listed))
        for each in known_ends
    )
    return bounded(choices) if known_ends else unknown(snapshot, text)


def between(snapshot: Snapshot, source: str, destination: str) -> Meanings:
    """Return what a question about two ends means, each of which may be several, or everybody."""
    destination, port = split_port(destination)
    is_port_alone = destination.startswith(":") and parse_address(destination) is None
    if not source.strip() or not destination or is_port_alone:
        return unclear("a connection has two ends", "write `shop/web -> shop/db:5432`")
    if source.lower() in forms.EVERYBODY and not _named(snapshot, source):
        everybody = forms.EVERYBODY if not _named(snapshot, destination) else ()
        if destination.lower() in everybody:
            return _on_port(port)
        return _who_reaches(snapshot, f"{destination}{_typed(port)}")
    if destination.lower() in forms.EVERYBODY and not _named(snapshot, destination):
        return _reaches_whom(snapshot, source, port)
    sides = [_several(snapshot, source, False), _several(snapshot, destination, True)]
    if missing := [name for side in sides for name, meant in side.items() if not meant]:
        return unknown(snapshot, *missing)
    sources, destinations = ([end for meant in side.values() for end in meant] for side in sides)
    if not port.is_one or any(len(side) > 1 for side in sides):
        return bounded(
            _list_of_many(snapshot, sources, destinations, port), _no_port(destination, port), "write its number"
        )
    choices = first_of(connections(snapshot, sources, destinations, port))
    if choices:
        return Meanings(choices)
    if port.text:
        return unclear(_no_port(destination, port), "write its number")
    shown = f"[{destination}]" if parse_address(destination) is not None and ":" in destination else destination
    return unclear("on which port?", f"add one: `{source} -> {shown}:443`")


def _on_port(port: AskedPort) -> Meanings:
    return Meanings((Choice(f"Who reaches whom{_on(port)}", address("/network", port=port.listed)),))


def in_both_directions(snapshot: Snapshot, left: str, right: str) -> Meanings:
    """Return what two ends mean between which an arrow has two heads: a question for each direction."""
    there = between(snapshot, left, right)
    if there.problems:
        return there
    end, port = split_port(right)
    back = between(snapshot, end, f"{left}{_typed(port)}")
    return Meanings((*there.choices, *back.choices))


def _typed(port: AskedPort) -> str:
    return f":{port.text}/{port.protocol}" if port.text else ""


def _no_port(end: str, port: AskedPort) -> str:
    return f"`{shortened(end, 60)}` has no port that is called `{port.text}`"


def _named(snapshot: Snapshot, text: str) -> bool:
    return text in named.ends(snapshot) or text in named.services(snapshot)


def _several(snapshot: Snapshot, text: str, is_target: bool) -> dict[str, list[AskedEnd]]:
    """Return what each name of a side means: `web`, or `web, api and db`."""
    whole = list(ends(snapshot, text, is_target))
    parts = [part for part in forms.LISTED.split(text) if part]
    if whole or len(parts) < 2:
        return {text: whole}
    return {part: list(ends(snapshot, part, is_target)) for part in parts}


def _list_of_many(
    snapshot: Snapshot, sources: Collection[AskedEnd], destinations: Collection[AskedEnd], port: AskedPort
) -> Iterator[Choice]:
    """Yield the list of connections between several ends, or on several ports: one for each number of a name."""
    here = [end.name for end in sources]
    by_port: dict[AskedPort, dict[str, str]] = {}
    for each in destinations:
        for shown, names, known in _reached(snapshot, each, port):
            by_port.setdefault(known, {}).update(dict.fromkeys(names, shown))
    for known, reached in by_port.items():
        words = f"Who of {', '.join(here)} reaches {', '.join(dict.fromkeys(reached.values()))}{_on(known)}"
        yield Choice(words, address("/network", from_=here, to=list(reached), port=known.listed))


def unknown(snapshot: Snapshot, *names: str) -> Meanings:
    """Say which names are nobody's, and what is near."""
    messages = ((name, f"nothing here is called `{shortened(name, 60)}`") for name in names)
    return Meanings(problems=tuple(Diagnostic("TW704", each, hint=near_end(snapshot, name)) for name, each in messages))


def connections(
    snapshot: Snapshot, sources: Iterable[AskedEnd], destinations: Collection[AskedEnd], port: AskedPort
) -> Iterator[Choice]:
    """Yield the question, or the list, for each pair of ends."""
    for here in sources:
        for there in destinations:
            if here.is_namespace or there.is_namespace:
                if port.listed or not port.text:
                    terms = {"from_": here.name, "to": there.name, "port": port.listed}
                    words = f"Who of {here.name} reaches {there.name}{_on(port)}" if here.is_namespace else ""
                    words = words or f"Whom of {there.name} {here.name} reaches{_on(port)}"
                    yield Choice(words, address("/network", **terms))
                continue
            for name, known in _targets(snapshot, there.name, port):
                words = f"May {here.name} open a connection to {name} on {known.protocol} port {known.text}?"
                spoken = known.protocol if known.protocol != "TCP" else ""
                terms = {"from_": here.name, "to": name, "port": known.text, "protocol": spoken}
                yield Choice(words, asking("network", **terms), "network")


def _targets(snapshot: Snapshot, end: str, port: AskedPort) -> Iterator[tuple[str, AskedPort]]:
    """Yield the ports that are meant. A Service beside a workload of its name may be meant by ports of its direct."""
    direct, service = list(ports_of(snapshot, end, port)), service_of(snapshot, end)
    through: list[AskedPort] = []
    if service and (port.text.isdigit() or not port.text):
        known = list(ports_of(snapshot, end, AskedPort()))
        through = [each for each in own_ports(snapshot, service) if each not in known and port in (each, AskedPort())]
    elif service:
        through = [each for each in ports_of(snapshot, service, port) if each not in direct]
    yield from ((end, known) for known in direct)
    yield from ((service, known) for known in through)


def _on(port: AskedPort) -> str:
    return f" on {port.protocol} port {port.text}" if port.text else ""


def two_ends(snapshot: Snapshot, words: list[str]) -> Iterator[Choice]:
    """Yield the connections that two names without an arrow mean, if both are names of pods or workloads."""
    destination, port = split_port(" ".join(words[1:]))
    if " " not in destination and port.is_one:
        sources, destinations = list(ends(snapshot, words[0])), list(ends(snapshot, destination, is_target=True))
        if all(_is_known(snapshot, end) for end in (*sources, *destinations)):
            yield from connections(snapshot, sources, destinations, port)


def _is_known(snapshot: Snapshot, end: AskedEnd) -> bool:
    name = end.name.rpartition("/")[2]
    return end.name in named.ends(snapshot).get(name, ()) or end.name in named.services(snapshot).get(name, ())
