"""Writes the smallest connection that refutes a claim: objects that people can paste, and a question about them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tierwall.network.model.endpoints import Endpoint
from tierwall.network.question import NetworkQuestion
from tierwall.proofs.network.connection import SymbolicConnection
from tierwall.proofs.network.smallest import ChosenConnection, ChosenEnd, usual_ranges
from tierwall.proofs.network.vocabulary import OTHER, LabelAtoms
from tierwall.proofs.result import RefutationCandidate
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Address, Span, format_address

Manifest = dict[str, Any]

_NO_ADDRESS = (
    "a pod without an address, which rules by address do not match: with one, this connection has no such answer"
)


class ManifestWriter:
    """Writes one connection. It gives names, values and addresses to what is new, and none twice."""

    def __init__(self, connection: SymbolicConnection, chosen: ChosenConnection, snapshots: Sequence[Snapshot]) -> None:
        self._connection = connection
        self._ground = connection.ground
        self._chosen = chosen
        self._snapshots = snapshots
        self._taken: set[Address] = set(connection.vocabulary.addresses.taken)
        # What is put over each side: of a change, what the other side has counts as something that may come.
        self._objects: list[dict[tuple[str, str, str], Manifest]] = [{} for _ in snapshots]

    def candidate(self) -> RefutationCandidate:
        """Return the objects and the question."""
        chosen = self._chosen
        names = self._namespace_names()
        source = self._end(chosen.source, names[0], "client", 0)
        to = source if chosen.same_pod else self._end(chosen.to, names[1], "server", 1)
        question = NetworkQuestion(source=source, to=to, protocol=chosen.port.protocol, port=chosen.port.first)
        sides = [tuple(objects.values()) for objects in self._objects]
        note = _NO_ADDRESS if chosen.needs_no_address else ""
        return RefutationCandidate(sides[-1], question, sides[0] if len(sides) > 1 else (), note)

    # Namespaces

    def _namespace_names(self) -> tuple[str, str]:
        """Give names to new namespaces, and put those with labels among the objects."""
        chosen, known = self._chosen, self._connection.vocabulary.namespaces.values("kubernetes.io/metadata.name")
        first, second = chosen.source.namespace, chosen.to.namespace
        if first == OTHER:
            first = _unused(("new", "new-namespace"), known)
        if second == OTHER:
            second = first if chosen.same_namespace else _unused(("other", "other-namespace"), (*known, first))
        here, there = ({**end.namespace_labels} for end in (chosen.source, chosen.to))
        for key in dict.fromkeys((*here, *there)):
            values = self._connection.vocabulary.namespaces.values(key)
            value = _unused(("x", "y", "z"), values)
            if here.get(key) == OTHER:
                here[key] = value
            if there.get(key) == OTHER:
                is_equal = chosen.same_namespace or key in chosen.equal
                there[key] = value if is_equal else _unused(("y", "x", "z"), (*values, value))
        for end, name, labels in ((chosen.source, first, here), (chosen.to, second, there)):
            if end.sort in ("pod", "host pod") or self._is_pod(end):
                self._put_namespace(name, labels)
        return first, second

    def _is_pod(self, end: ChosenEnd) -> bool:
        return end.group is not None and self._connection.groups[end.group].kind == "pod"

    def _put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        declared = self._ground.declared.get(name)
        for number, snapshot in enumerate(self._snapshots):
            if snapshot.get("", "Namespace", "", name) is not None:
                continue
            of_side = labels if declared is None else declared[number]
            written = {key: value for key, value in of_side.items() if key != "kubernetes.io/metadata.name"}
            if written:
                self._put(number, _object("Namespace", name, labels=written))

    # Ends

    def _end(self, end: ChosenEnd, namespace: str, name: str, place: int) -> str | dict[str, str]:
        """Put what is new about an end among the objects, and return it as a question names it."""
        if end.group is not None:
            return self._existing(end, end.group, place)
        if end.sort == "outside":
            return {"ip": format_address(self._new_address(end, end.pieces[0]))}
        if end.sort == "node":
            return {"node": self._new_node(end, [self._new_address(end, piece) for piece in end.pieces])}
        taken = {pod for space, pod in self._ground.pods if space == namespace}
        name = _unused((name,), taken)
        labels = self._labels(end.labels, self._connection.vocabulary.pods)
        spec: Manifest = {}
        addresses = [self._new_address(end, piece) for piece in end.pieces]
        if end.sort == "host pod":
            spec["hostNetwork"] = True
            if end.on_node is not None:
                node = self._connection.groups[end.on_node].members[0]
                spec["nodeName"], addresses = node.name, list(node.addresses)
            elif addresses:
                spec["nodeName"] = self._new_node(end, addresses)
        port = self._chosen.port
        ports = dict.fromkeys(end.port_names, ((port.protocol, port.first),))
        self._put_everywhere(pod_manifest(namespace, name, labels, ports, addresses, spec))
        return f"{namespace}/{name}"

    def _existing(self, end: ChosenEnd, number: int, place: int) -> str | dict[str, str]:
        group = self._connection.groups[number]
        is_second = place == 1 and self._chosen.source.group == number and len(group.members) > 1
        member = group.members[1 if is_second else 0]
        if member.kind == "node":
            self._put_missing_nodes(member)
            return {"node": member.name}
        self._put_missing_nodes(member)
        if end.pieces:
            self._put_everywhere(_pod_of(member, [self._new_address(end, piece) for piece in end.pieces]))
        else:
            for side, model in enumerate(self._ground.models):
                if model.pod(member.namespace, member.name) is None:
                    self._put(side, _pod_of(member, member.addresses))
        return str(member)

    def _put_missing_nodes(self, end: Endpoint) -> None:
        """Put the nodes of an end's addresses where only the other side has them."""
        for versions in self._ground.nodes.values():
            node = versions[-1]
            if end.kind == "node" and node.name != end.name:
                continue
            if not set(node.addresses) & set(end.addresses):
                continue
            for side, model in enumerate(self._ground.models):
                if model.node(node.name) is None:
                    self._put(side, node_manifest(node.name, node.labels, node.addresses))

    def _new_node(self, end: ChosenEnd, addresses: Sequence[Address]) -> str:
        name = _unused(("new-node",), {name for _, name in self._ground.nodes})
        labels = self._labels(end.node_labels, self._connection.vocabulary.nodes)
        self._put_everywhere(node_manifest(name, labels, addresses))
        return name

    def _labels(self, atoms: Mapping[str, str], known: LabelAtoms) -> dict[str, str]:
        return {
            key: _unused(("x", "y", "z"), known.values(key)) if value == OTHER else value
            for key, value in atoms.items()
        }

    def _new_address(self, end: ChosenEnd, piece: int) -> Address:
        """Return an address of a piece that nobody has, of a usual range where there is one."""
        spans = self._connection.vocabulary.addresses.spans[piece]
        address = next(_candidates(spans, usual_ranges(end.sort), self._taken))
        self._taken.add(address)
        return address

    def _put_everywhere(self, manifest: Manifest) -> None:
        for number in range(len(self._objects)):
            self._put(number, manifest)

    def _put(self, number: int, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        self._objects[number][manifest["kind"], metadata.get("namespace", ""), metadata["name"]] = manifest


def pod_manifest(
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    ports: Mapping[str, Iterable[tuple[str, int]]],
    addresses: Sequence[Address],
    spec: Mapping[str, Any],
) -> Manifest:
    """Return the manifest of a pod."""
    container: Manifest = {"name": "main", "image": "example"}
    written = [
        {"name": port_name, "containerPort": port, "protocol": protocol}
        for port_name, pairs in ports.items()
        for protocol, port in pairs
    ]
    if written:
        container["ports"] = written
    manifest = _object("Pod", name, namespace, labels) | {"spec": {**spec, "containers": [container]}}
    if addresses:
        texts = list(map(format_address, addresses))
        manifest["status"] = {"podIP": texts[0], "podIPs": [{"ip": text} for text in texts]}
    return manifest


def _pod_of(end: Endpoint, addresses: Sequence[Address]) -> Manifest:
    spec = {} if end.under_policy else {"hostNetwork": True}
    return pod_manifest(end.namespace, end.name.rpartition(":")[2], end.labels, end.named_ports, addresses, spec)


def node_manifest(name: str, labels: Mapping[str, str], addresses: Iterable[Address]) -> Manifest:
    """Return the manifest of a node."""
    entries = [{"type": "InternalIP", "address": format_address(address)} for address in addresses]
    return _object("Node", name, labels=labels) | {"status": {"addresses": entries}}


def _object(kind: str, name: str, namespace: str = "", labels: Mapping[str, str] | None = None) -> Manifest:
    metadata: Manifest = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def _unused(names: Sequence[str], taken: Container[str]) -> str:
    """Return the first name that is not taken, or one with a number."""
    for name in names:
        if name not in taken:
            return name
    number = 2
    while f"{names[0]}{number}" in taken:
        number += 1
    return f"{names[0]}{number}"


def _candidates(spans: Sequence[Span], usual_spans: Iterable[Span], taken: Container[Address]) -> Iterator[Address]:
    """Yield free addresses: of usual ranges first, and not the first of a range, which is rarely a host's."""
    usual = [
        Span(max(low, span.low), min(high, span.high))
        for low, high in usual_spans
        for span in spans
        if span.low <= high and low <= span.high
    ]
    for low, high in (*usual, *spans):
        start = low + 1 if high > low else low
        yield from (address for address in range(start, high + 1) if address not in taken)
        if low not in taken:
            yield low
