"""The Node authorizer as a conditional authorizer (KEP-5681, "Node authorizer")."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.api_fakes import condition_sets, objects
from tierwall.api.algebra.chain import Chain
from tierwall.api.algebra.condition import NODE_TYPE
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.api.authorizers.node import NodeAuthorizer

SNAPSHOT = objects(
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "nodeName": "foo",
            "serviceAccountName": "web",
            "volumes": [{"secret": {"secretName": "tls"}}, {"persistentVolumeClaim": {"claimName": "data"}}],
            "containers": [{"envFrom": [{"configMapRef": {"name": "env"}}]}],
        },
    },
    {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "shop"},
        "spec": {"volumeName": "pv1"},
    },
)
CHAIN = Chain([NodeAuthorizer(SNAPSHOT)])


def ask(verb: str, resource: str, name: str = "", namespace: str = "shop", node: str = "foo", **more: Any) -> Any:
    what, _, subresource = resource.partition("/")
    attributes = Attributes(
        user=f"system:node:{node}",
        groups=("system:nodes",),
        verb=verb,
        version="v1",
        resource=what,
        subresource=subresource,
        namespace=namespace,
        name=name,
        **more,
    )
    return CHAIN.authorize(attributes)


def mirror(node: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {"nodeName": node, **spec}}


@pytest.mark.parametrize(
    ("thing", "verdict"),
    [
        (mirror("foo"), "Allow"),
        (mirror("bar"), "NoOpinion"),
        (mirror("foo", serviceAccountName="x"), "NoOpinion"),
        ({"spec": {"nodeName": "foo"}}, "NoOpinion"),
        ({}, "NoOpinion"),
        (None, "NoOpinion"),
        ("text", "NoOpinion"),
    ],
)
def test_r110_a_node_may_create_only_its_own_mirror_pods(thing: Any, verdict: str) -> None:
    first = ask("create", "pods")
    (condition,) = condition_sets(first)[0].conditions
    assert (condition.type, condition.text) == (NODE_TYPE, '{"condition":"require-pod-node-name","nodeName":"foo"}')
    assert first.evaluate(ConditionData(operation="CREATE", object=thing)).verdict == verdict


def test_pods_are_deleted_and_reported_on_only_by_their_node() -> None:
    for verb, resource in (("delete", "pods"), ("update", "pods/status"), ("patch", "pods/status")):
        first = ask(verb, resource, "web")
        mine, other = {"spec": {"nodeName": "foo"}}, {"spec": {"nodeName": "bar"}}
        assert first.evaluate(ConditionData(object={}, old_object=mine)).verdict == "Allow"
        assert first.evaluate(ConditionData(object={}, old_object=other)).verdict == "NoOpinion"
    relabelled = {"metadata": {"labels": {"a": "b"}}}
    decision = ask("update", "pods/status", "web").evaluate(
        ConditionData(object=relabelled, old_object={"spec": {"nodeName": "foo"}})
    )
    assert decision.verdict == "NoOpinion"


@pytest.mark.parametrize(
    ("resource", "name", "namespace", "good"),
    [
        ("secrets", "tls", "shop", True),
        ("secrets", "other", "shop", False),
        ("secrets", "tls", "bank", False),
        ("configmaps", "env", "shop", True),
        ("persistentvolumeclaims", "data", "shop", True),
        ("persistentvolumes", "pv1", "", True),
        ("persistentvolumes", "pv2", "", False),
    ],
)
def test_a_node_reads_only_what_its_pods_refer_to(resource: str, name: str, namespace: str, good: bool) -> None:
    assert ask("get", resource, name, namespace).verdict == ("Allow" if good else "NoOpinion")
    assert ask("get", resource, name, namespace, node="bar").verdict == "NoOpinion"


def test_a_node_handles_its_own_lease_and_node_object() -> None:
    lease = {"group": "coordination.k8s.io"}
    assert ask("update", "leases", "foo", "kube-node-lease", **lease).verdict == "Allow"
    assert ask("update", "leases", "bar", "kube-node-lease", **lease).verdict == "NoOpinion"
    assert ask("update", "leases", "foo", "default", **lease).verdict == "NoOpinion"
    created = ask("create", "leases", "", "kube-node-lease", **lease)
    assert created.evaluate(ConditionData(object={"metadata": {"name": "foo"}})).verdict == "Allow"
    assert created.evaluate(ConditionData(object={"metadata": {"name": "bar"}})).verdict == "NoOpinion"
    update = ask("update", "nodes", "foo", "")
    mine = {"metadata": {"name": "foo", "labels": {"a": "b"}}}
    restricted = {"metadata": {"name": "foo", "labels": {"node-restriction.kubernetes.io/x": "y"}}}
    assert update.evaluate(ConditionData(object=mine, old_object={"metadata": {"name": "foo"}})).verdict == "Allow"
    assert update.evaluate(ConditionData(object=restricted, old_object=mine)).verdict == "NoOpinion"
    tainted = {**mine, "spec": {"taints": [{"key": "x"}]}}
    assert update.evaluate(ConditionData(object=tainted, old_object=mine)).verdict == "NoOpinion"
    assert ask("update", "nodes", "bar", "").verdict == "NoOpinion"


def test_tokens_only_for_accounts_and_pods_of_the_node() -> None:
    first = ask("create", "serviceaccounts/token", "web")
    bound = {"spec": {"boundObjectRef": {"kind": "Pod", "name": "web", "uid": "1"}}}
    assert first.evaluate(ConditionData(object=bound)).verdict == "Allow"
    assert first.evaluate(ConditionData(object={"spec": {}})).verdict == "NoOpinion"
    assert ask("create", "serviceaccounts/token", "other").verdict == "NoOpinion"


def test_other_users_are_not_nodes() -> None:
    for user, groups in (("system:node:foo", ()), ("foo", ("system:nodes",)), ("system:node:", ("system:nodes",))):
        attributes = Attributes(user=user, groups=groups, verb="get", resource="nodes", version="v1")
        assert CHAIN.authorize(attributes).verdict == "NoOpinion"


@pytest.mark.parametrize(
    "text", ["", "{}", "x", '{"condition":"__import__","nodeName":"foo"}', '{"condition":1}', '{"a":1}']
)
def test_r089_text_that_is_not_its_own_is_refused(text: str) -> None:
    from msgspec.structs import replace

    from tierwall.api.algebra.condition import ConditionalDecision

    first = ask("create", "pods")
    conditions = condition_sets(first)[0]
    changed = replace(conditions, conditions=(replace(conditions.conditions[0], text=text),))
    again = CHAIN.recall([("node", ConditionalDecision(conditions=changed))])
    assert again.evaluate(ConditionData(object=mirror("foo"))).verdict == "NoOpinion"
