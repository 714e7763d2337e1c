"""The network policies and pods of a followed cluster, indexed for looks at one policy at a time.

A look gets a small snapshot: the policies that matter to it, and the pods that these tell apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from tierwall.analyze.outside_rules import OutsideRule, outside_rules
from tierwall.analyze.rules_by_port import RulesByPort
from tierwall.core.labels import Selector
from tierwall.core.reference import Reference
from tierwall.network.model.endpoints import NAMESPACE_NAME, namespace_labels
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.policies import KINDS, in_order, is_shadow, read_policy
from tierwall.network.model.rules import AddressPeer, Direction, NetworkRule, PortRange, TieredPolicy, TierName
from tierwall.network.reach.pod_index import PodIndex
from tierwall.resources.once import provide
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Block

# With more namespaces than this, only those that matter are put into the small snapshot.
MAX_NAMESPACES = 200
# The most rules, peers and ports of a policy, all together, that is looked at.
MAX_PARTS = 500
DEFINITION = "apiextensions.k8s.io", "CustomResourceDefinition"


class PolicyFacts(Struct, frozen=True):
    """The blocks of addresses that a policy mentions, and what a NetworkPolicy lets in from outside."""

    blocks: frozenset[Block]
    outside: tuple[OutsideRule, ...]


class NetworkIndex:
    """The pods and policies of a followed cluster, kept up to date from one snapshot to the next."""

    def __init__(self) -> None:
        self.pods = PodIndex()
        self.snapshot = Snapshot({})
        # Cluster-scoped policies, and NetworkPolicies by namespace.
        self.admin: dict[Reference, TieredPolicy] = {}
        self.local: dict[str, dict[Reference, TieredPolicy]] = {}
        # The policies of a namespace (empty: cluster-scoped) in order, and what was found out about policies.
        self._ordered: dict[str, dict[TieredPolicy, int]] = {}
        self._facts: dict[TieredPolicy, PolicyFacts] = {}
        self._by_port: dict[tuple[str, Direction], RulesByPort] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Take over what has changed."""
        changes = list(snapshot.changes(self.snapshot))
        if any(kind_of_change(old, new) == DEFINITION for old, new in changes):
            # Definitions say how policies are read.
            self.admin.clear()
            self.local.clear()
            self._ordered.clear()
            self._facts.clear()
            self._by_port.clear()
            changes = [(None, policy) for kind in KINDS for policy in snapshot.of_kind(*kind)]
        for old, new in changes:
            if kind_of_change(old, new) not in KINDS:
                continue
            for gone in filter(None, (old, new)):
                self._ordered.pop(gone.namespace, None)
                policy = self._bucket(gone).pop(gone.reference, None)
                if policy is not None:
                    del self._facts[policy]
                    for direction in Direction:
                        self._by_port[gone.namespace, direction].remove(policy)
            if new is not None and not is_shadow(new):
                policy = self._bucket(new)[new.reference] = read_policy(snapshot, new)
                self._facts[policy] = policy_facts(policy)
                for direction in Direction:
                    self._by_port.setdefault((new.namespace, direction), RulesByPort(direction)).add(policy)
        self.pods.update(snapshot)
        self.snapshot = snapshot

    def _bucket(self, policy: Resource) -> dict[Reference, TieredPolicy]:
        return self.local.setdefault(policy.namespace, {}) if policy.namespace else self.admin

    def _in_order(self, namespace: str) -> dict[TieredPolicy, int]:
        """Return the policies of a namespace, or (empty) the cluster-scoped ones; those of one tier are in order."""
        known = self._ordered.get(namespace)
        if known is None:
            policies = self.local.get(namespace, {}) if namespace else self.admin
            ordered = in_order(policies.values())
            known = self._ordered[namespace] = {policy: place for place, policy in enumerate(ordered)}
        return known

    def rules_at(self, namespace: str, direction: Direction, port: PortRange) -> list[tuple[TieredPolicy, NetworkRule]]:
        """Return the rules of a namespace, or (empty) of cluster-scoped policies, that may match a port, in order."""
        rules = self._by_port.get((namespace, direction))
        places = self._in_order(namespace)
        matching = rules.at(port) if rules is not None else ()
        return sorted(matching, key=lambda pair: (places[pair[0]], pair[1].index))

    def selecting(self, namespaces: Collection[str], but: Reference, is_new: bool = False) -> list[TieredPolicy]:
        """Return all policies but one that may select pods of these namespaces, or (`is_new`) of new ones.

        Those of one tier are in order of precedence.
        """
        wanted = frozenset(namespaces)
        # A namespace without objects has the label with its name.
        unknown = [namespace_labels(name, None) for name in wanted if name not in self.pods.namespaces]
        # Many policies share a selector.
        known: dict[Selector, bool] = {}

        def may_select(selector: Selector) -> bool:
            answer = known.get(selector)
            if answer is None:
                answer = known[selector] = (
                    not self.pods.names(selector).isdisjoint(wanted)
                    or any(map(selector.matches, unknown))
                    or (is_new and self.may_select_new(selector))
                )
            return answer

        admin = (other for other in self._in_order("") if may_select(other.namespaces))
        local = (policy for namespace in sorted(wanted) for policy in self._in_order(namespace))
        return [policy for policy in (*admin, *local) if policy.reference != but]

    def blocks(self, policies: Iterable[TieredPolicy]) -> set[Block]:
        """Return the blocks of addresses that policies mention."""
        return set[Block]().union(*((self._facts.get(policy) or policy_facts(policy)).blocks for policy in policies))

    def outside_rules(self, policy: TieredPolicy) -> tuple[OutsideRule, ...]:
        """Return what a NetworkPolicy of the cluster lets in from outside."""
        return self._facts[policy].outside

    def may_select_new(self, selector: Selector) -> bool:
        """Whether a selector may select a namespace that does not exist."""
        named = [wanted for wanted in selector.requirements if wanted.key == NAMESPACE_NAME and wanted.operator == "In"]
        return all(not self.pods.namespaces.keys() >= set(wanted.values) for wanted in named)

    def small(self, policies: Sequence[TieredPolicy], namespaces: Collection[str]) -> Snapshot:
        """Return a snapshot of some policies, and of the pods that these tell apart.

        The policies may be asked about pods of these namespaces.
        """
        pods = self.pods.examples(policies, namespaces)
        known = self.pods.namespaces
        homes = known if len(known) <= MAX_NAMESPACES else {*namespaces, *(pod.namespace for pod in pods)}
        small = Snapshot.of(
            [
                *self.snapshot.of_kind(*DEFINITION),
                *filter(None, (self.snapshot.get("", "Namespace", "", name) for name in sorted(homes))),
                *self.snapshot.of_kind("", "Node"),
                *pods,
                *(policy.resource for policy in policies),
            ]
        )
        return with_model(small, policies)


def with_model(snapshot: Snapshot, policies: Iterable[TieredPolicy]) -> Snapshot:
    """Return a snapshot of these policies, among others, with its model: they need not be read again."""
    provide(NetworkModel(snapshot, policies=policies), network_model, snapshot)
    return snapshot


def kind_of_change(old: Resource | None, new: Resource | None) -> tuple[str, str]:
    """Return the group and kind of an object that changes; at most one version is None."""
    either = new or old
    assert either is not None
    return either.group, either.kind


def is_large(policy: TieredPolicy) -> bool:
    """Whether a policy has more rules, peers and ports than are looked at while somebody waits."""
    return number_of_parts((policy,), MAX_PARTS) > MAX_PARTS


def number_of_parts(policies: Iterable[TieredPolicy], most: int) -> int:
    """Return how many policies, rules, peers and ports these are; of very many, some number over `most`."""
    number = 0
    for policy in policies:
        number += 1 + sum(1 + len(rule.peers or ()) + len(rule.ports or ()) for rule in policy.all_rules)
        if number > most:
            break
    return number


def policy_facts(policy: TieredPolicy) -> PolicyFacts:
    """Find out what is often asked about a policy."""
    peers = (peer for rule in policy.all_rules for peer in rule.peers or ())
    blocks = frozenset(block for peer in peers if isinstance(peer, AddressPeer) for block in peer.blocks)
    return PolicyFacts(blocks, outside_rules(policy) if policy.tier is TierName.NAMESPACE else ())
