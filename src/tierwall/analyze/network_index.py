"""The network policies and pods of a followed cluster, indexed for looks at one policy at a time.

A look gets a small snapshot: the policies that matter to it, and the pods that these tell apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tierwall.core.labels import Selector
from tierwall.core.reference import Reference
from tierwall.network.model.endpoints import NAMESPACE_NAME, namespace_labels
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.policies import KINDS, is_shadow, read_policy
from tierwall.network.model.rules import TieredPolicy
from tierwall.network.reach.pod_index import PodIndex
from tierwall.resources.once import provide
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# With more namespaces than this, only those that matter are put into the small snapshot.
MAX_NAMESPACES = 200
# The most rules, peers and ports of a policy, all together, that is looked at.
MAX_PARTS = 500
DEFINITION = "apiextensions.k8s.io", "CustomResourceDefinition"


class NetworkIndex:
    """The pods and policies of a followed cluster, kept up to date from one snapshot to the next."""

    def __init__(self) -> None:
        self.pods = PodIndex()
        self.snapshot = Snapshot({})
        # Cluster-scoped policies, and NetworkPolicies by namespace.
        self.admin: dict[Reference, TieredPolicy] = {}
        self.local: dict[str, dict[Reference, TieredPolicy]] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Take over what has changed."""
        changes = list(snapshot.changes(self.snapshot))
        if any(kind_of_change(old, new) == DEFINITION for old, new in changes):
            # Definitions say how policies are read.
            self.admin.clear()
            self.local.clear()
            changes = [(None, policy) for kind in KINDS for policy in snapshot.of_kind(*kind)]
        for old, new in changes:
            if kind_of_change(old, new) not in KINDS:
                continue
            for gone in filter(None, (old, new)):
                self._bucket(gone).pop(gone.reference, None)
            if new is not None and not is_shadow(new):
                self._bucket(new)[new.reference] = read_policy(snapshot, new)
        self.pods.update(snapshot)
        self.snapshot = snapshot

    def _bucket(self, policy: Resource) -> dict[Reference, TieredPolicy]:
        return self.local.setdefault(policy.namespace, {}) if policy.namespace else self.admin

    def selecting(self, namespaces: Collection[str], but: Reference, is_new: bool = False) -> list[TieredPolicy]:
        """Return all policies but one that may select pods of these namespaces, or (`is_new`) of new ones."""
        # A namespace without objects has the label with its name.
        unknown = [namespace_labels(name, None) for name in namespaces if name not in self.pods.namespaces]
        admin = (
            other
            for other in self.admin.values()
            if not self.pods.names(other.namespaces).isdisjoint(namespaces)
            or any(map(other.namespaces.matches, unknown))
            or (is_new and self.may_select_new(other.namespaces))
        )
        local = (policy for namespace in namespaces for policy in self.local.get(namespace, {}).values())
        return [policy for policy in (*admin, *local) if policy.reference != but]

    def may_select_new(self, selector: Selector) -> bool:
        """Whether a selector may select a namespace that does not exist."""
        named = [wanted for wanted in selector.requirements if wanted.key == NAMESPACE_NAME and wanted.operator == "In"]
        return all(not self.pods.namespaces.keys() >= set(wanted.values) for wanted in named)

    def small(
        self,
        policies: Sequence[TieredPolicy],
        namespaces: Collection[str],
        compared: Sequence[TieredPolicy] = (),
        apart: bool = False,
        wanted: Collection[tuple[str, str]] = (),
    ) -> Snapshot:
        """Return a snapshot of some policies, and of the pods that these and the `compared` ones tell apart.

        The policies may be asked about pods of these namespaces; `apart` as for `PodIndex.examples`. The pods that are
        `wanted` are among them.
        """
        pods = self.pods.examples((*policies, *compared), namespaces, apart)
        known = self.pods.namespaces
        homes = known if len(known) <= MAX_NAMESPACES else {*namespaces, *(pod.namespace for pod in pods)}
        small = Snapshot.of(
            [
                *self.snapshot.of_kind(*DEFINITION),
                *filter(None, (self.snapshot.get("", "Namespace", "", name) for name in sorted(homes))),
                *self.snapshot.of_kind("", "Node"),
                *pods,
                *filter(None, (self.snapshot.get("", "Pod", *name) for name in wanted)),
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
    return number_of_parts(policy) > MAX_PARTS


def number_of_parts(policy: TieredPolicy) -> int:
    """Return how many rules, peers and ports a policy has, and one more."""
    return 1 + sum(1 + len(rule.peers or ()) + len(rule.ports or ()) for rule in policy.all_rules)
