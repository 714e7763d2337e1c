"""Regions of connections: from where, to where, on which ports (docs/prove.md#regions).

An end is pods by labels, `{pod: …}` or `{workload: …}` for what is there, `{ip: …}`, or anything: pods, nodes and
addresses outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from tierwall.core.diagnostics import near_miss
from tierwall.core.labels import EVERYTHING, Selector
from tierwall.network.model.endpoints import LAST_PORT, PROTOCOLS
from tierwall.network.model.rules import PortRange
from tierwall.proofs.proof import read_blocks
from tierwall.proofs.reader import ProofReader, shown
from tierwall.values.addresses import Span

_ANYTHING = "anything"
_END_KEYS = ("namespaces", "pods", "pod", "workload", "ip")


class EndRegion(Struct, frozen=True):
    """One end. `labels` select pods that may come; `name` is a pod or workload; `spans` are addresses.

    All three are None for anything.
    """

    labels: tuple[Selector, Selector] | None = None
    name: str | None = None
    spans: tuple[Span, ...] | None = None


class NetworkRegion(Struct, frozen=True):
    """The connections that a claim is about."""

    source: EndRegion = EndRegion()
    to: EndRegion = EndRegion()
    ports: tuple[PortRange, ...] = ()
    # Whether both ends must not be the same pod.
    other: bool = True


def read_region(value: object, reader: ProofReader) -> NetworkRegion:
    """Read a region; everything wrong with it is noted."""
    given = reader.map(value, "a region of the network plane", ("from", "to", "protocol", "port", "other"))
    return NetworkRegion(
        _read_end(given.get("from", _ANYTHING), "from", reader.at("from")),
        _read_end(given.get("to", _ANYTHING), "to", reader.at("to")),
        tuple(_read_ports(given, reader)),
        reader.at("other").true_or_false(given.get("other", True), "other"),
    )


def _read_end(value: object, key: str, reader: ProofReader) -> EndRegion:
    if value == _ANYTHING:
        return EndRegion()
    if not isinstance(value, Mapping):
        hint = near_miss(value, (_ANYTHING,)) if isinstance(value, str) else ""
        if isinstance(value, str) and "/" in value:
            hint = f"for what is there, write {{pod: {value}}} or {{workload: {value}}}"
        reader.refuse(f"expected a map or `{_ANYTHING}` as `{key}`, found {shown(value)}", hint)
        return EndRegion()
    given = reader.map(value, f"`{key}`", _END_KEYS)
    alone = [word for word in ("pod", "workload", "ip") if word in given]
    if len(alone) > 1 or (alone and len(given) > 1):
        words = ", ".join(f"`{word}`" for word in given)
        reader.refuse(f"expected labels (`namespaces`, `pods`) or one of pod, workload, ip in `{key}`, found {words}")
        return EndRegion()
    if "ip" in given:
        return EndRegion(spans=read_blocks(given["ip"], "ip", reader.at("ip")))
    if alone:
        (word,) = alone
        name = given[word]
        if not isinstance(name, str) or not name:
            example = "`namespace/name`" if word == "pod" else "`namespace/name` or `Deployment/namespace/name`"
            reader.at(word).refuse(f"expected {example} as `{word}`, found {shown(name)}")
            return EndRegion()
        return EndRegion(name=name)
    selectors = [
        reader.at(word).selector(given[word]) if word in given else EVERYTHING for word in ("namespaces", "pods")
    ]
    return EndRegion(labels=(selectors[0], selectors[1]))


def _read_ports(given: Mapping[str, Any], reader: ProofReader) -> Iterator[PortRange]:
    """Yield the ports of a region; a protocol or port that is left out may be any."""
    protocols: tuple[str, ...] = PROTOCOLS
    if "protocol" in given:
        wanted = reader.at("protocol").value_set(given["protocol"], "protocol")
        for text in wanted.values:
            if wanted.form in ("in", "not") and text not in PROTOCOLS:
                known = ", ".join(PROTOCOLS)
                reader.at("protocol").refuse(
                    f"expected one of {known} as `protocol`, found {shown(text)}", near_miss(text, PROTOCOLS)
                )
        protocols = tuple(protocol for protocol in PROTOCOLS if wanted.contains(protocol))
        if not protocols and wanted.form not in ("in", "not"):
            reader.at("protocol").refuse(f"none of {', '.join(PROTOCOLS)} is in `protocol`")
    ranges = [(1, LAST_PORT)]
    if "port" in given:
        port, part = given["port"], reader.at("port")
        if isinstance(port, Mapping):
            if port.keys() != {"not"} or not isinstance(port["not"], list | tuple):
                part.refuse(f"expected a port, a range, a list or {{not: [...]}} as `port`, found {shown(port)}")
            else:
                ranges = _others(sorted(_read_ranges(port["not"], part.at("not"))))
        else:
            ports = port if isinstance(port, list | tuple) else [port]
            if not ports:
                part.refuse("expected a port, a range or a list of them as `port`, found an empty list")
            ranges = list(_read_ranges(ports, part))
    for protocol in protocols:
        for first, last in ranges:
            yield PortRange(protocol, first, last)


def _read_ranges(values: Any, reader: ProofReader) -> Iterator[tuple[int, int]]:
    for value in values:
        first, dash, last = str(value).partition("-")
        bounds = [int(text) for text in (first, last if dash else first) if text.isascii() and text.isdigit()]
        is_written = type(value) is int or isinstance(value, str)
        if is_written and len(bounds) == 2 and 1 <= bounds[0] <= bounds[1] <= LAST_PORT:
            yield bounds[0], bounds[1]
        else:
            expected = f"a number from 1 to {LAST_PORT} or a range such as 8000-8080"
            reader.refuse(f"expected {expected} as `port`, found {shown(value)}")


def _others(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ports that no range has."""
    others, start = [], 1
    for first, last in ranges:
        if first > start:
            others.append((start, first - 1))
        start = max(start, last + 1)
    return [*others, (start, LAST_PORT)] if start <= LAST_PORT else others
