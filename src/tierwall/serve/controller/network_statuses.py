"""Plan the conditions of AdminNetworkPolicies and their kin, again only if something changes that they depend on.

`tierwall.io/Accepted` depends on the policy and its definition. `tierwall.io/Conflicted` depends on all policies with a
priority, on namespaces and nodes, and on which sorts of pods there are. How many pods of a sort there are, and how they
are called, does not matter: a rollout of a Deployment changes no status. For the same reason a conflict has no example
here; `tierwall status` has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from tierwall.analyze.network_status import KINDS, network_policies, network_policy_status
from tierwall.attach.status import StatusCondition
from tierwall.network.model.endpoints import pod_endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import AddressPeer
from tierwall.resources.once import per_resource_and
from tierwall.resources.resource import Identity, Resource, nested_map
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.validity import DEFINITION
from tierwall.values.addresses import Block

_POD: KindKey = ("", "Pod")
_CONTEXT: tuple[KindKey, ...] = (("", "Namespace"), ("", "Node"), DEFINITION)


class NetworkStatusPlanner:
    """Plans the conditions of all policies of the network plane that have a status."""

    def __init__(self) -> None:
        self._before = Snapshot({})
        # All address blocks that policies name, and whether any policies share a priority. Only then pods matter.
        self._blocks: tuple[Block, ...] = ()
        self._has_ties = False
        # How many pods there are of each sort, and one pod of each: any will do.
        self._sorts: Counter[Hashable] = Counter()
        self._pods: dict[Hashable, Resource] = {}
        self._conditions: Mapping[Identity, tuple[StatusCondition, ...]] = {}
        # Counts how often statuses were computed.
        self.computed = 0

    def plan(self, judged: Snapshot) -> Mapping[Identity, tuple[StatusCondition, ...]]:
        """Return the conditions of each policy; the same map as before if nothing has changed for them."""
        before, self._before = self._before, judged
        changes = list(judged.changes(before))
        pods = [(old, new) for old, new in changes if _key(old, new) == _POD]
        have_policies_changed = any(_key(old, new) in (*KINDS, *_CONTEXT) for old, new in changes)
        if have_policies_changed and self._read_policies(judged):
            self._sorts.clear()
            self._pods.clear()
            pods = [(None, pod) for pod in judged.of_kind(*_POD)]
        have_sorts_changed = False
        for old, new in pods:
            have_sorts_changed |= self._replace_pod(old, new)
        if have_policies_changed or (self._has_ties and have_sorts_changed):
            self._conditions = self._compute(judged)
        return self._conditions

    def _read_policies(self, judged: Snapshot) -> bool:
        """Read what policies tell pods apart by; whether they tell them apart otherwise than before."""
        model = network_model(Snapshot.of(self._context(judged)))
        self._has_ties = bool(model.tied_policies)
        rules = (rule for policy in model.policies for rule in policy.all_rules)
        peers = (peer for rule in rules for peer in rule.peers or () if isinstance(peer, AddressPeer))
        blocks = tuple(dict.fromkeys(block for peer in peers for block in peer.blocks))
        if blocks == self._blocks:
            return False
        self._blocks = blocks
        return True

    def _replace_pod(self, old: Resource | None, new: Resource | None) -> bool:
        """Count a pod anew; whether a sort of pods came or went."""
        gone = _sort(old, self._blocks) if old is not None else None
        come = _sort(new, self._blocks) if new is not None else None
        if gone == come:
            return False
        has_changed = False
        if come is not None and new is not None:
            self._sorts[come] += 1
            has_changed |= self._sorts[come] == 1
            self._pods.setdefault(come, new)
        if gone is not None:
            self._sorts[gone] -= 1
            if not self._sorts[gone]:
                del self._sorts[gone], self._pods[gone]
                has_changed = True
        return has_changed

    def _compute(self, judged: Snapshot) -> Mapping[Identity, tuple[StatusCondition, ...]]:
        self.computed += 1
        pods = self._pods.values() if self._has_ties else ()
        reduced = Snapshot.of([*self._context(judged), *pods], judged.unlisted)
        return {
            policy.identity: network_policy_status(reduced, policy, examples=False).conditions
            for policy in network_policies(reduced)
        }

    def _context(self, judged: Snapshot) -> list[Resource]:
        return [resource for key in (*KINDS, *_CONTEXT) for resource in judged.of_kind(*key)]


def _key(old: Resource | None, new: Resource | None) -> KindKey:
    either = new or old
    assert either is not None
    return either.group, either.kind


@per_resource_and
def _sort(pod: Resource, blocks: tuple[Block, ...]) -> Hashable | None:
    """Return what policies may tell a pod apart by; None if it has ended."""
    # The labels of its namespace are not part of it: namespaces are compared as a whole.
    metadata, status = pod.metadata, nested_map(pod.value, "status")
    endpoint = pod_endpoint(pod.namespace, pod.name, {}, metadata, pod.spec, status, None)
    if endpoint.ended:
        return None
    inside = tuple(
        number for number, block in enumerate(blocks) if any(block.contains(address) for address in endpoint.addresses)
    )
    labels = frozenset(endpoint.labels.items())
    ports = frozenset(endpoint.named_ports.items())
    on_node = None if endpoint.under_policy else endpoint.addresses
    return pod.namespace, labels, ports, bool(endpoint.addresses), inside, on_node
