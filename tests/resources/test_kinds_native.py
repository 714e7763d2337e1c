"""RBAC, the authorizer chain, Tierwall's own kinds, and objects that are only read."""

from typing import Any

import pytest

from tierwall.resources.admission import admit

RBAC = "rbac.authorization.k8s.io"


def refusals(document: dict[str, Any]) -> list[str]:
    return [problem.message for problem in admit(document) if problem.refuses]


def role(kind: str = "Role", **rule: Any) -> dict[str, Any]:
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": "system:x"}, "rules": [rule]}


def binding(kind: str = "RoleBinding", **changes: Any) -> dict[str, Any]:
    head = {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": "x"}}
    return head | {"roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "y"}} | changes


RESOURCES: dict[str, Any] = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
NEITHER = [
    "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
    "rules[0].resources: Required value: resource rules must supply at least one resource",
]


@pytest.mark.parametrize(
    ("document", "messages"),
    [
        (role(**RESOURCES), []),
        (role(), ["rules[0].verbs: Required value: verbs must contain at least one value", *NEITHER]),
        (role(verbs=["get"]), NEITHER),
        (role("ClusterRole", verbs=["get"], nonResourceURLs=["/x"]), []),
        (
            role(verbs=["get"], nonResourceURLs=["/x"]),
            ['rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs'],
        ),
        (
            role("ClusterRole", nonResourceURLs=["/x"], **RESOURCES),
            [
                'rules[0].nonResourceURLs: Invalid value: ["/x"]: '
                "rules cannot apply to both regular resources and non-resource URLs"
            ],
        ),
        (role(vrebs=[]), ['unknown field "rules[0].vrebs"']),
        (binding(), []),
        (binding(roleRef={"kind": "Role", "name": "a"}), []),
        (
            binding("ClusterRoleBinding", roleRef={"kind": "Role", "name": "a"}),
            ['roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"'],
        ),
        (binding(roleRef={"kind": "Role"}), ["roleRef.name: Required value"]),
        (
            binding(roleRef={"kind": "Role", "name": "a/b"}),
            ["roleRef.name: Invalid value: \"a/b\": may not contain '/'"],
        ),
        (binding(subjects=[{"kind": "User", "name": "a"}, {"kind": "ServiceAccount", "name": "b"}]), []),
        (
            binding("ClusterRoleBinding", subjects=[{"kind": "ServiceAccount", "name": "b"}]),
            ["subjects[0].namespace: Required value"],
        ),
        (
            binding(subjects=[{"kind": "ServiceAccount", "name": "b", "apiGroup": RBAC}]),
            [f'subjects[0].apiGroup: Unsupported value: "{RBAC}": supported values: ""'],
        ),
        (
            binding(subjects=[{"kind": "user", "name": "b"}]),
            ['subjects[0].kind: Unsupported value: "user": supported values: "ServiceAccount", "User", "Group"'],
        ),
    ],
)
def test_rbac_is_judged_as_by_kubernetes(document: dict[str, Any], messages: list[str]) -> None:
    assert refusals(document) == messages


def chain(*authorizers: dict[str, Any]) -> dict[str, Any]:
    head = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration"}
    return head | {"authorizers": list(authorizers)}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (chain(), "authorizers: Required value: at least one authorization mode must be defined"),
        (chain({"type": "Foo", "name": "a"}), 'authorizers[0].type: Unsupported value: "Foo"'),
        (chain({"type": "RBAC"}), "authorizers[0].name: Required value"),
        (chain({"type": "Webhook", "name": "w"}), "authorizers[0].webhook: Required value: required when type=Webhook"),
        (chain({"type": "Node", "name": "n", "webhook": {}}), "may only be specified when type=Webhook"),
        (chain({"type": "RBAC", "name": "r", "failureMode": "Deny"}), "may only be specified when type=CEL"),
        (chain({"type": "CEL", "name": "a"}, {"type": "Node", "name": "a"}), "Duplicate value"),
        (chain({"type": "RBAC", "name": "a"}, {"type": "RBAC", "name": "b"}), "may appear more than once"),
    ],
)
def test_an_authorizer_chain_that_no_server_would_start_with_is_refused(document: dict[str, Any], words: str) -> None:
    assert any(words in message for message in refusals(document)), refusals(document)


def test_the_documented_chain_is_accepted() -> None:
    assert (
        admit(
            chain(
                {"type": "CEL", "name": "guardrails", "failureMode": "Deny"},
                {"type": "CEL", "name": "more"},
                {"type": "Node", "name": "node"},
                {"type": "RBAC", "name": "rbac"},
                {"type": "Webhook", "name": "hook", "webhook": {"timeout": "3s", "failurePolicy": "Deny"}},
            )
        )
        == []
    )


def own(kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "tierwall.io/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def test_authorization_policies_need_an_effect_and_an_expression() -> None:
    assert admit(own("ClusterAuthorizationPolicy", effect="Deny", expression="true")) == []
    assert sorted(refusals(own("AuthorizationPolicy", authorizer="a", efect="Allow", expression=""))) == [
        "spec.effect: Required value",
        'spec.expression: Invalid value: "": spec.expression in body should be at least 1 chars long',
        'unknown field "spec.efect"',
    ]


def test_a_policy_test_asks_exactly_one_question_per_case() -> None:
    good = {"name": "a", "network": {"from": "x/y"}, "expect": {"verdict": "Allow"}}
    assert admit(own("PolicyTest", cases=[good])) == []
    two = good | {"api": {}}
    assert refusals(own("PolicyTest", cases=[two])) == [
        'spec.cases[0]: Invalid value: {"api":{},"expect":{"verdict":"Allow"},"name":"a","network":'
        '{"from":"x/y"}}: exactly one of the fields in [network tool gateway api admit path prove] must be set'
    ]


def test_only_a_proof_may_leave_out_what_it_expects() -> None:
    assert admit(own("PolicyTest", cases=[{"name": "a", "prove": {"network": {}, "never": "Allow"}}])) == []
    (refusal,) = refusals(own("PolicyTest", cases=[{"name": "a", "network": {"from": "x/y"}}]))
    assert refusal.endswith("only a `prove` may leave out `expect`")


def test_the_name_of_a_policy_test_may_be_anything() -> None:
    assert admit(own("PolicyTest", cases=[]) | {"metadata": {"name": "Any Name!"}}) == []
    assert admit({"apiVersion": "tierwall.io/v1alpha1", "kind": "PolicyTest", "spec": {"cases": []}}) == []


POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}


def test_objects_that_are_only_read_may_have_any_other_field() -> None:
    assert admit(POD | {"spec": {"containers": [{"image": "x"}], "volumes": 1}, "status": {"foo": 1}}) == []


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            POD | {"spec": {"hostNetwork": "yes"}},
            'spec.hostNetwork: Invalid value: "string": spec.hostNetwork in body must be of type boolean: "string"',
        ),
        (
            POD | {"spec": {"containers": [{"ports": [{"containerPort": 0}]}]}},
            "spec.containers[0].ports[0].containerPort: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b"}},
            'metadata.name: Invalid value: "a.b": must not contain dots',
        ),
    ],
)
def test_a_field_that_decisions_read_must_have_its_type(document: dict[str, Any], message: str) -> None:
    assert refusals(document) == [message]


def test_a_namespace_on_a_cluster_scoped_object_is_dropped_with_a_warning() -> None:
    (problem,) = admit({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "namespace": "b"}})
    assert not problem.refuses
