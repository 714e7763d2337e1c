"""The ends and ports of connections as people type them: bare names, kinds in short, namespaces, ports by name.

A name of DNS stands for the Service or pod that has it, a label for the workloads that have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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

_NUMBERS = r"\d{1,7}(?:\s*-\s*\d{1,7})?(?:\s*,\s*\d{1,7}(?:-\d{1,7})?)*"
_NUMBER_OR_NAME = rf"(?:{_NUMBERS}|[a-z][-a-z0-9]*)"
_PORT = re.compile(
    r"(?P<end>.+?)(?:"
    rf"\s*:\s*(?:(?P<a>tcp|udp|sctp)[/\s]\s*)?(?P<p>{_NUMBER_OR_NAME})"
    rf"|\s+(?:on\s+|at\s+|over\s+|via\s+)?(?:(?P<b>tcp|udp|sctp)[/\s]\s*)?port\s+(?P<q>{_NUMBER_OR_NAME})"
    rf"|\s+(?:on|at|over|via)\s+(?:(?P<c>tcp|udp|sctp)[/\s]\s*)?(?P<r>{_NUMBER_OR_NAME})"
    rf"|\s+(?:(?P<d>tcp|udp|sctp)[/\s]\s*)?(?P<s>{_NUMBERS})"
    r")(?:[/\s]\s*(?P<after>tcp|udp|sctp))?",
    re.IGNORECASE,
)
_ARTICLE = re.compile(r"(?:(?:the|pods?|workload|deployment|service|namespace)\s+(?=\S)){1,2}", re.IGNORECASE)
_ALL_IN = re.compile(
    r"(?:(?:all|any|every|the)\s+)*(?:pods?|workloads?|everything|anything)\s+(?:in|of)\s+(?:the\s+)?(?:namespace\s+)?"
    r"(?P<name>\S+)(?:\s+namespace)?|(?:the\s+)?(?P<before>\S+)\s+namespace",
    re.IGNORECASE,
)
_URL = re.compile(
    r"(?P<scheme>[a-z][-+.a-z0-9]*)://(?P<host>\[[^]\s]*\]|[^/:\s]+)(?P<port>:\d{1,7})?(?:/\S*)?", re.IGNORECASE
)
_SCHEMES = {"http": "80", "https": "443"}
# A name of DNS: its last part is not a number.
_DOMAIN = re.compile(r"(?:[a-z0-9_*][-a-z0-9_]*\.)+[a-z][-a-z0-9]*\.?", re.IGNORECASE)
_LABEL = re.compile(r"(?P<key>[^\s=,!]+)={1,2}(?P<value>[^\s=,]*)")
_OUTSIDE = ("outside", "internet", "the internet", "world", "the world", "the outside", "public")
_NODES = ("nodes", "node:*", "any node", "all nodes", "every node")
# Kinds as people shorten them.
_SHORT = {"po": "Pod", "deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet", "rs": "ReplicaSet"}
_SHORT |= {"rc": "ReplicationController", "cj": "CronJob", "svc": "Service"}
_KINDS = {kind.lower(): kind for kind in (*_SHORT.values(), "Job")}
_KINDS |= {f"{name}s": kind for name, kind in _KINDS.items()} | _SHORT


class AskedPort(Struct, frozen=True):
    """A port as it was typed, a number, several, or a name, and its protocol; empty if nobody typed one."""

    text: str = ""
    protocol: str = "TCP"

    @property
    def listed(self) -> tuple[str, ...]:
        """The port as lists of connections take it: no name has such a form."""
        parts = self.text.replace(" ", "").split(",")
        return tuple(f"{part}/{self.protocol}" for part in parts) if self.text[:1].isdigit() else ()

    @property
    def is_one(self) -> bool:
        """Whether this is one number or name, or nothing."""
        return self.text.isdigit() or not self.text[:1].isdigit()


class AskedEnd(Struct, frozen=True):
    """One thing that the text of an end may mean. A namespace stands for all its pods."""

    name: str
    is_namespace: bool = False


def split_port(text: str) -> tuple[str, AskedPort]:
    """Take the port off the end of a text; an address of the web has one even if it does not name it."""
    if url := _URL.fullmatch(text.strip()):
        text = f"{url['host']}{url['port'] or ':' + _SCHEMES.get(url['scheme'].lower(), '')}".rstrip(":")
    match = _PORT.fullmatch(text)
    if match is None or parse_address(text) is not None:
        return _plain(text), AskedPort()
    protocol = next(filter(None, (match[name] for name in ("a", "b", "c", "d", "after"))), "TCP")
    port = next(filter(None, (match[name] for name in "pqrs")))
    return _plain(match["end"]), AskedPort(port, protocol.upper())


def _plain(text: str) -> str:
    text = text.strip()
    if all_in := _ALL_IN.fullmatch(text):
        return f"{all_in['name'] or all_in['before']}/*"
    article = _ARTICLE.match(text)
    return text[article.end() if article else 0 :].removeprefix("[").removesuffix("]")


def is_domain(text: str) -> bool:
    """Whether a text looks like a name of DNS."""
    return _DOMAIN.fullmatch(_plain(text)) is not None


def ends(snapshot: Snapshot, text: str, is_target: bool = False) -> Iterator[AskedEnd]:
    """Yield what an end may mean; nothing if a bare name is nobody's. A name with a namespace is asked as it is."""
    text = _plain(text)
    if text.lower() in _OUTSIDE:
        yield AskedEnd("outside")
    elif text.lower() in _NODES:
        yield AskedEnd("node:*", is_namespace=True)
    elif text.startswith("node:") or parse_address(text) is not None:
        yield AskedEnd(text)
    elif text.endswith("/*") and text.count("/") == 1:
        yield AskedEnd(text[:-2], is_namespace=True)
    elif "=" in text:
        yield from map(AskedEnd, dict.fromkeys(_labelled(snapshot, text)))
    elif "/" in text and " " in text:
        # Several names, or a sentence. A name that nobody validated may have spaces all the same.
        known = named.ends(snapshot).get(text.rpartition("/")[2], ())
        yield from (AskedEnd(whole) for whole in known if whole == text)
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
    # `deployments.apps/web`, as kubectl writes it.
    kind = _KINDS.get(first.lower().partition(".")[0])
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
    return tuple(_of_dns(snapshot, text.lower(), is_target)) if is_domain(text) else ()


def _of_dns(snapshot: Snapshot, text: str, is_target: bool) -> Iterator[str]:
    """Yield the Service or pod that a name of the cluster's DNS leads to: `db.shop.svc`, `db-0.db.shop`."""
    name, *rest = text.removesuffix(".").removesuffix(".cluster.local").removesuffix(".svc").split(".")
    service = f"Service/{rest[-1]}/{name}"
    if len(rest) == 1 and is_target and service in named.services(snapshot).get(name, ()):
        yield service
    elif len(rest) in (1, 2) and (whole := f"{rest[-1]}/{name}") in named.ends(snapshot).get(name, ()):
        yield whole


def _labelled(snapshot: Snapshot, text: str) -> Iterator[str]:
    """Yield the workloads, and the pods without one, that have a label."""
    label = _LABEL.fullmatch(text)
    for pod in network_model(snapshot).pods if label is not None else ():
        if label is not None and pod.labels.get(label["key"]) == label["value"]:
            yield f"{pod.namespace}/{pod.workload.name}" if pod.workload else str(pod)


def service_of(snapshot: Snapshot, end: str) -> str:
    """Return the Service that has the name of a pod or workload; empty if no Service has it."""
    service = f"Service/{end}"
    return service if service in named.services(snapshot).get(end.rpartition("/")[2], ()) else ""


def behind(snapshot: Snapshot, service: str) -> tuple[str, ...]:
    """Return the workloads, and the pods without one, that a Service selects."""
    _, namespace, name = service.split("/", 2)
    selecting = snapshot.get(*SERVICE, namespace, name)
    selector = selecting.spec.get("selector") if selecting is not None else None
    if not isinstance(selector, dict) or not selector:
        return ()
    pods = (pod for pod in network_model(snapshot).pods if pod.namespace == namespace)
    selected = (pod for pod in pods if selector.items() <= dict(pod.labels).items())
    return tuple(dict.fromkeys(f"{namespace}/{pod.workload.name}" if pod.workload else str(pod) for pod in selected))


def ports_behind(snapshot: Snapshot, service: str, port: AskedPort) -> Iterator[AskedPort]:
    """Yield the ports of pods to which a port of a Service leads, by number or by name."""
    pods = behind(snapshot, service)
    for entry in _service_ports(snapshot, service):
        protocol = str(entry.get("protocol") or "TCP")
        number, target = entry.get("port"), entry.get("targetPort") or entry.get("port")
        if port.text not in (str(number), entry.get("name")) or protocol != port.protocol:
            continue
        if type(target) is int:
            yield AskedPort(str(target), protocol)
        elif isinstance(target, str):
            yield from (known for pod in pods for known in ports_of(snapshot, pod, AskedPort(target, protocol)))


def own_ports(snapshot: Snapshot, service: str) -> Iterator[AskedPort]:
    """Yield the ports of a Service that lead to another number or to a name."""
    for entry in _service_ports(snapshot, service):
        if type(number := entry.get("port")) is int and entry.get("targetPort", number) != number:
            yield AskedPort(str(number), str(entry.get("protocol") or "TCP"))


def near_end(snapshot: Snapshot, text: str) -> str:
    """Return a hint with a name that is nearly this one."""
    near = near_miss(_plain(text), {*named.ends(snapshot), *named.services(snapshot), *pod_namespaces(snapshot)})
    if not near and is_domain(text):
        return "policies see addresses, not names: ask about one, or about `outside`"
    return near or "an end is a pod, a workload, a Service, a namespace, an address, or `outside`"


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
        for entry in _service_ports(snapshot, end):
            if type(number := entry.get("port")) is int:
                yield str(entry.get("name") or ""), str(entry.get("protocol") or "TCP"), number
        return
    network = network_model(snapshot)
    pod = next((pod for pod in network.pods if is_end(pod, end)), None)
    if pod is None:
        return
    for name, pairs in pod.named_ports.items():
        yield from ((name, protocol, number) for protocol, number in pairs)
    for tier in network.stack(pod, INGRESS):
        for rule in (rule for policy in tier.policies for rule in policy.rules(INGRESS) or ()):
            for ports in rule.ports or ():
                if isinstance(ports, PortRange) and ports.first == ports.last:
                    yield "", ports.protocol, ports.first


def _service_ports(snapshot: Snapshot, end: str) -> Sequence[Mapping[str, Any]]:
    _, namespace, name = end.split("/", 2)
    service = snapshot.get(*SERVICE, namespace, name)
    return list_of_maps(service.spec.get("ports")) if service is not None else ()


def is_end(pod: Endpoint, end: str) -> bool:
    """Whether a pod is what an end names: itself, or its workload."""
    namespace, _, name = "/".join(end.split("/")[-2:]).partition("/")
    return pod.namespace == namespace and name in (pod.name, pod.workload.name if pod.workload else "")
