"""The Node authorizer, as a conditional authorizer (KEP-5681, "Node authorizer").

For `system:node:NAME` in the group `system:nodes` it allows what a kubelet needs: its own objects, the objects that its
pods refer to (Kubernetes' `plugin/pkg/auth/authorizer/node`), and writes under the conditions that the NodeRestriction
admission plugin used to check separately. It never denies, and has no opinion on other users.

A condition has the type `k8s.io/node-authorizer`. Its text is JSON that names one of `_TESTS` and the node, such as
`{"condition":"require-pod-node-name","nodeName":"foo"}`; it is looked up, never executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from tierwall.api.algebra.condition import NODE_TYPE, Condition, ConditionError, ConditionSet, Effect, conditional
from tierwall.api.algebra.decision import Decision, no_opinion, settled_by_step
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.core.answer import Reason, Step
from tierwall.core.verdict import StepVerdict
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import list_of_maps
from tierwall.resources.snapshot import Snapshot

# (resource, namespace, name)
ObjectKey: TypeAlias = tuple[str, str, str]
# Whether the request alone lets a node pass, or the test that the object must pass and its description.
NodeRule: TypeAlias = Callable[[str, Attributes], "bool | tuple[str, str]"]

USER_PREFIX = "system:node:"
GROUP = "system:nodes"
LEASES = "kube-node-lease"
TOKENS = ("", "serviceaccounts/token")

_READ = ("get", "list", "watch")
# (group, resource) -> verbs that every node may use: bootstrappolicy.NodeRules without the rules below.
ALWAYS_GRANTED: dict[tuple[str, str], tuple[str, ...]] = {
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
# (group, resource) -> verbs on objects that the node's pods refer to.
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


class NodeAuthorizer:
    """The Node authorizer over one snapshot."""

    condition_types = frozenset((NODE_TYPE,))

    def __init__(self, snapshot: Snapshot, name: str = "node") -> None:
        self.name = name
        self._graph = node_graph(snapshot)

    def authorize(self, attributes: Attributes) -> Decision:
        """Decide the first phase of a node's request; NoOpinion for other users."""
        node = node_name(attributes)
        if not node:
            return self._no_opinion("not a node")
        if not attributes.is_resource_request:
            return self._no_opinion("no path is granted to nodes")
        key = attributes.group, attributes.combined_resource
        if attributes.verb in ALWAYS_GRANTED.get(key, ()):
            return self._allow("every node may do this")
        if attributes.verb in _THROUGH_PODS.get(key, ()):
            return self._through_pods(node, attributes)
        rule = _WRITES.get((*key, attributes.verb))
        account = ("serviceaccounts", attributes.namespace, attributes.name)
        if key == TOKENS and account not in self._graph.get(node, ()):
            return self._no_opinion(f"no pod of node `{node}` runs as this service account")
        if rule is None:
            return self._no_opinion("not granted to nodes")
        return self._decide(node, rule(node, attributes))

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """Decide the second phase."""
        return conditions.evaluate(lambda condition: node_condition_is_true(condition, data))

    def _through_pods(self, node: str, attributes: Attributes) -> Decision:
        key = (attributes.resource, attributes.namespace, attributes.name)
        if attributes.name and key in self._graph.get(node, ()):
            return self._allow(f"a pod of node `{node}` refers to it")
        return self._no_opinion(f"no pod of node `{node}` refers to it")

    def _allow(self, reason: str) -> Decision:
        step = Step(tier=self.name, verdict=StepVerdict.ALLOW, reason=Reason.GRANTED_TO_NODES, note=reason)
        return settled_by_step(step, reason)

    def _no_opinion(self, reason: str) -> Decision:
        step = Step(tier=self.name, verdict=StepVerdict.NO_OPINION, reason=Reason.NO_RULE_MATCHED, note=reason)
        return no_opinion(step, reason)

    def _decide(self, node: str, requirement: bool | tuple[str, str]) -> Decision:
        if requirement is True:
            return self._allow("its own object")
        if requirement is False:
            return self._no_opinion("another node's object")
        test, description = requirement
        condition = node_condition(test, node, description)
        step = condition.step(self.name, StepVerdict.CONDITIONAL, Reason.NEEDS_OBJECT, description)
        return conditional(self.name, (condition,), steps=(step,))


def node_name(attributes: Attributes) -> str:
    """Return the name of the node that asks, or an empty string if the user is not a node."""
    name = attributes.user.removeprefix(USER_PREFIX)
    return name if name != attributes.user and GROUP in attributes.groups else ""


def _own_name(node: str, attributes: Attributes) -> bool | tuple[str, str]:
    """Allow objects with the node's name; in a create without a name, the object has it."""
    if attributes.is_name_unknown:
        return "require-name", f"the object must be named `{node}`"
    return attributes.name == node


def _own_lease(node: str, attributes: Attributes) -> bool | tuple[str, str]:
    return attributes.namespace == LEASES and _own_name(node, attributes)


def _own_node(node: str, attributes: Attributes) -> bool | tuple[str, str]:
    if not attributes.is_name_unknown and attributes.name != node:
        return False
    return "require-own-node", f"only node `{node}` itself, restricted labels and taints unchanged"


def _require(test: str, description: str) -> NodeRule:
    return lambda node, attributes: (test, description.replace("NODE", f"`{node}`"))


_CHANGE = ("update", "patch")
_OWN_STATUS = _require("require-pod-status", "only pods that run on NODE, labels unchanged")
# (group, resource, verb) -> the rule for a write that depends on whose object it is.
_WRITES: dict[tuple[str, str, str], NodeRule] = {
    ("", "pods", "create"): _require("require-pod-node-name", "only mirror pods of NODE that refer to no other object"),
    ("", "pods", "delete"): _require("require-stored-pod-node-name", "only pods that run on NODE"),
    (*TOKENS, "create"): _require("require-bound-pod", "only tokens bound to a pod"),
    **{("", "pods/status", verb): _OWN_STATUS for verb in _CHANGE},
    **{("", "nodes", verb): _own_node for verb in ("create", *_CHANGE)},
    **{("", "nodes/status", verb): _own_node for verb in _CHANGE},
    **{("coordination.k8s.io", "leases", verb): _own_lease for verb in ("get", "create", *_CHANGE, "delete")},
    **{("storage.k8s.io", "csinodes", verb): _own_name for verb in ("get", "create", *_CHANGE, "delete")},
}

# (group, resource) -> verbs that depend on the node's name, its pods or the object.
SOMETIMES_GRANTED: dict[tuple[str, str], tuple[str, ...]] = dict(_THROUGH_PODS)
for _group, _resource, _verb in _WRITES:
    _key = _group, _resource
    SOMETIMES_GRANTED[_key] = (*SOMETIMES_GRANTED.get(_key, ()), _verb)

MIRROR = "kubernetes.io/config.mirror"
RESTRICTED = "node-restriction.kubernetes.io/"


class _ConditionText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    condition: str
    node_name: str


def node_condition(test: str, node: str, description: str) -> Condition:
    """Build the Allow condition of one test for one node."""
    text = msgspec.json.encode(_ConditionText(test, node)).decode()
    return Condition(test, Effect.ALLOW, text, NODE_TYPE, description)


def node_condition_is_true(condition: Condition, data: ConditionData) -> bool:
    """Whether a condition is true for the data; ConditionError if the Node authorizer did not write it."""
    if condition.type != NODE_TYPE:
        raise ConditionError(f"the Node authorizer does not evaluate conditions of type `{condition.type}`")
    try:
        text = msgspec.json.decode(condition.text, type=_ConditionText)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConditionError(f"not a condition of the Node authorizer: {error}") from None
    test = _TESTS.get(text.condition)
    if test is None:
        raise ConditionError("not a condition of the Node authorizer")
    return test(text.node_name, data)


def _name(value: Any) -> Any:
    return _get(value, "metadata", "name")


def _get(value: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _is_own_mirror_pod(node: str, data: ConditionData) -> bool:
    pod, spec = data.object, _get(data.object, "spec")
    if _get(spec, "nodeName") != node or not isinstance(spec, Mapping) or _get(pod, "metadata", "annotations") is None:
        return False
    owners = _get(pod, "metadata", "ownerReferences") or []
    is_own = len(owners) <= 1 and all(_get(owner, "kind") == "Node" and _get(owner, "name") == node for owner in owners)
    is_mirror = MIRROR in _get(pod, "metadata", "annotations")
    return is_mirror and is_own and next(references(spec, ""), None) is None


def _is_own_stored_pod(node: str, data: ConditionData) -> bool:
    return bool(_get(data.old_object, "spec", "nodeName") == node)


def _is_own_pod_status(node: str, data: ConditionData) -> bool:
    same_labels = _get(data.object, "metadata", "labels") == _get(data.old_object, "metadata", "labels")
    return same_labels and _is_own_stored_pod(node, data)


def _is_own_name(node: str, data: ConditionData) -> bool:
    return bool(_name(data.object) == node)


def _is_own_node(node: str, data: ConditionData) -> bool:
    if _name(data.object) != node:
        return False
    if data.old_object is None:
        return not _restricted_labels(data.object)
    same_taints = (_get(data.object, "spec", "taints") or []) == (_get(data.old_object, "spec", "taints") or [])
    same_labels = _restricted_labels(data.object) == _restricted_labels(data.old_object)
    return _name(data.old_object) == node and same_taints and same_labels


def _restricted_labels(node: Any) -> dict[str, Any]:
    labels = _get(node, "metadata", "labels")
    if not isinstance(labels, Mapping):
        return {}

    def is_restricted(key: str) -> bool:
        domain = key.partition("/")[0]
        return "/" in key and f"{domain}/".endswith(RESTRICTED)

    return {key: value for key, value in labels.items() if is_restricted(str(key))}


def _is_token_of_pod(node: str, data: ConditionData) -> bool:
    bound = _get(data.object, "spec", "boundObjectRef")
    return _get(bound, "kind") == "Pod" and bool(_get(bound, "name")) and bool(_get(bound, "uid"))


_TESTS: dict[str, Callable[[str, ConditionData], bool]] = {
    "require-pod-node-name": _is_own_mirror_pod,
    "require-stored-pod-node-name": _is_own_stored_pod,
    "require-pod-status": _is_own_pod_status,
    "require-name": _is_own_name,
    "require-own-node": _is_own_node,
    "require-bound-pod": _is_token_of_pod,
}


_VOLUME_SECRETS = ("cephfs", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos", "csi")


@per_snapshot
def node_graph(snapshot: Snapshot) -> Mapping[str, frozenset[ObjectKey]]:
    """Return, for each node, its pods and everything that they, their claims and their volumes refer to."""
    graph: dict[str, set[ObjectKey]] = {}
    for pod in snapshot.of_kind("", "Pod"):
        node = pod.spec.get("nodeName")
        if isinstance(node, str) and node:
            keys = graph.setdefault(node, set())
            keys.add(("pods", pod.namespace, pod.name))
            keys.update(references(pod.spec, pod.namespace))
    for keys in graph.values():
        for kind, namespace, name in list(keys):
            if kind == "persistentvolumeclaims":
                claim = snapshot.get("", "PersistentVolumeClaim", namespace, name)
                volume = claim.spec.get("volumeName") if claim is not None else None
                if isinstance(volume, str) and volume:
                    keys.add(("persistentvolumes", "", volume))
    for attachment in snapshot.of_kind("storage.k8s.io", "VolumeAttachment"):
        node = attachment.spec.get("nodeName")
        if isinstance(node, str) and node:
            graph.setdefault(node, set()).add(("volumeattachments", "", attachment.name))
    return {node: frozenset(keys) for node, keys in graph.items()}


def references(spec: Mapping[str, Any], namespace: str) -> Iterator[ObjectKey]:
    """Yield the secrets, config maps, claims, resource claims and the service account that a pod's spec names."""
    yield from _reference("serviceaccounts", namespace, spec.get("serviceAccountName"))
    for pull in list_of_maps(spec.get("imagePullSecrets")):
        yield from _reference("secrets", namespace, pull.get("name"))
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for container in list_of_maps(spec.get(key)):
            yield from _environment(container, namespace)
    for claim in list_of_maps(spec.get("resourceClaims")):
        yield from _reference("resourceclaims", namespace, claim.get("resourceClaimName"))
    for volume in list_of_maps(spec.get("volumes")):
        for source in (volume, *list_of_maps(_get(volume, "projected", "sources"))):
            yield from _reference("secrets", namespace, _get(source, "secret", "secretName"))
            yield from _reference("secrets", namespace, _get(source, "secret", "name"))
            yield from _reference("configmaps", namespace, _get(source, "configMap", "name"))
        yield from _reference("persistentvolumeclaims", namespace, _get(volume, "persistentVolumeClaim", "claimName"))
        yield from _reference("secrets", namespace, _get(volume, "azureFile", "secretName"))
        for driver in _VOLUME_SECRETS:
            for field in ("secretRef", "nodePublishSecretRef"):
                yield from _reference("secrets", namespace, _get(volume, driver, field, "name"))


def _environment(container: Mapping[str, Any], namespace: str) -> Iterator[ObjectKey]:
    for variable in list_of_maps(container.get("env")):
        yield from _reference("secrets", namespace, _get(variable, "valueFrom", "secretKeyRef", "name"))
        yield from _reference("configmaps", namespace, _get(variable, "valueFrom", "configMapKeyRef", "name"))
    for source in list_of_maps(container.get("envFrom")):
        yield from _reference("secrets", namespace, _get(source, "secretRef", "name"))
        yield from _reference("configmaps", namespace, _get(source, "configMapRef", "name"))


def _reference(resource: str, namespace: str, name: Any) -> Iterator[ObjectKey]:
    if isinstance(name, str) and name:
        yield resource, namespace, name
