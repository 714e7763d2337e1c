"""Finds pods that a change opens to addresses outside the cluster (TW217)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from msgspec.structs import replace

from tierwall.analyze.network_cells import TooManyCells
from tierwall.analyze.network_index import DEFINITION, NetworkIndex, is_large, kind_of_change, with_model
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.outcome import ALLOW
from tierwall.core.words import join_names
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.policies import NETWORK_POLICY, is_shadow, read_policy
from tierwall.network.model.rules import INGRESS, AddressPeer, NamedPort, NetworkRule, Peer, PortRange, TieredPolicy
from tierwall.network.reach.classes import EndpointClasses, RelevantAttributes
from tierwall.network.reach.naming import EndpointNames
from tierwall.network.reach.pod_index import PodIndex
from tierwall.network.reach.rows import Rows
from tierwall.network.reach.spaces import bits, union
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Span

OPENED = "TW217"
# So many pods of different sorts are looked at to see whether a change opens them.
MAX_OPENED = 20


def opened_by_change(
    index: NetworkIndex, old: Resource | None, new: Resource | None, until: float = inf
) -> Iterator[Diagnostic]:
    """Find pods that a change of a NetworkPolicy opens to the outside; TooManyCells if `until` comes before any.

    Only NetworkPolicies of these pods matter: rules of administrators' policies cannot match connections from outside.
    """
    changed = new or old
    if changed is None or kind_of_change(old, new) != NETWORK_POLICY:
        return
    versions = [
        [read_policy(index.snapshot, version)] if version is not None and not is_shadow(version) else []
        for version in (old, new)
    ]
    if any(is_large(policy) for version in versions for policy in version):
        return
    others = [
        _towards_outside(other)
        for other in index.local.get(changed.namespace, {}).values()
        if other.reference != changed.reference and other.ingress is not None
    ]
    before, after = ([_towards_outside(policy) for policy in version] for version in versions)
    candidates = _may_be_opened(index.pods, before, after, others)
    if not candidates:
        return
    others = [other for other in others if index.pods.selected(other.namespaces, other.pods) & candidates]
    pods = index.pods.examples((*before, *after, *others), (), among=candidates, most=MAX_OPENED)
    others = list(_beside(after, others, pods[:MAX_OPENED]))
    fixed = [
        *index.snapshot.of_kind(*DEFINITION),
        *filter(None, (index.snapshot.get("", "Namespace", "", changed.namespace),)),
        *pods[:MAX_OPENED],
    ]

    def side(version: list[TieredPolicy]) -> Snapshot:
        policies = [*others, *version]
        return with_model(Snapshot.of([*fixed, *(policy.resource for policy in policies)]), policies)

    yield from opened_to_outside(side(before), side(after), changed, until, len(pods) > MAX_OPENED)


def _may_be_opened(
    pods: PodIndex, before: list[TieredPolicy], after: list[TieredPolicy], others: list[TieredPolicy]
) -> int:
    """Return the pods that a change may open: those that nothing isolates any more, and those of added rules."""

    def isolated(policies: Iterable[TieredPolicy]) -> int:
        return union(pods.selected(policy.namespaces, policy.pods) for policy in policies if policy.ingress is not None)

    ingress_before = {rule_facts(rule) for policy in before for rule in policy.ingress or ()}
    added = [policy for policy in after for rule in policy.ingress or () if rule_facts(rule) not in ingress_before]
    opened = isolated(before) & ~isolated((*after, *others))
    # A pod that is isolated for the first time is not opened by what is still let in.
    known = isolated((*before, *others))
    if added:
        return opened | (isolated(after) & known)
    # The same rules for other pods.
    return opened | (isolated(after) & known & ~isolated(before) if any(policy.ingress for policy in after) else 0)


def rule_facts(rule: NetworkRule) -> tuple[object, ...]:
    """Return what a rule matches, without its place."""
    return rule.peers, rule.ports


def _towards_outside(policy: TieredPolicy) -> TieredPolicy:
    """Return a NetworkPolicy without what matches no connection from outside."""
    if policy.ingress is None:
        return replace(policy, egress=None)
    rules = []
    for rule in policy.ingress:
        peers = rule.peers and tuple(filter(_is_address, rule.peers))
        if rule.peers is None or peers:
            rules.append(replace(rule, peers=peers))
    return replace(policy, ingress=tuple(rules), egress=None)


def _beside(
    after: Sequence[TieredPolicy], others: Iterable[TieredPolicy], pods: Iterable[Resource]
) -> Iterator[TieredPolicy]:
    """Yield the NetworkPolicies that matter to what a policy opens of some pods, with the rules that do.

    These permit some of it anyway. Of the others, one is enough that isolates a pod.
    """
    unknown = [_labels(pod) for pod in pods]
    isolated: list[bool] = [False] * len(unknown)
    wanted = [rule for policy in after for rule in policy.ingress or ()]
    for other in others:
        selected = [number for number, labels in enumerate(unknown) if other.pods.matches(labels)]
        rules = tuple(rule for rule in other.ingress or () if any(_overlap(rule, each) for each in wanted))
        if selected and (rules or not all(isolated[number] for number in selected)):
            for number in selected:
                isolated[number] = True
            yield replace(other, ingress=rules)


def _labels(pod: Resource) -> Mapping[str, str]:
    return nested_map(pod.metadata, "labels")


def _overlap(rule: NetworkRule, other: NetworkRule) -> bool:
    """Whether two rules about addresses may permit the same connection."""
    if (
        rule.ports is not None
        and other.ports is not None
        and not any(
            isinstance(port, NamedPort) or isinstance(other_port, NamedPort) or _meet(port, other_port)
            for port in rule.ports
            for other_port in other.ports
        )
    ):
        return False
    if rule.peers is None or other.peers is None:
        return True
    return any(
        low <= other_high and other_low <= high
        for (low, high) in _spans(rule)
        for (other_low, other_high) in _spans(other)
    )


def _spans(rule: NetworkRule) -> Iterator[Span]:
    for peer in rule.peers or ():
        if isinstance(peer, AddressPeer):
            yield from (block.span for block in peer.blocks)


def _meet(port: PortRange, other: PortRange) -> bool:
    return port.protocol == other.protocol and port.first <= other.last and other.first <= port.last


def _is_address(peer: Peer) -> bool:
    return isinstance(peer, AddressPeer)


def opened_to_outside(
    before: Snapshot, after: Snapshot, changed: Resource, until: float = inf, are_examples: bool = False
) -> Iterator[Diagnostic]:
    """Find pods that connections from outside reach after a change and did not reach before it.

    Both snapshots have the same pods; `are_examples`: there are more. `changed` is the policy that the finding is
    about. At `until` (`time.thread_time`), the pods that were found so far are told; TooManyCells if nothing was found.
    """
    models = network_model(before), network_model(after)
    blocks = {block: None for model in models for block in RelevantAttributes(model).blocks}
    ports = {ports for model in models for ports in _port_ranges(model)}
    # Both divide addresses and ports alike, and each pod is a class of its own.
    sides = [Rows(EndpointClasses(model, _name, blocks, ports), False) for model in models]
    classes = sides[1].classes
    opened: dict[Endpoint, dict[int, int]] = {}
    for pod in models[1].pods:
        was = models[0].pod(pod.namespace, pod.name)
        if was is None or not pod.under_policy:
            continue
        if until < inf and time.thread_time() > until:
            if not opened:
                raise TooManyCells
            are_examples = True
            break
        earlier, later = _from_outside(sides[0], was), _from_outside(sides[1], pod)
        more = {place: now & ~earlier.get(place, 0) for place, now in later.items()}
        if any(more.values()):
            opened[pod] = {place: now for place, now in more.items() if now}
    if not opened:
        return
    pod, places = next(iter(opened.items()))
    widest = max(places.values(), key=int.bit_count)
    mask = sum(1 << place for place, now in places.items() if now == widest) << _first_outside(classes)
    addresses = EndpointNames(classes).describe(mask)
    kind, _, rest = str(addresses).partition(" ")
    where = f"{addresses}, outside the cluster,"
    if kind == "outside":
        where = f"{rest} addresses outside the cluster".strip()
    shown = sides[1].ports.show(widest)
    names = join_names([str(pod) for pod in opened], 2)
    if are_examples:
        names = f"at least {names}"
    message = f"{changed.reference} opens {names} to {where} on {'all ports' if shown == 'all' else shown}"
    yield changed.diagnostic(OPENED, message, ("spec",), places=("ingress",))


def _name(endpoint: Endpoint) -> str:
    return str(endpoint) if endpoint.kind == "pod" else ""


def _port_ranges(model: NetworkModel) -> Iterator[PortRange]:
    """Yield the ranges of ports that policies mention, those behind names too."""
    relevant = RelevantAttributes(model)
    yield from relevant.port_ranges
    for pod in model.pods:
        for name, pairs in pod.named_ports.items():
            if name in relevant.named_ports:
                yield from (PortRange(protocol, number, number) for protocol, number in pairs)


def _from_outside(rows: Rows, pod: Endpoint) -> dict[int, int]:
    """Return the ports on which a pod can be reached, by the place of the outside addresses among all of them."""
    classes = rows.classes
    allowed: dict[int, int] = {}
    first = _first_outside(classes)
    for ports, parts in rows.row(classes.of(pod), INGRESS).cells:
        for outcome, mask in parts:
            if outcome.verdict is ALLOW:
                for bit in bits(mask & classes.outside):
                    allowed[bit - first] = allowed.get(bit - first, 0) | ports
    return allowed


def _first_outside(classes: EndpointClasses) -> int:
    """Return the number of the first class of outside addresses, which are the last classes."""
    return len(classes.all) - classes.outside.bit_count()
