"""Exposure: what future pods could reach, and what could reach them, by label.

Policies also apply to pods and namespaces created later, so a cluster allows more than what its pods can do today. A
hypothetical pod stands in for every sort of pod that policies tell apart: by its labels, in each existing namespace and
in namespaces that do not exist yet, by their labels. The connections of the hypothetical pods, as if they existed, are
the exposure. Each sort is named by selectors that are true of all of it and of nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations, islice, product
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.labels import EVERYTHING, Requirement, Selector
from tierwall.core.reference import Reference
from tierwall.network.model.endpoints import NAMESPACE_NAME, Endpoint
from tierwall.network.model.model import NetworkModel, network_model, provide_network_model
from tierwall.network.model.rules import TieredPolicy, peers_by_kind
from tierwall.network.reach.classes import EndpointClasses, RelevantAttributes
from tierwall.network.reach.label_space import OTHER_VALUE, LabelBox, LabelSpace, join, regions
from tierwall.network.reach.matrix import reach_matrix
from tierwall.network.reach.own_classes import relevant_attributes
from tierwall.network.reach.spaces import bits, mask_of
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.network.reach.listing import ConnectionEntry

# The most hypothetical pods. With more sorts than this, namespaces are left out, or sorts are told apart less finely.
MAX_SORTS = 1000
# The most keys that the selectors of one sort may have, and the most selectors times keys that are told apart. No usual
# cluster comes near; a policy that is meant to exhaust memory does.
MAX_KEYS, MAX_BOXES = 64, 50_000
# The most namespaces that are named one by one.
MAX_NAMES = 5
_PREFIX = "tierwall-any-"
_UNUSED_PORT = 64_999


class HypotheticalPod(Struct, frozen=True):
    """A hypothetical pod: a sort of pods that policies do not tell apart, by the boxes of its labels.

    It is in one of `namespaces`, which exist and are alike for policies, or in a new namespace if that is empty. The
    boxes are those of a new namespace's labels, followed by those of the pod's labels.
    """

    space: _SortSpace
    namespaces: tuple[str, ...]
    boxes: tuple[LabelBox, ...]

    @property
    def labels(self) -> tuple[dict[str, str], dict[str, str]]:
        """The labels of the namespace, or its name, and the labels of the pod; as few as possible."""
        if self.namespaces:
            return {NAMESPACE_NAME: self.namespaces[0]}, self.space.of_pods.labels(self.boxes[0])
        in_namespace, in_pod = self.space.split(self.boxes[0])
        labels = self.space.of_namespaces.labels(in_namespace)
        if labels.get(NAMESPACE_NAME, "").startswith(OTHER_VALUE):
            del labels[NAMESPACE_NAME]
        return labels, self.space.of_pods.labels(in_pod)

    def __str__(self) -> str:
        """Name the pod as an example of its sort."""
        namespace, pod = self.labels
        pods = f"any pod with {_labels(pod)}" if pod else "any pod"
        named = namespace.get(NAMESPACE_NAME)
        if named is not None:
            return f"{pods} in {named}"
        return f"{pods} in a namespace with {_labels(namespace)}" if namespace else f"{pods} in any other namespace"


class _SortSpace:
    """Everything by which policies can tell future pods apart."""

    def __init__(
        self, network: NetworkModel, attributes: RelevantAttributes, leading: Collection[Reference] = ()
    ) -> None:
        self.network = network
        first = [policy for policy in network.policies if policy.reference in leading]
        others = [policy for policy in network.policies if policy.reference not in leading]
        pairs = dict.fromkeys(
            (
                *(pair for policy in first for pair in _selectors(policy, network)),
                *islice(_joint_selectors(first), MAX_SORTS),
                *(pair for policy in others for pair in _selectors(policy, network)),
            )
        )
        self.pairs = _within_bounds(pairs)
        self.of_namespaces = LabelSpace(namespaces for namespaces, _ in self.pairs)
        self.of_pods = LabelSpace(pods for _, pods in self.pairs)
        self.is_complete = len(self.pairs) == len(pairs)
        relevant = attributes.namespaces.relevant
        alike: dict[object, list[str]] = {}
        for name, labels in sorted(network.namespaces.items()):
            alike.setdefault(relevant(labels), []).append(name)
        self.alike = tuple(map(tuple, alike.values()))

    def sorts(self, limit: int, total: int, first: Collection[str]) -> tuple[list[HypotheticalPod], bool]:
        """Return a hypothetical pod for each sort, and whether all sorts are told apart.

        There are up to `limit` in a namespace and `total` in all; some namespaces come first.
        """
        of_namespaces, of_pods = self.of_namespaces, self.of_pods
        cuts = ((*of_namespaces.box(namespaces), *of_pods.box(pods)) for namespaces, pods in self.pairs)
        sorts, is_complete = self._regions((), self.new_namespaces, cuts, limit)
        is_complete &= self.is_complete
        for names in sorted(self.alike, key=lambda names: not any(name in first for name in names)):
            labels = self.network.namespaces[names[0]]
            selected = dict.fromkeys(pods for namespaces, pods in self.pairs if namespaces.matches(labels))
            parts, is_whole = self._regions(names, of_pods.everything, map(of_pods.box, selected), limit)
            if len(sorts) + len(parts) > total:
                return sorts, False
            sorts += parts
            is_complete &= is_whole
        return sorts, is_complete

    def _regions(
        self, names: tuple[str, ...], whole: LabelBox, cuts: Iterable[LabelBox], limit: int
    ) -> tuple[list[HypotheticalPod], bool]:
        parts, is_complete = regions(whole, cuts, limit)
        return [HypotheticalPod(self, names, tuple(boxes)) for boxes in parts], is_complete

    @cached_property
    def new_namespaces(self) -> LabelBox:
        """All pods in namespaces that do not exist."""
        return (*self.of_namespaces.without(NAMESPACE_NAME, self.network.namespaces), *self.of_pods.everything)

    def split(self, box: LabelBox) -> tuple[LabelBox, LabelBox]:
        """Return the boxes of the namespace's labels and of the pod's labels."""
        axes = len(self.of_namespaces.everything)
        return box[:axes], box[axes:]

    def names(self, sorts: Iterable[HypotheticalPod]) -> list[str]:
        """Return the names of some sorts together, by pod selector, then by namespace."""
        boxes: dict[tuple[str, ...], list[LabelBox]] = {}
        for pod in sorts:
            boxes.setdefault(pod.namespaces, []).extend(pod.boxes)
        everywhere, new_anywhere = self.new_namespaces, self.split(self.new_namespaces)[0]
        existing: dict[LabelBox, list[str]] = {}
        new: dict[LabelBox, list[LabelBox]] = {}
        for namespaces, parts in boxes.items():
            for box in join(parts):
                if namespaces:
                    existing.setdefault(box, []).extend(namespaces)
                else:
                    namespace, pod_labels = self.split(box)
                    new.setdefault(pod_labels, []).append(namespace)
        named: list[str] = []
        for box in sorted({*existing, *new}, key=self._order):
            names, labels = existing.get(box, []), new.get(box, [])
            pods = "any pod" if box == self.of_pods.everything else f"any pod with {self.of_pods.selector(box)}"
            if new_anywhere in labels and len(names) == len(self.network.namespaces):
                named.append(pods if (*new_anywhere, *box) == everywhere else f"{pods} in any namespace")
                continue
            if names:
                named.append(f"{pods} in {_some_of(sorted(names))}")
            named += [f"{pods} in {self._new_namespace(namespace)}" for namespace in sorted(labels)]
        return named

    def _new_namespace(self, namespace: LabelBox) -> str:
        # That a new namespace has no existing name goes without saying.
        axes = zip(namespace, self.new_namespaces, self.of_namespaces.everything, strict=False)
        selector = self.of_namespaces.selector(tuple([full if points == new else points for points, new, full in axes]))
        if not selector.requirements:
            return "any other namespace"
        if [(key, operator) for key, operator, _ in selector.requirements] == [(NAMESPACE_NAME, "In")]:
            return f"namespace {_some_of(list(selector.requirements[0].values))}"
        exists = any(selector.matches(labels) for labels in self.network.namespaces.values())
        return f"{'another' if exists else 'a'} namespace with {selector}"

    def _order(self, box: LabelBox) -> tuple[bool, str]:
        return box != self.of_pods.everything, str(self.of_pods.selector(box))


def _within_bounds(pairs: Iterable[tuple[Selector, Selector]]) -> list[tuple[Selector, Selector]]:
    """Return the first of the selectors that can be told apart in reasonable time; all of them in any usual cluster."""
    kept: list[tuple[Selector, Selector]] = []
    keys: set[str] = set()
    for namespaces, pods in pairs:
        more = namespaces.keys | pods.keys
        if len(more) > MAX_KEYS:
            continue
        if (len(kept) + 1) * len(keys | more) > MAX_BOXES:
            break
        keys |= more
        kept.append((namespaces, pods))
    return kept


def _some_of(names: list[str]) -> str:
    if len(names) <= MAX_NAMES:
        return " or ".join(names)
    return f"{' or '.join(names[: MAX_NAMES - 1])} or one of {len(names) - MAX_NAMES + 1} more namespaces"


class HypotheticalSnapshot(Struct, frozen=True):
    """A snapshot with hypothetical pods added, which are listed by namespace and name.

    `is_complete` is false if there are too many sorts of future pods to tell them all apart.
    """

    snapshot: Snapshot
    pods: Mapping[tuple[str, str], HypotheticalPod]
    is_complete: bool = True

    def others(self, classes: EndpointClasses, subject: Endpoint) -> int:
        """Return the endpoints that connect with a pod: not the pod itself, unless others are, or may be, like it."""
        subjects = classes.of(subject)
        alone = len(subjects.members) == 1 and (subject.namespace, subject.name) not in self.pods
        return classes.everybody & ~(1 << subjects.bit) if alone else classes.everybody


def exposure_limits(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield a note if the exposure leaves sorts of future pods out."""
    if not future_pods(snapshot).is_complete:
        yield Diagnostic("TW210", f"policies tell more than {MAX_SORTS} sorts of future pods apart; not all are shown")


def exposure(snapshot: Snapshot, explain: bool = False) -> Iterator[ConnectionEntry]:
    """Yield the connections between existing pods and hypothetical pods, in both directions."""
    from tierwall.network.reach.listing import ConnectionEntry, FlowDescriber
    from tierwall.network.reach.naming import EndpointNames, NamedEndpoints

    hypothetical = future_pods(snapshot)
    pods = hypothetical.pods
    model = network_model(hypothetical.snapshot)

    def pod_of(endpoint: Endpoint) -> HypotheticalPod | None:
        return pods.get((endpoint.namespace, endpoint.name))

    classes = EndpointClasses(model, pod_of)
    pod_of_bit = {
        endpoint_class.bit: pod
        for endpoint_class in classes.all
        if (pod := pod_of(endpoint_class.representative)) is not None
    }
    future = mask_of(sorted(pod_of_bit))
    existing = classes.under_policy & ~future
    names = EndpointNames(classes)

    def named(mask: int) -> NamedEndpoints:
        if not mask & future:
            return names.spelled(mask)
        sorts = [pod_of_bit[bit] for bit in bits(mask & future)]
        return NamedEndpoints((), (), tuple(sorts[0].space.names(sorts)))

    for sources, destinations in ((future, existing), (existing, future)):
        matrix = reach_matrix(classes, explain=explain, sources=sources, destinations=destinations)
        flows = FlowDescriber(matrix.ports, explain)
        for group in matrix.groups:
            for group_sources, passages in group.sources:
                yield ConnectionEntry(named(group_sources), named(group.destinations), flows.of(passages))


@per_snapshot
def future_pods(snapshot: Snapshot) -> HypotheticalSnapshot:
    """Return the snapshot with a hypothetical pod of every sort."""
    return with_stand_ins(snapshot)


def with_stand_ins(
    snapshot: Snapshot,
    named_ports: bool = False,
    limit: int = MAX_SORTS,
    total: int | None = None,
    first: Collection[str] = (),
    leading: Collection[Reference] = (),
) -> HypotheticalSnapshot:
    """Return the snapshot with all hypothetical pods; with `named_ports`, they have every port that policies name.

    There are up to `limit` sorts in a namespace and `total` (if left out, `limit`) in all; those in the namespaces
    `first` come first. Beyond that, pods are told apart by the `leading` policies rather than by others.
    """
    network, attributes = network_model(snapshot), relevant_attributes(snapshot)
    names = sorted(attributes.named_ports) if named_ports else []
    # Hardly any rule has these port numbers, so only the name matters.
    ports = [{"name": name, "containerPort": _UNUSED_PORT - number} for number, name in enumerate(names[:100])]
    spec = {"containers": [{"name": "any", "ports": ports}]}
    added: list[Resource] = []
    pods: dict[tuple[str, str], HypotheticalPod] = {}
    sorts, is_complete = _SortSpace(network, attributes, leading).sorts(limit, limit if total is None else total, first)
    # Examples are taken from the first that fit, so the simplest come first.
    sorts.sort(key=lambda sort: sum(map(len, sort.labels)))
    new_namespaces: dict[str, dict[str, str]] = {}
    for number, hypothetical in enumerate(sorts):
        namespace_labels, labels = hypothetical.labels
        namespace = namespace_labels.pop(NAMESPACE_NAME, f"{_PREFIX}{number}")
        if not hypothetical.namespaces:
            if new_namespaces.setdefault(namespace, namespace_labels) != namespace_labels:
                # Policies mention a name that no namespace has. Only one namespace can have it.
                is_complete = False
                continue
            added.append(_resource("Namespace", "", namespace, namespace_labels.items()))
        pod = _resource("Pod", namespace, f"{_PREFIX}{number}", labels.items(), spec=spec)
        added.append(pod)
        pods[pod.namespace, pod.name] = hypothetical
    beside = snapshot.with_changes(put=added)
    provide_network_model(snapshot, beside)
    return HypotheticalSnapshot(beside, pods, is_complete)


def _resource(kind: str, namespace: str, name: str, labels: Iterable[tuple[str, str]], **more: Any) -> Resource:
    metadata = {"name": name, "labels": dict(labels)} | ({"namespace": namespace} if namespace else {})
    value = {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}
    return Resource("", "v1", kind, namespace, name, value)


def _selectors(policy: TieredPolicy, network: NetworkModel) -> Iterator[tuple[Selector, Selector]]:
    """Yield the selectors of namespaces and pods by which a policy tells pods apart."""
    yield policy.namespaces, policy.pods
    for rule in policy.all_rules:
        pods, _addresses, _nodes, _domains = peers_by_kind(rule.peers)
        for peer in pods:
            if isinstance(peer.namespaces, Selector):
                yield peer.namespaces, peer.pods
                continue
            # The peer's namespace is compared with the subject's, which may be any.
            yield EVERYTHING, peer.pods
            for key in sorted(set(peer.namespaces.keys)):
                yield Selector((Requirement(key, "Exists"),)), EVERYTHING
                values = {labels[key] for labels in network.namespaces.values() if key in labels}
                for value in sorted(values):
                    yield Selector((Requirement(key, "In", (value,)),)), EVERYTHING


def _joint_selectors(policies: Iterable[TieredPolicy]) -> Iterator[tuple[Selector, Selector]]:
    """Yield what selects the pods that two policies of one priority are about: both subjects, or peers of both."""
    by_priority: dict[tuple[str, int], list[TieredPolicy]] = {}
    for policy in policies:
        if policy.has_priority:
            by_priority.setdefault((policy.tier, policy.priority), []).append(policy)
    for rivals in by_priority.values():
        for policy, rival in combinations(rivals, 2):
            yield _both((policy.namespaces, policy.pods), (rival.namespaces, rival.pods))
            for ours, theirs in product(_plain_peers(policy), _plain_peers(rival)):
                yield _both(ours, theirs)


def _both(left: tuple[Selector, Selector], right: tuple[Selector, Selector]) -> tuple[Selector, Selector]:
    (namespaces, pods), (other_namespaces, other_pods) = left, right
    return (
        Selector(tuple(sorted({*namespaces.requirements, *other_namespaces.requirements}))),
        Selector(tuple(sorted({*pods.requirements, *other_pods.requirements}))),
    )


def _plain_peers(policy: TieredPolicy) -> Iterator[tuple[Selector, Selector]]:
    for rule in policy.all_rules:
        for peer in peers_by_kind(rule.peers)[0]:
            if isinstance(peer.namespaces, Selector):
                yield peer.namespaces, peer.pods


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(key if value.startswith(OTHER_VALUE) else f"{key}={value}" for key, value in labels.items())
