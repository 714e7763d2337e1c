"""The API server enforces answers (KEP-5681; docs/api.md#special-cases)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.reference.api_server import judge, judge_connect, judge_delete_collection, judge_write, proceeds
from tests.reference.impersonation import EXTRA_KEY, CarriedConditions, carried, impersonate
from tests.worlds.api_fakes import Fake, condition, condition_sets, configuration, policy
from tierwall.api.algebra.chain import Chain
from tierwall.api.algebra.condition import ConditionalDecision
from tierwall.api.algebra.request import Attributes, ConditionData, ConditionsMode
from tierwall.api.model import chain_of
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

PODS = Attributes(user="alice", version="v1", resource="pods", namespace="dev")


def chain(*resources: Resource) -> Chain:
    return chain_of(Snapshot.of(resources))


def request(verb: str, **more: Any) -> Attributes:
    return replace(PODS, verb=verb, **more)


CONDITIONAL = Chain([Fake("a", [condition("Allow")])])
DENIES = Chain([Fake("a", [condition("Deny")])])


def test_r063_a_request_proceeds_if_allowed_or_if_it_can_become_so() -> None:
    create = request("create")
    assert proceeds(create, Chain([Fake("a", "Allow")]).authorize(create))
    assert proceeds(create, CONDITIONAL.authorize(create))
    assert not proceeds(create, DENIES.authorize(create))
    assert not proceeds(create, Chain([Fake("a", "NoOpinion")]).authorize(create))


@pytest.mark.parametrize("verb", ["list", "watch", "get", "impersonate", "sign"])
def test_r064_a_conditional_answer_to_a_request_without_conditions_is_refused(verb: str) -> None:
    outcome = judge(CONDITIONAL, request(verb))
    assert (outcome.is_allowed, outcome.phase, outcome.decision.verdict) == (False, "authorization", "NoOpinion")
    assert judge(Chain([Fake("a", [condition("Allow"), condition("Deny")])]), request(verb)).decision.verdict == "Deny"


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete", "deletecollection"])
def test_r065_writes_support_conditions(verb: str) -> None:
    assert request(verb).supports_conditions


@pytest.mark.parametrize(
    "resource", ["pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy", "nodes/proxy"]
)
def test_r065_connect_requests_support_conditions(resource: str) -> None:
    name, subresource = resource.split("/")
    for verb in ("get", "create"):
        assert request(verb, resource=name, subresource=subresource).supports_conditions


@pytest.mark.parametrize("field", ["group", "version", "resource"])
def test_r066_wildcards_support_no_conditions(field: str) -> None:
    assert not request("create", **{field: "*"}).supports_conditions


def test_r067_a_secondary_check_folds_conditions() -> None:
    folded = request("create", conditions_mode=ConditionsMode.NONE)
    assert CONDITIONAL.authorize(folded).verdict == "NoOpinion"
    assert DENIES.authorize(folded).verdict == "Deny"


@pytest.mark.parametrize(("x", "allowed"), [(True, True), (False, False), (None, False)])
def test_r070_admission_lets_through_only_allow(x: object, allowed: bool) -> None:
    outcome = judge(CONDITIONAL, request("create"), ConditionData(object={"x": x}))
    assert (outcome.is_allowed, outcome.phase) == (allowed, "admission")


def test_r072_paths_support_no_conditions() -> None:
    assert not Attributes(verb="create", path="/x", is_resource_request=False).supports_conditions


def test_r105_get_of_a_log_supports_no_conditions() -> None:
    assert not request("get", subresource="log").supports_conditions


# update to create -----------------------------------------------------------------------------------------------------

UPDATE = policy("update", "Allow", 'request.verb in ["update", "patch"] && object.spec.size < 5')
CREATE = policy(
    "create", "Allow", 'request.verb == "create" && operation == "CREATE" && oldObject == null && object.spec.size > 2'
)


@pytest.mark.parametrize(("size", "allowed"), [(1, False), (3, True), (7, False)])
@pytest.mark.parametrize("verb", ["update", "patch"])
def test_r100_an_update_that_creates_needs_both(verb: str, size: int, allowed: bool) -> None:
    both = chain(UPDATE, CREATE)
    assert judge_write(both, request(verb, name="n"), object={"spec": {"size": size}}).is_allowed is allowed
    stored = {"spec": {"size": 0}}
    plain = judge_write(both, request(verb, name="n"), object={"spec": {"size": size}}, old_object=stored)
    assert plain.is_allowed is (size < 5)


def test_r100_without_create_rights_an_update_cannot_create() -> None:
    outcome = judge_write(chain(UPDATE), request("update", name="n"), object={"spec": {"size": 1}})
    assert (outcome.is_allowed, outcome.phase) == (False, "authorization")


def test_r101_a_patch_is_an_update_to_admission() -> None:
    mine = chain(policy("p", "Allow", 'request.verb == "patch" && operation == "UPDATE"'))
    assert judge_write(mine, request("patch", name="n"), object={}, old_object={}).is_allowed


def test_r102_every_object_of_a_collection_is_a_delete_and_the_first_refused_ends_it() -> None:
    mine = chain(
        policy("p", "Allow", 'operation == "DELETE" && object == null && oldObject.owner == request.userInfo.username')
    )
    delete = request("deletecollection")
    assert judge_delete_collection(mine, delete, [{"owner": "alice"}, {"owner": "alice"}]).is_allowed
    refused = judge_delete_collection(mine, delete, [{"owner": "alice"}, {"owner": "bob"}, {"owner": "eve"}])
    assert refused.data is not None
    assert (refused.is_allowed, refused.data.old_object) == (False, {"owner": "bob"})


def test_r103_a_connect_is_asked_about_twice_with_the_connect_options_as_object() -> None:
    gets = policy("get", "Allow", 'request.verb == "get" && operation == "CONNECT" && object.command == ["ls"]')
    creates = policy(
        "create", "Allow", 'request.verb == "create" && oldObject == null && options == null && object.tty == false'
    )
    attributes = request("get", subresource="exec", name="p")
    assert judge_connect(chain(gets, creates), attributes, {"command": ["ls"], "tty": False}).is_allowed
    assert not judge_connect(chain(gets, creates), attributes, {"command": ["ls"], "tty": True}).is_allowed
    assert not judge_connect(chain(gets, creates), attributes, {"command": ["sh"], "tty": False}).is_allowed
    assert not judge_connect(chain(gets), attributes, {"command": ["ls"], "tty": False}).is_allowed


def test_r104_a_node_proxy_limited_by_path() -> None:
    mine = chain(policy("p", "Allow", 'request.resource == "nodes" && object.path.startsWith("/pods/")'))
    attributes = Attributes(user="agent", verb="create", version="v1", resource="nodes", subresource="proxy", name="n")
    assert judge_connect(mine, attributes, {"path": "/pods/x"}).is_allowed
    assert not judge_connect(mine, attributes, {"path": "/exec"}).is_allowed


def test_r116_objects_of_two_versions_are_refused() -> None:
    mine = chain(policy("p", "Allow", "object.spec == oldObject.spec"))
    update = request("update", name="n")
    same = {"apiVersion": "x/v1", "spec": 1}
    assert judge_write(mine, update, object=same, old_object=same).is_allowed
    mixed = judge_write(mine, update, object=same, old_object={"apiVersion": "x/v2", "spec": 1})
    assert (mixed.is_allowed, bool(mixed.decision.error)) == (False, True)


# DRA ------------------------------------------------------------------------------------------------------------------

DRA = policy(
    "admin-access",
    "Deny",
    """request.apiGroup == "resource.k8s.io" && request.resource in ["resourceclaims", "resourceclaimtemplates"] &&
    request.verb in ["create", "update", "patch"] &&
    object.spec.devices.requests.exists(r, has(r.adminAccess) && r.adminAccess) &&
    namespaceObject.?metadata.?labels[?"resource.kubernetes.io/admin-access"].orValue("") != "true" """,
    "dra",
)


@pytest.mark.parametrize(
    ("admin", "label", "allowed"),
    [(True, "true", True), (True, "false", False), (True, None, False), (False, None, True)],
)
def test_r112_dra_admin_access_needs_the_label_of_the_namespace(admin: bool, label: str | None, allowed: bool) -> None:
    claims = policy("claims", "Allow", 'request.resource == "resourceclaims"')
    both = chain(configuration({"type": "CEL", "name": "dra"}, {"type": "CEL", "name": "policies"}), DRA, claims)
    create = Attributes(
        user="u", verb="create", group="resource.k8s.io", version="v1", resource="resourceclaims", namespace="n"
    )
    assert both.authorize(create).verdict == "Conditional"
    assert both.authorize(replace(create, verb="delete")).verdict == "Allow"
    labels = {"labels": {"resource.kubernetes.io/admin-access": label}} if label else {}
    outcome = judge_write(
        both,
        create,
        object={"spec": {"devices": {"requests": [{"adminAccess": admin}]}}},
        namespace_object={"metadata": labels},
    )
    assert outcome.is_allowed is allowed


# impersonation --------------------------------------------------------------------------------------------------------

LUCAS = policy(
    "lucas",
    "Allow",
    """request.userInfo.username == "lucas" && request.verb == "impersonate" && request.resource == "nodes" &&
    request.apiGroup == "authentication.k8s.io" && request.name == "foo" && impersonatedRequest.apiGroup == "" &&
    impersonatedRequest.resource == "pods" && impersonatedRequest.verb == "get" """,
)
AS_NODE = Attributes(
    user="lucas", verb="impersonate", group="authentication.k8s.io", version="v1", resource="nodes", name="foo"
)


def test_r106_lucas_may_impersonate_a_node_only_to_get_pods() -> None:
    first = chain(LUCAS).authorize(AS_NODE)
    text = condition_sets(first)[0].conditions[0].text
    needs = {"apiGroup": "", "resource": "pods", "verb": "get"}
    assert text == " && ".join(f'impersonatedRequest.{key} == "{value}"' for key, value in needs.items())
    gets = {"apiGroup": "", "resource": "pods", "verb": "get"}
    assert impersonate(chain(LUCAS), AS_NODE, gets).verdict == "Allow"
    assert impersonate(chain(LUCAS), AS_NODE, {**gets, "verb": "delete"}).verdict == "NoOpinion"
    assert impersonate(chain(LUCAS), replace(AS_NODE, name="bar"), gets).verdict == "NoOpinion"


def test_r107_an_agent_may_impersonate_only_with_a_group_and_others_differ_by_user() -> None:
    agent = policy(
        "agent",
        "Allow",
        """request.userInfo.username == "agent" && request.verb == "impersonate" && request.resource == "users" &&
        (request.name == "lucas" ? "agent" in impersonatedRequest.userInfo.groups :
         request.name == "alice" ? impersonatedRequest.verb in ["get", "list", "watch"] : request.name == "bob")""",
    )

    def verdict(name: str, **made: Any) -> str:
        attributes = Attributes(user="agent", verb="impersonate", version="v1", resource="users", name=name)
        return str(impersonate(chain(agent), attributes, made).verdict)

    assert verdict("lucas", userInfo={"groups": ["agent"]}) == "Allow"
    assert verdict("lucas", userInfo={"groups": []}) == "NoOpinion"
    assert verdict("alice", verb="get") == "Allow"
    assert verdict("alice", verb="create") == "NoOpinion"
    assert verdict("bob", verb="create") == "Allow"


LABELLED = policy(
    "labelled",
    "Allow",
    """request.userInfo.username == "lucas" && request.verb == "impersonate" && request.resource == "users" &&
    impersonatedRequest.verb in ["create", "update"] && object.metadata.labels["lucas-impersonated"] == "true" """,
)
AS_USER = Attributes(user="lucas", verb="impersonate", version="v1", resource="users", name="jane")


def test_r108_three_stages_leave_a_condition_on_the_object() -> None:
    second = impersonate(chain(LABELLED), AS_USER, {"verb": "create"})
    assert second.verdict == "Conditional"
    assert condition_sets(second)[0].conditions[0].text == 'object.metadata.labels["lucas-impersonated"] == "true"'
    assert impersonate(chain(LABELLED), AS_USER, {"verb": "delete"}).verdict == "NoOpinion"


@pytest.mark.parametrize(
    ("labels", "verdict"),
    [({"lucas-impersonated": "true"}, "Allow"), ({"lucas-impersonated": "no"}, "Deny"), ({}, "Deny")],
)
def test_r109_the_rest_travels_with_the_user_and_can_only_deny(labels: dict[str, str], verdict: str) -> None:
    values = carried(impersonate(chain(LABELLED), AS_USER, {"verb": "create"}))
    jane = Attributes(user="jane", verb="create", version="v1", resource="pods", extra=((EXTRA_KEY, values),))
    there = Chain([CarriedConditions(), Fake("rbac", "Allow")])
    first = there.authorize(jane)
    assert first.verdict == "Conditional"
    _, opinion = first.opinions[0]
    assert isinstance(opinion, ConditionalDecision)
    assert not opinion.can_become_allowed
    assert first.evaluate(ConditionData(object={"metadata": {"labels": labels}})).verdict == verdict


@pytest.mark.parametrize(
    "value", ["", "{}", "[]", '{"conditions":[{"id":"a","effect":"Allow","condition":"true"}]}', "\x00"]
)
def test_r109_conditions_that_cannot_be_read_deny(value: str) -> None:
    jane = Attributes(user="jane", verb="create", resource="pods", extra=((EXTRA_KEY, (value,)),))
    assert CarriedConditions().authorize(jane).verdict == "Deny"
