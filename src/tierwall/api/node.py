"""The Node authorizer, as a conditional authorizer (KEP-5681, "Node authorizer").

For `system:node:NAME` in the group `system:nodes` it allows what a kubelet needs: its own objects, what its pods refer
to (`node_graph`), and writes under conditions that the NodeRestriction admission plugin used to check apart
(`node_conditions`). It never denies, and has no opinion on anybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tierwall.api.attributes import Attributes
from tierwall.api.condition import NODE_TYPE
from tierwall.api.condition_set import ConditionSet, conditional
from tierwall.api.data import ConditionData
from tierwall.api.decision import Decision, settled, silent
from tierwall.api.node_conditions import holds, node_condition
from tierwall.api.node_graph import node_graph
from tierwall.core.answer import Reason, Step
from tierwall.core.verdict import StepVerdict
from tierwall.resources.snapshot import Snapshot

USER_PREFIX = "system:node:"
GROUP = "system:nodes"
LEASES = "kube-node-lease"
TOKENS = ("", "serviceaccounts/token")

_READ = ("get", "list", "watch")
# (group, resource) -> verbs that every node has: bootstrappolicy.NodeRules, less what is looked into below.
_ALWAYS: dict[tuple[str, str], tuple[str, ...]] = {
    ("authentication.k8s.io", "tokenreviews"): ("create",),
    ("authorization.k8s.io", "subjectaccessreviews"): ("create",),
    ("authorization.k8s.io", "localsubjectaccessreviews"): ("create",),
    ("", "services"): _READ,
    ("", "nodes"): _READ,
    ("", "pods"): _READ,
    ("", "events"): ("create", "update", "patch"),
    ("", "endpoints"): ("get",),
    ("certificates.k8s.io", "certificatesigningrequests"): ("create", *_READ),
    ("storage.k8s.io", "csidrivers"): _READ,
    ("node.k8s.io", "runtimeclasses"): _READ,
}
# (group, resource) -> verbs on what the node's pods refer to.
_THROUGH_PODS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "secrets"): _READ,
    ("", "configmaps"): _READ,
    ("", "persistentvolumeclaims"): ("get",),
    ("", "persistentvolumes"): ("get",),
    ("", "serviceaccounts"): ("get",),
    ("storage.k8s.io", "volumeattachments"): ("get",),
    ("resource.k8s.io", "resourceclaims"): ("get",),
    ("", "pods/eviction"): ("create",),
}


class Node:
    """The Node authorizer over one snapshot."""

    condition_types = frozenset((NODE_TYPE,))

    def __init__(self, snapshot: Snapshot, name: str = "node") -> None:
        self.name = name
        self._graph = node_graph(snapshot)

    def authorize(self, attributes: Attributes) -> Decision:
        """What a node may do; NoOpinion for everybody else."""
        node = node_of(attributes)
        if not node:
            return self._silent("not a node")
        if not attributes.is_resource_request:
            return self._silent("no path is granted to nodes")
        key = attributes.group, attributes.combined_resource
        if attributes.verb in _ALWAYS.get(key, ()):
            return self._allow("every node may")
        if attributes.verb in _THROUGH_PODS.get(key, ()):
            return self._through_pods(node, attributes)
        rule = _WRITES.get((*key, attributes.verb))
        if key == TOKENS and ("serviceaccounts", attributes.namespace, attributes.name) not in self._graph.get(
            node, ()
        ):
            return self._silent(f"no pod of node `{node}` runs as it")
        return self._decided(rule(node, attributes)) if rule is not None else self._silent("not granted to nodes")

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """The second phase."""
        return conditions.evaluate(lambda condition: holds(condition, data))

    def _through_pods(self, node: str, attributes: Attributes) -> Decision:
        thing = (attributes.resource, attributes.namespace, attributes.name)
        if attributes.name and thing in self._graph.get(node, ()):
            return self._allow(f"a pod of node `{node}` refers to it")
        return self._silent(f"no pod of node `{node}` refers to it")

    def _allow(self, reason: str) -> Decision:
        step = Step(tier=self.name, verdict=StepVerdict.ALLOW, reason=Reason.GRANTED_TO_NODES, note=reason)
        return settled(step, reason)

    def _silent(self, reason: str) -> Decision:
        step = Step(tier=self.name, verdict=StepVerdict.NO_OPINION, reason=Reason.NO_RULE_MATCHED, note=reason)
        return silent(step, reason)

    def _decided(self, needed: bool | tuple[str, str, str]) -> Decision:
        if needed is True:
            return self._allow("its own object")
        if needed is False:
            return self._silent("another node's object")
        test, node, description = needed
        condition = node_condition(test, node, description)
        step = condition.step(self.name, StepVerdict.CONDITIONAL, Reason.NEEDS_OBJECT, description)
        return conditional(self.name, (condition,), steps=(step,))


def node_of(attributes: Attributes) -> str:
    """The name of the node that asks, or nothing if the user is not one."""
    name = attributes.user.removeprefix(USER_PREFIX)
    return name if name != attributes.user and GROUP in attributes.groups else ""


def _own(node: str, attributes: Attributes) -> bool | tuple[str, str, str]:
    """Objects named like the node; the name of a create is in the object."""
    if attributes.is_name_unknown:
        return "require-name", node, f"the object must be named `{node}`"
    return attributes.name == node


def _own_lease(node: str, attributes: Attributes) -> bool | tuple[str, str, str]:
    return attributes.namespace == LEASES and _own(node, attributes)


def _own_node(node: str, attributes: Attributes) -> bool | tuple[str, str, str]:
    if not attributes.is_name_unknown and attributes.name != node:
        return False
    return "require-own-node", node, f"only node `{node}` itself, restricted labels and taints unchanged"


def _condition(test: str, description: str) -> Callable[[str, Attributes], bool | tuple[str, str, str]]:
    return lambda node, attributes: (test, node, description.replace("NODE", f"`{node}`"))


def _writes() -> Iterable[tuple[tuple[str, str, str], Callable[[str, Attributes], bool | tuple[str, str, str]]]]:
    mirror = _condition("require-pod-node-name", "only mirror pods of NODE that refer to nothing")
    stored = _condition("require-stored-pod-node-name", "only pods that run on NODE")
    status = _condition("require-pod-status", "only pods that run on NODE, labels unchanged")
    token = _condition("require-bound-pod", "only tokens bound to a pod")
    yield ("", "pods", "create"), mirror
    yield ("", "pods", "delete"), stored
    yield (*TOKENS, "create"), token
    for verb in ("update", "patch"):
        yield ("", "pods/status", verb), status
        yield ("", "nodes", verb), _own_node
        yield ("", "nodes/status", verb), _own_node
    yield ("", "nodes", "create"), _own_node
    for verb in ("get", "create", "update", "patch", "delete"):
        yield ("coordination.k8s.io", "leases", verb), _own_lease
        yield ("storage.k8s.io", "csinodes", verb), _own


_WRITES = dict(_writes())
