"""Tierwall's own kinds (`tierwall.io/v1alpha1`): the CEL policies of the api plane, and PolicyTest.

docs/api.md#a-policy, docs/policy-tests.md.
"""

from tierwall.resources.kinds.kind import Column, Kind
from tierwall.resources.schema import (
    any_object,
    any_value,
    array,
    enum,
    mapping,
    obj,
    optional,
    required,
    rule,
    string,
)

_GROUP = "tierwall.io"
_QUESTIONS = ("network", "tool", "gateway", "api", "admit")

_policy_spec = obj(
    optional(
        "authorizer",
        string(min_length=1, max_length=253, default="policies"),
        "Which CEL authorizer of the chain holds the policy.",
    ),
    required("effect", enum("Allow", "Deny", "NoOpinion"), "What it means when the expression is true."),
    optional("description", string(max_length=1024), "For people; shown in conditions."),
    required(
        "expression", string(min_length=1, max_length=16384), "CEL over `request` and the condition data, to bool."
    ),
)
_columns = (
    Column("Effect", "string", ".spec.effect"),
    Column("Authorizer", "string", ".spec.authorizer"),
    Column("Age", "date", ".metadata.creationTimestamp"),
)

_case = obj(
    required("name", string(min_length=1), "Unique in the test."),
    optional("network", any_object(), "May this pod open a connection to that one?"),
    optional("tool", any_object(), "May this agent call this tool?"),
    optional("gateway", any_object(), "Which settings are in force at this place?"),
    optional("api", any_object(), "May this user do this?"),
    optional("admit", any_object(), "Would an API server take this object?"),
    required("expect", any_object(), "What must hold of the answer."),
    rule(
        f"[{','.join(f'has(self.{name})' for name in _QUESTIONS)}].filter(x,x==true).size() == 1",
        f"exactly one of the fields in [{' '.join(_QUESTIONS)}] must be set",
    ),
)
_test_spec = obj(
    optional("resources", array(string()), "Files, folders or globs, relative to the test."),
    optional("objects", array(any_object()), "Objects, added to those of `resources`."),
    optional("defaults", mapping(any_value()), "Keys that every question has, unless it says otherwise."),
    required("cases", array(_case, list_type="map", keys=("name",)), "The questions."),
)

KINDS = (
    Kind(
        group=_GROUP,
        version="v1alpha1",
        kind="ClusterAuthorizationPolicy",
        plural="clusterauthorizationpolicies",
        scope="Cluster",
        columns=_columns,
        description="A CEL policy of an authorizer, for every request.",
        schema=obj(required("spec", _policy_spec)),
    ),
    Kind(
        group=_GROUP,
        version="v1alpha1",
        kind="AuthorizationPolicy",
        plural="authorizationpolicies",
        columns=_columns,
        description="A CEL policy of an authorizer, for requests in its own namespace.",
        schema=obj(required("spec", _policy_spec)),
    ),
    Kind(
        group=_GROUP,
        version="v1alpha1",
        kind="PolicyTest",
        plural="policytests",
        scope="None",
        is_crd=False,
        name_format="",
        description="Questions and the answers that must come out; a file, never sent to a cluster.",
        schema=obj(required("spec", _test_spec)),
    ),
)
