"""Following pods: turn an added, removed or changed pod into changes of set elements.

Nothing is compiled anew. If a pod needs something that the table lacks (a class of its own, an address family, a
namespace), elements are not enough and the caller compiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, assert_never

from tierwall.core.labels import Selector
from tierwall.engines.nftables.table.compile import CompiledTable
from tierwall.engines.nftables.table.names import comment
from tierwall.engines.nftables.table.sets import Definition, NamedPortEnds, PeerEnds, family_of
from tierwall.engines.nftables.table.table import (
    PODS,
    Attached,
    ChainVerdict,
    Element,
    ElementChange,
    NamedSet,
    Table,
    VerdictWord,
)
from tierwall.network.model.endpoints import NAMESPACE_NAME, Endpoint, has_ended, pod_endpoint
from tierwall.network.model.rules import Direction, peers_by_kind
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot


class PodChange(NamedTuple):
    """One pod before and after; None if it did not exist, no longer does, or has ended."""

    before: Resource | None
    after: Resource | None


class PodStep(NamedTuple):
    """The effect of changed pods on a table: elements, the table after them, and each pod's new endpoint or None."""

    pods: int
    elements: list[tuple[str, ElementChange]]
    table: Table
    endpoints: list[tuple[tuple[str, str], Endpoint | None]]


def pod_changes(old: Snapshot, new: Snapshot) -> list[PodChange] | None:
    """Return the pods that differ between two snapshots; None if anything else differs."""
    out = []
    for before, after in new.changes(old):
        if before is not None and after is not None and content_of(before) == content_of(after):
            continue
        if any(resource is not None and (resource.group, resource.kind) != ("", "Pod") for resource in (before, after)):
            return None
        pod = PodChange(*(None if pod is None or has_ended(pod) else pod for pod in (before, after)))
        if pod != (None, None):
            out.append(pod)
    return out


def content_of(resource: Resource) -> tuple[str, str]:
    """Return the content of an object without its position; as a string, because `1 == True` in Python."""
    return resource.version, repr(resource.value)


class FollowedTable:
    """A compiled table that is kept in step with its pods."""

    def __init__(self, compiled: CompiledTable) -> None:
        self.compiler = compiled.compiler
        self.table: Table = compiled.table
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        self._owners: dict[Element, int] = {}
        model, wire = self.compiler.model, self.compiler.wire
        for pod in model.pods:
            self._endpoints[pod.namespace, pod.name] = pod
        for endpoint in (*model.pods, *model.nodes):
            for address in wire.addresses(endpoint):
                self._owners[address] = self._owners.get(address, 0) + 1
        # Definitions that can only hold pods of certain namespaces, by namespace; then all others.
        self._in_namespace: dict[str, list[tuple[Definition, dict[int, str]]]] = {}
        self._anywhere: list[tuple[Definition, dict[int, str]]] = []
        for definition, names in self.compiler.sets.definitions:
            spaces = _namespaces(definition)
            if spaces is None:
                self._anywhere.append((definition, dict(names)))
            for namespace in spaces or ():
                self._in_namespace.setdefault(namespace, []).append((definition, dict(names)))

    def judged_pods(self, step: PodStep | None = None) -> Iterator[Endpoint]:
        """Yield the pods that the table judges, after a step if one is given."""
        after = {**self._endpoints, **dict(step.endpoints)} if step is not None else self._endpoints
        yield from (pod for pod in after.values() if pod is not None and self.compiler.is_judged(pod))

    def step(self, pods: Sequence[PodChange]) -> PodStep | None:
        """Work out the effect of changed pods, without applying it; None if elements are not enough."""
        removed: dict[str, dict[Element, Attached]] = {}
        added: dict[str, dict[Element, Attached]] = {}
        after: list[tuple[tuple[str, str], Endpoint | None]] = []
        taken: set[Element] = set()
        for change in pods:
            place = change.before or change.after
            assert place is not None
            key = place.namespace, place.name
            before = self._endpoints.get(key) if change.before is not None else None
            if (before is None) is not (change.before is None) or not self._has_unshared_addresses(before):
                return None
            new = self._endpoint(change.after) if change.after is not None else None
            if change.after is not None and (new is None or not self._fits(new, before)):
                return None
            # Two pods of one step may come to share an address, too.
            if new is not None and not taken.isdisjoint(new.addresses):
                return None
            taken.update(new.addresses if new is not None else ())
            for endpoint, out in ((before, removed), (new, added)):
                for name, element, attached in self._elements_of(endpoint) if endpoint is not None else ():
                    out.setdefault(name, {})[element] = attached
            after.append((key, new))
        return PodStep(len(pods), *self._change_elements(removed, added), after)

    def _endpoint(self, resource: Resource) -> Endpoint | None:
        """Return the pod as an endpoint; None if its namespace is unknown, and with it the namespace's labels."""
        labels = self.compiler.model.namespaces.get(resource.namespace)
        if labels is None:
            return None
        status = nested_map(resource.value, "status")
        return pod_endpoint(resource.namespace, resource.name, labels, resource.metadata, resource.spec, status, None)

    def _has_unshared_addresses(self, endpoint: Endpoint | None) -> bool:
        return endpoint is None or (
            endpoint.under_policy and all(self._owners.get(address, 0) <= 1 for address in endpoint.addresses)
        )

    def _fits(self, endpoint: Endpoint, before: Endpoint | None) -> bool:
        """Whether the table has everything a pod needs, now or once it has an address: families, sets and classes."""
        compiler, sets = self.compiler, self.compiler.sets
        addresses_before = before.addresses if before is not None else ()
        shares = any(self._owners.get(address, 0) > (address in addresses_before) for address in endpoint.addresses)
        families = {family_of(address) for address in endpoint.addresses}
        several = len(endpoint.addresses) > 1 and not sets.several
        if not endpoint.under_policy or shares or several or not families <= sets.families:
            return False
        chains = (
            [compiler.class_of(endpoint, direction) for direction in Direction] if compiler.is_judged(endpoint) else []
        )
        return all(not chain or chain in self.table.chains for chain in chains)

    def _elements_of(self, endpoint: Endpoint) -> Iterator[tuple[str, Element, Attached]]:
        """Yield every element that a pod stands for: the set, the key, and what is attached to it."""
        compiler = self.compiler
        for definition, by_family in (*self._anywhere, *self._in_namespace.get(endpoint.namespace, ())):
            for element in definition.adding(compiler.model, compiler.wire)(endpoint):
                yield by_family[family_of(element)], element, ""
        if not endpoint.under_policy:
            return
        for address in endpoint.addresses:
            yield f"{PODS}{family_of(address)}", address, comment(str(endpoint))
            for direction in Direction:
                if compiler.is_judged(endpoint) and (chain := compiler.class_of(endpoint, direction)):
                    yield compiler.maps[direction, family_of(address)], address, ChainVerdict(VerdictWord.GOTO, chain)

    def _change_elements(
        self, removed: dict[str, dict[Element, Attached]], added: dict[str, dict[Element, Attached]]
    ) -> tuple[list[tuple[str, ElementChange]], Table]:
        """Return the elements that really change, and the table with them."""
        moved: list[tuple[str, ElementChange]] = []
        sets: dict[str, NamedSet] = dict(self.table.sets)
        for name in dict.fromkeys((*removed, *added)):
            part = sets[name]
            change = ElementChange.between(removed.get(name, {}), added.get(name, {}))
            if change.removed or change.added:
                moved.append((name, change))
                kept = {key: attached for key, attached in part.elements.items() if key not in change.removed}
                sets[name] = NamedSet(part.kind, part.family, kept | change.added, part.comment)
        return moved, Table(self.table.counters, sets, self.table.chains)

    def take(self, step: PodStep) -> None:
        """Make the table after a step of this table the current one."""
        self.table = step.table
        for key, new in step.endpoints:
            old = self._endpoints.pop(key, None)
            for address in old.addresses if old is not None else ():
                self._owners[address] -= 1
            if new is not None:
                self._endpoints[key] = new
                for address in new.addresses:
                    self._owners[address] = self._owners.get(address, 0) + 1


def _namespaces(definition: Definition) -> set[str] | None:
    """Return the only namespaces whose pods a definition can hold; None if it does not name them."""
    out: set[str] = set()
    match definition:
        case NamedPortEnds():
            return None
        case PeerEnds():
            pods, networks, nodes, domains = peers_by_kind(definition.peers)
        case _:
            assert_never(definition)
    if networks or nodes or domains:
        return None
    for peer in pods:
        assert isinstance(peer.namespaces, Selector), "related peers are resolved before sets are made"
        named = [
            requirement.values
            for requirement in peer.namespaces.requirements
            if (requirement.key, requirement.operator) == (NAMESPACE_NAME, "In")
        ]
        if not named:
            return None
        out.update(named[0])
    return out
