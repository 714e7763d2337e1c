"""The opaque conditions of type `k8s.io/node-authorizer` and their tests (KEP-5681, "Node authorizer").

A condition's text is JSON that names a test of this module and the node, such as
`{"condition":"require-pod-node-name","nodeName":"foo"}`; it is looked up, never executed. The tests are those of the
NodeRestriction admission plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tierwall.api.condition import NODE_TYPE, Condition, Effect
from tierwall.api.condition_set import ConditionError
from tierwall.api.data import ConditionData
from tierwall.api.node_graph import references

MIRROR = "kubernetes.io/config.mirror"
RESTRICTED = "node-restriction.kubernetes.io/"


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    condition: str
    node_name: str


def node_condition(test: str, node: str, description: str) -> Condition:
    """An Allow condition on one test for one node."""
    text = msgspec.json.encode(_Text(test, node)).decode()
    return Condition(test, Effect.ALLOW, text, NODE_TYPE, description)


def holds(condition: Condition, data: ConditionData) -> bool:
    """Whether the condition is true for the data; ConditionError if its text is not one of ours."""
    if condition.type != NODE_TYPE:
        raise ConditionError(f"type `{condition.type}` is not the Node authorizer's")
    try:
        text = msgspec.json.decode(condition.text, type=_Text)
    except (msgspec.DecodeError, UnicodeError) as why:
        raise ConditionError(f"not a condition of the Node authorizer: {why}") from None
    test = _TESTS.get(text.condition)
    if test is None:
        raise ConditionError("not a condition of the Node authorizer")
    return test(text.node_name, data)


def _name(value: Any) -> Any:
    return _at(value, "metadata", "name")


def _at(value: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _is_own_mirror_pod(node: str, data: ConditionData) -> bool:
    pod, spec = data.object, _at(data.object, "spec")
    if _at(spec, "nodeName") != node or not isinstance(spec, Mapping) or _at(pod, "metadata", "annotations") is None:
        return False
    owners = _at(pod, "metadata", "ownerReferences") or []
    is_own = len(owners) <= 1 and all(_at(one, "kind") == "Node" and _at(one, "name") == node for one in owners)
    is_mirror = MIRROR in _at(pod, "metadata", "annotations")
    return is_mirror and is_own and next(references(spec, ""), None) is None


def _is_own_stored_pod(node: str, data: ConditionData) -> bool:
    return bool(_at(data.old_object, "spec", "nodeName") == node)


def _is_own_pod_status(node: str, data: ConditionData) -> bool:
    same = _at(data.object, "metadata", "labels") == _at(data.old_object, "metadata", "labels")
    return same and _is_own_stored_pod(node, data)


def _is_own_name(node: str, data: ConditionData) -> bool:
    return bool(_name(data.object) == node)


def _is_own_node(node: str, data: ConditionData) -> bool:
    if _name(data.object) != node:
        return False
    if data.old_object is None:
        return not _restricted_labels(data.object)
    same_taints = (_at(data.object, "spec", "taints") or []) == (_at(data.old_object, "spec", "taints") or [])
    same_labels = _restricted_labels(data.object) == _restricted_labels(data.old_object)
    return _name(data.old_object) == node and same_taints and same_labels


def _restricted_labels(node: Any) -> dict[str, Any]:
    labels = _at(node, "metadata", "labels")
    if not isinstance(labels, Mapping):
        return {}

    def is_restricted(key: str) -> bool:
        domain = key.partition("/")[0]
        return "/" in key and f"{domain}/".endswith(RESTRICTED)

    return {key: value for key, value in labels.items() if is_restricted(str(key))}


def _is_token_of_pod(node: str, data: ConditionData) -> bool:
    bound = _at(data.object, "spec", "boundObjectRef")
    return _at(bound, "kind") == "Pod" and bool(_at(bound, "name")) and bool(_at(bound, "uid"))


_TESTS: dict[str, Callable[[str, ConditionData], bool]] = {
    "require-pod-node-name": _is_own_mirror_pod,
    "require-stored-pod-node-name": _is_own_stored_pod,
    "require-pod-status": _is_own_pod_status,
    "require-name": _is_own_name,
    "require-own-node": _is_own_node,
    "require-bound-pod": _is_token_of_pod,
}
