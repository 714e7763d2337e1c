"""The bridge: a conditional allow is granted only where admission enforces it, and admission enforces each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.authorizer_server import CLAIMS, POLICIES, Served, access, admission, claim, readable
from tests.reference.api_server import judge_write
from tierwall.api.algebra.request import Attributes
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer import bridge
from tierwall.serve.authorizer.bridge import AdmissionRequest
from tierwall.serve.authorizer.policies import PolicySet


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path, bridged=True)


def verdict(served: Served, review: dict[str, Any]) -> str:
    answer = served.post("/authorize", review)
    assert answer.status == 200
    status = answer.json["status"]
    return "Allow" if status["allowed"] else "Deny" if status.get("denied") else "NoOpinion"


def is_admitted(served: Served, review: dict[str, Any]) -> bool:
    answer = served.post("/admit", review)
    assert answer.status == 200
    assert answer.json["response"]["uid"] == "u1"
    return bool(answer.json["response"]["allowed"])


# the first phase


def test_what_can_become_allowed_is_let_through_to_admission(served: Served) -> None:
    assert verdict(served, access()) == "Allow"
    assert verdict(served, access("nobody")) == "NoOpinion"


def test_what_can_only_be_denied_is_left_to_other_authorizers(served: Served) -> None:
    assert verdict(served, access("carol")) == "NoOpinion"


def test_without_the_bridge_conditional_answers_become_concrete(tmp_path: Path) -> None:
    served = Served(tmp_path)
    assert verdict(served, access()) == "NoOpinion"
    assert verdict(served, access("carol")) == "Deny"
    assert served.post("/admit", admission()).status == 404


def test_a_caller_that_mentions_conditions_is_not_an_old_api_server(served: Served) -> None:
    types = {"handledDecisionTypes": ["Allow", "Deny", "NoOpinion"]}
    assert verdict(served, access(authorizationOptions=types)) == "NoOpinion"
    assert verdict(served, access(conditionalAuthorization={"mode": ""})) == "NoOpinion"
    assert "conditionsChain" in served.post("/authorize", access(**readable())).json["status"]


SERVICE = {
    "apiVersion": "apiregistration.k8s.io/v1",
    "kind": "APIService",
    "metadata": {"name": "v1.metrics.example.com"},
    "spec": {"group": "metrics.example.com", "version": "v1", "service": {"name": "x", "namespace": "y"}},
}


def definition(group: str, **version: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": True, "storage": True, **version}],
        },
    }


@pytest.mark.parametrize(
    "attributes",
    [
        {"version": "*"},
        {"resource": "*"},
        {"verb": "list"},
        {"verb": "get"},
        {"verb": "use"},
        {"resource": "pods", "subresource": "log", "verb": "get"},
        {"group": "admissionregistration.k8s.io", "resource": "validatingwebhookconfigurations"},
        # Programs that ask about resources that exist nowhere.
        {"resource": "things"},
        {"subresource": "finalizers", "verb": "update"},
        {"group": "example.com"},
        # Another API server.
        {"group": "metrics.example.com", "resource": "things"},
        {"group": "unserved.example.com", "resource": "things"},
        {"group": "defined.example.com", "resource": "things", "subresource": "scale", "verb": "update"},
        {"group": "defined.example.com", "resource": "others"},
        # Kubelets.
        *(
            {"resource": "nodes", "subresource": subresource, "verb": verb, "namespace": "", "name": "n"}
            for subresource in ("proxy", "log", "stats", "metrics", "spec", "checkpoint", "pods", "configz", "healthz")
            for verb in ("get", "create", "update", "delete")
        ),
    ],
)
def test_nothing_is_granted_where_admission_would_not_enforce_it(tmp_path: Path, attributes: dict[str, str]) -> None:
    served = Served(tmp_path, (), bridged=True)
    others = (
        SERVICE,
        definition("metrics.example.com"),
        definition("defined.example.com", subresources={"status": {}}),
        definition("unserved.example.com", served=False),
    )
    for effect, folded in (("Allow", "NoOpinion"), ("Deny", "Deny")):
        served.write([("any", effect, "object.ok == true")], *others)
        assert served.reload()
        assert verdict(served, access(attributes=attributes)) == folded


def test_nothing_is_granted_on_conditions_for_a_path(tmp_path: Path) -> None:
    served = Served(tmp_path, [("any", "Allow", "object.ok == true")], bridged=True)
    review = access()
    del review["spec"]["resourceAttributes"]
    review["spec"]["nonResourceAttributes"] = {"path": "/metrics", "verb": "create"}
    assert verdict(served, review) == "NoOpinion"


@pytest.mark.parametrize(
    "attributes",
    [
        {"resource": "nodes", "subresource": "status", "verb": "patch", "name": "n"},
        {"resource": "pods", "subresource": "exec", "verb": "get", "name": "p"},
        {"resource": "pods", "subresource": "eviction", "name": "p"},
        {"group": "apps", "resource": "deployments", "subresource": "scale", "verb": "patch", "name": "d"},
        {"group": "resource.k8s.io", "resource": "resourceclaims"},
        {"group": "defined.example.com", "resource": "things"},
        {"group": "defined.example.com", "resource": "things", "subresource": "status", "verb": "update"},
        *(
            {"group": "authorization.k8s.io", "resource": f"{kind}accessreviews"}
            for kind in ("subject", "selfsubject", "localsubject")
        ),
        {"group": "authorization.k8s.io", "resource": "selfsubjectrulesreviews"},
        {"group": "authentication.k8s.io", "resource": "tokenreviews"},
        {"group": "authentication.k8s.io", "resource": "selfsubjectreviews"},
    ],
)
def test_what_admission_sees_is_granted_on_conditions(tmp_path: Path, attributes: dict[str, str]) -> None:
    served = Served(tmp_path, (), bridged=True)
    served.write(
        [("any", "Allow", "object.ok == true")], definition("defined.example.com", subresources={"status": {}})
    )
    assert served.reload()
    assert verdict(served, access(attributes=attributes)) == "Allow"


def test_what_the_first_phase_left_to_others_is_not_refused_for_conditions_that_do_not_hold(tmp_path: Path) -> None:
    served = Served(tmp_path, [("metrics", "Allow", 'object.path == "metrics"')], bridged=True)
    node = {"group": "", "version": "v1", "resource": "nodes"}
    about: dict[str, Any] = {
        "resource": node,
        "requestResource": node,
        "subResource": "proxy",
        "requestSubResource": "proxy",
    }
    for path in ("metrics", "exec"):
        review = admission("alice", "CONNECT", **about, name="n", object={"path": path})
        assert is_admitted(served, review)


def test_selectors_must_make_no_difference_because_admission_does_not_see_them(tmp_path: Path) -> None:
    plain = 'request.verb == "deletecollection" && oldObject.ok'
    picky = 'request.verb == "deletecollection" && has(request.labelSelector) && oldObject.ok'
    selector = {"labelSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}}
    served = Served(tmp_path, [("plain", "Allow", plain)], bridged=True)
    assert verdict(served, access(verb="deletecollection", attributes=selector)) == "Allow"
    served.write([("picky", "Allow", picky)])
    assert served.reload()
    assert verdict(served, access(verb="deletecollection", attributes=selector)) == "NoOpinion"


def test_new_policies_grant_on_conditions_only_once_they_have_settled(tmp_path: Path) -> None:
    served = Served(tmp_path, bridged=True, settle=5)
    assert verdict(served, access()) == "NoOpinion"
    assert verdict(served, access("bob")) == "Allow"
    served.clock.now += 5
    assert verdict(served, access()) == "Allow"


# admission


def test_admission_lets_through_what_conditions_allow_and_refuses_the_rest(served: Served) -> None:
    assert is_admitted(served, admission())
    refused = served.post("/admit", admission(object=claim("prod"))).json["response"]
    assert refused["allowed"] is False
    assert refused["status"]["code"] == 403
    assert "conditions do not hold" in refused["status"]["message"]


def test_admission_leaves_alone_what_the_first_phase_settled(served: Served) -> None:
    assert is_admitted(served, admission("bob", object=claim("prod")))
    assert is_admitted(served, admission("nobody")), "another authorizer allowed it"
    assert not is_admitted(served, admission("eve"))


def test_a_condition_that_can_only_deny_refuses_or_lets_pass(served: Served) -> None:
    assert is_admitted(served, admission("carol"))
    assert not is_admitted(served, admission("carol", object=claim("prod")))
    assert not is_admitted(served, admission("carol", object={})), "a Deny that fails refuses"


def test_superusers_are_not_subject_to_authorizers_in_either_phase(served: Served) -> None:
    root = {"username": "eve", "groups": ["system:masters"]}
    assert is_admitted(served, admission(userInfo=root))


def test_an_update_may_have_been_a_patch_so_both_are_judged(tmp_path: Path) -> None:
    patch = f'{CLAIMS} && request.verb == "patch" && object.spec.storageClassName == "dev"'
    served = Served(tmp_path, [("patch", "Allow", patch)], bridged=True)
    assert verdict(served, access(verb="patch")) == "Allow"
    assert is_admitted(served, admission(operation="UPDATE"))
    assert not is_admitted(served, admission(operation="UPDATE", object=claim("prod")))


def test_a_create_was_authorized_without_the_name_that_admission_knows(tmp_path: Path) -> None:
    named = f'{CLAIMS} && request.verb == "create" && request.name == "c"'
    served = Served(tmp_path, [("named", "Allow", named)], bridged=True)
    assert verdict(served, access()) == "Allow"
    assert is_admitted(served, admission())
    assert not is_admitted(served, admission(name="d", object=claim(name="d")))


def test_a_delete_without_a_name_was_a_deletecollection(tmp_path: Path) -> None:
    mine = f'{CLAIMS} && request.verb == "deletecollection" && oldObject.spec.storageClassName == "dev"'
    served = Served(tmp_path, [("mine", "Allow", mine)], bridged=True)
    assert is_admitted(served, admission(operation="DELETE", name=""))
    assert not is_admitted(served, admission(operation="DELETE", name="", oldObject=claim("prod")))
    assert is_admitted(served, admission(operation="DELETE", oldObject=claim("prod"))), "a delete is another verb"


def test_a_connect_request_is_judged_as_get_and_as_create(tmp_path: Path) -> None:
    resource = {"group": "", "version": "v1", "resource": "pods"}
    for verb in ("get", "create"):
        text = f'request.subresource == "exec" && request.verb == "{verb}" && object.command == ["ls"]'
        folder = tmp_path / verb
        folder.mkdir()
        served = Served(folder, [("exec", "Allow", text)], bridged=True)
        for command, expected in ((["ls"], True), (["rm"], False)):
            review = admission(
                operation="CONNECT",
                resource=resource,
                requestResource=resource,
                subResource="exec",
                requestSubResource="exec",
                object={"kind": "PodExecOptions", "apiVersion": "v1", "command": command},
            )
            assert is_admitted(served, review) is expected


def test_an_object_in_another_version_than_the_request_is_not_judged(served: Served) -> None:
    other = {"group": "", "version": "v2", "resource": "persistentvolumeclaims"}
    assert not is_admitted(served, admission(resource=other))


def test_an_unknown_operation_is_refused(served: Served) -> None:
    answer = served.post("/admit", admission(operation="DESTROY"))
    assert answer.status == 400
    assert answer.json["response"] == {
        "uid": "u1",
        "allowed": False,
        "status": {"status": "Failure", "code": 400, "message": answer.json["response"]["status"]["message"]},
    }


# between the phases


def test_a_grant_of_superseded_policies_is_enforced_for_the_grace_period(served: Served) -> None:
    assert verdict(served, access()) == "Allow"
    served.write(POLICIES[1:])
    assert served.reload()
    assert verdict(served, access()) == "NoOpinion"
    bad = admission(object=claim("prod"))
    assert is_admitted(served, admission())
    assert not is_admitted(served, bad), "the API server may have kept the answer"
    served.clock.now += 331
    assert is_admitted(served, bad), "by now it has not, so another authorizer allowed it"


def test_new_policies_win_over_superseded_ones(served: Served) -> None:
    served.write([("alice-all", "Allow", f'{CLAIMS} && request.userInfo.username == "alice"')])
    assert served.reload()
    assert is_admitted(served, admission(object=claim("prod")))
    served.write([("alice-none", "Deny", f'{CLAIMS} && request.userInfo.username == "alice"')])
    assert served.reload()
    assert not is_admitted(served, admission())


# the whole


EXPRESSIONS = (
    "true",
    'request.verb == "create"',
    'request.verb in ["update", "patch"]',
    'request.verb == "delete"',
    'request.name == "c"',
    "object.a == 1",
    "object.a != 1",
    "oldObject.a == 1",
    "has(object.b)",
    'request.verb == "create" && object.a == 1',
    'request.verb != "create" && oldObject.a == 1',
    "object.b.c",
    "false",
)
VALUES = st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, 2, {"c": True}]))
POLICY = st.tuples(st.sampled_from(("Allow", "Deny", "NoOpinion")), st.sampled_from(EXPRESSIONS))


def policy_set(policies: list[tuple[str, str]]) -> PolicySet:
    values = [
        {
            "apiVersion": "tierwall.io/v1alpha1",
            "kind": "ClusterAuthorizationPolicy",
            "metadata": {"name": f"p{n}"},
            "spec": {"effect": effect, "expression": text},
        }
        for n, (effect, text) in enumerate(policies)
    ]
    from tierwall.api.model import chain_of

    return PolicySet(chain_of(Snapshot.of(load_objects(values))), "r")


@given(
    policies=st.lists(POLICY, max_size=4),
    verb=st.sampled_from(("create", "update", "patch", "delete")),
    new=VALUES,
    old=VALUES,
    is_otherwise_allowed=st.booleans(),
)
def test_both_phases_together_decide_as_an_api_server_that_knows_conditions(
    policies: list[tuple[str, str]], verb: str, new: dict[str, Any], old: dict[str, Any], is_otherwise_allowed: bool
) -> None:
    """Without another authorizer, the answers are the same. With one that allows everything, ours never allow more."""
    in_force = policy_set(policies)
    name = "" if verb == "create" else "c"
    attributes = Attributes(user="u", verb=verb, version="v1", resource="configmaps", name=name)
    object_ = {**new, "metadata": {"name": "c"}} if verb != "delete" else None
    old_object = {**old, "metadata": {"name": "c"}} if verb != "create" else None
    request = msgspec.convert(
        {
            "uid": "u1",
            "operation": {"create": "CREATE", "delete": "DELETE"}.get(verb, "UPDATE"),
            "resource": {"version": "v1", "resource": "configmaps"},
            "userInfo": {"username": "u"},
            "name": "c",
            "object": object_,
            "oldObject": old_object,
        },
        AdmissionRequest,
    )
    answer, _ = bridge.first_answer(in_force, attributes)
    passes = answer.verdict == "Allow" or (answer.verdict == "NoOpinion" and is_otherwise_allowed)
    passes = passes and bridge.judge(in_force, (), request).allowed
    outcome = judge_write(in_force.chain, attributes, object=object_, old_object=old_object)
    if not is_otherwise_allowed:
        # The policies of EXPRESSIONS treat update and patch alike, so judging both makes no difference.
        assert passes is outcome.is_allowed
    elif passes:
        final = in_force.chain.authorize(attributes).evaluate(request.data(attributes))
        assert final.verdict != "Deny"
