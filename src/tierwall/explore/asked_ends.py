"""The ends and ports of connections as people type them: bare names, kinds in short, namespaces, ports by name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from tierwall.attach.place import SERVICE
from tierwall.core.diagnostics import near_miss
from tierwall.explore import named
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import INGRESS, PortRange
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import list_of_maps
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import parse_address

_NUMBER_OR_NAME = r"(?:\d{1,7}|[a-z][-a-z0-9]*)"
_PORT = re.compile(
    r"(?P<end>.+?)(?:"
    rf"\s*:\s*(?:(?P<a>tcp|udp|sctp)[/\s]\s*)?(?P<p>{_NUMBER_OR_NAME})"
    rf"|\s+(?:on\s+|at\s+|over\s+|via\s+)?(?:(?P<b>tcp|udp|sctp)[/\s]\s*)?port\s+(?P<q>{_NUMBER_OR_NAME})"
    rf"|\s+(?:on|at|over|via)\s+(?:(?P<c>tcp|udp|sctp)[/\s]\s*)?(?P<r>{_NUMBER_OR_NAME})"
    r"|\s+(?:(?P<d>tcp|udp|sctp)[/\s]\s*)?(?P<s>\d{1,7})"
    r")(?:[/\s]\s*(?P<after>tcp|udp|sctp))?",
    re.IGNORECASE,
)
_ARTICLE = re.compile(r"(?:the|pods?|workload|deployment|service|namespace)\s+(?=\S)", re.IGNORECASE)
_OUTSIDE = ("outside", "internet", "the internet", "world")
# Kinds as people shorten them.
_SHORT = {"po": "Pod", "deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet", "rs": "ReplicaSet"}
_SHORT |= {"rc": "ReplicationController", "cj": "CronJob", "svc": "Service"}
_KINDS = {kind.lower(): kind for kind in (*_SHORT.values(), "Job")}
_KINDS |= {f"{name}s": kind for name, kind in _KINDS.items()} | _SHORT


class AskedPort(Struct, frozen=True):
    """A port as it was typed, a number or a name, and its protocol; empty if nobody typed one."""

    text: str = ""
    protocol: str = "TCP"


class AskedEnd(Struct, frozen=True):
    """One thing that the text of an end may mean. A namespace stands for all its pods."""

    name: str
    is_namespace: bool = False


def split_port(text: str) -> tuple[str, AskedPort]:
    """Take the port off the end of a text."""
    match = _PORT.fullmatch(text)
    if match is None or parse_address(text) is not None:
        return _plain(text), AskedPort()
    protocol = next(filter(None, (match[name] for name in ("a", "b", "c", "d", "after"))), "TCP")
    port = next(filter(None, (match[name] for name in "pqrs")))
    return _plain(match["end"]), AskedPort(port, protocol.upper())


def _plain(text: str) -> str:
    return _ARTICLE.sub("", text.strip(), count=2).removeprefix("[").removesuffix("]")


def ends(snapshot: Snapshot, text: str, is_target: bool = False) -> Iterator[AskedEnd]:
    """Yield what an end may mean; nothing if a bare name is nobody's. A name with a namespace is asked as it is."""
    text = _plain(text)
    if text.lower() in _OUTSIDE:
        yield AskedEnd("outside")
    elif text.startswith("node:") or parse_address(text) is not None:
        yield AskedEnd(text)
    elif text.endswith("/*") and text.count("/") == 1:
        yield AskedEnd(text[:-2], is_namespace=True)
    elif "/" in text:
        yield from _whole(snapshot, text, is_target)
    else:
        yield from map(AskedEnd, _bare(snapshot, text, is_target))
        for name in dict.fromkeys((text, text.lower())):
            if name in pod_namespaces(snapshot):
                yield AskedEnd(name, is_namespace=True)
                break


def _whole(snapshot: Snapshot, text: str, is_target: bool) -> Iterator[AskedEnd]:
    """Yield what a name with slashes may mean: `namespace/name`, `Kind/namespace/name` or `kind/name`."""
    first, _, rest = text.partition("/")
    kind = _KINDS.get(first.lower())
    if kind is not None and "/" in rest:
        yield AskedEnd(f"{kind}/{rest}")
    elif kind is not None and first not in pod_namespaces(snapshot):
        known = named.services(snapshot) if kind == "Service" else named.ends(snapshot)
        for whole in known.get(rest, ()):
            yield AskedEnd(whole if kind == "Service" else f"{kind}/{whole}")
    else:
        service = f"Service/{text}"
        is_pod = text in named.ends(snapshot).get(rest, ())
        yield AskedEnd(
            service if is_target and not is_pod and service in named.services(snapshot).get(rest, ()) else text
        )


def _bare(snapshot: Snapshot, text: str, is_target: bool) -> tuple[str, ...]:
    for name in dict.fromkeys((text, text.lower())):
        if known := named.ends(snapshot).get(name, ()):
            return known
        if is_target and (known := named.services(snapshot).get(name, ())):
            return known
    return ()


def near_end(snapshot: Snapshot, text: str) -> str:
    """Return a hint with a name that is nearly this one."""
    return near_miss(_plain(text), {*named.ends(snapshot), *named.services(snapshot), *pod_namespaces(snapshot)})


@per_snapshot
def pod_namespaces(snapshot: Snapshot) -> frozenset[str]:
    """Return the namespaces that have pods."""
    return frozenset(pod.namespace for pod in network_model(snapshot).pods)


def ports_of(snapshot: Snapshot, end: str, port: AskedPort) -> Iterator[AskedPort]:
    """Yield the port that was typed, a name as its numbers; without one, those that the end is known to have."""
    if port.text.isdigit():
        yield port
        return
    known: dict[tuple[int, str], None] = {}
    for name, protocol, number in _known_ports(snapshot, end):
        if not port.text or name == port.text.lower():
            known[number, protocol] = None
    yield from (AskedPort(str(number), protocol) for number, protocol in sorted(known))


def _known_ports(snapshot: Snapshot, end: str) -> Iterator[tuple[str, str, int]]:
    """Yield the ports that a Service has, or that a pod names or its policies mention: name, protocol, number."""
    if end.startswith("Service/"):
        _, namespace, name = end.split("/", 2)
        service = snapshot.get(*SERVICE, namespace, name)
        for entry in list_of_maps(service.spec.get("ports")) if service is not None else ():
            if type(number := entry.get("port")) is int:
                yield str(entry.get("name") or ""), str(entry.get("protocol") or "TCP"), number
        return
    network = network_model(snapshot)
    pod = next((pod for pod in network.pods if _is_end(pod, end)), None)
    if pod is None:
        return
    for name, pairs in pod.named_ports.items():
        yield from ((name, protocol, number) for protocol, number in pairs)
    for tier in network.stack(pod, INGRESS):
        for rule in (rule for policy in tier.policies for rule in policy.rules(INGRESS) or ()):
            for ports in rule.ports or ():
                if isinstance(ports, PortRange) and ports.first == ports.last:
                    yield "", ports.protocol, ports.first


def _is_end(pod: Endpoint, end: str) -> bool:
    namespace, _, name = "/".join(end.split("/")[-2:]).partition("/")
    return pod.namespace == namespace and name in (pod.name, pod.workload.name if pod.workload else "")
