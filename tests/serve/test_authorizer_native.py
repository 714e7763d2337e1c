"""API servers that know conditions enforce ours: in each shape, in unions, with mixed versions, when things break."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.labs.authorizer_server import POLICIES, Served, claim
from tests.labs.native_api_server import (
    ALLOW,
    DENY,
    NO_OPINION,
    SHAPES,
    NativeApiServer,
    NativeAuthorizer,
    NativeWebhook,
    Write,
)
from tests.reference.api_server import judge_write
from tests.serve.test_authorizer_bridge import EXPRESSIONS
from tierwall.api.algebra.request import Attributes
from tierwall.api.wire.review import WireShape

BOTH_KINDS = (
    ("guard", "Deny", 'request.resource == "persistentvolumeclaims" && object.spec.locked == true'),
    ("alice", "Allow", 'request.userInfo.username == "alice" && object.spec.storageClassName == "dev"'),
)


def serving(folder: Path, policies: Any = POLICIES, **more: Any) -> Served:
    folder.mkdir(parents=True, exist_ok=True)
    return Served(folder, policies, **more)


def of_shape(shape: str) -> WireShape:
    return WireShape.KEP if shape == "kep" else WireShape.CONDITIONS_CHAIN


def webhook(folder: Path, shape: str, policies: Any = POLICIES, **more: Any) -> NativeWebhook:
    return NativeWebhook("tierwall.io", serving(folder, policies, shape=of_shape(shape)), shape, **more)


def spec(storage_class: str = "dev", locked: bool = False) -> dict[str, Any]:
    return claim() | {"spec": {"storageClassName": storage_class, "locked": locked}}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("lazy", [True, False])
def test_conditions_are_enforced_on_the_object(tmp_path: Path, shape: str, lazy: bool) -> None:
    ours = webhook(tmp_path, shape)
    server = NativeApiServer(ours, NativeAuthorizer("rbac", NO_OPINION), lazy=lazy)
    assert server.send(Write(object=claim())).code == 200
    refused = server.send(Write(object=claim("prod")))
    assert refused.code == 403
    assert "storageClassName" in refused.reason, "the user is told what would be allowed"
    assert ours.evaluated == 2
    assert server.send(Write("bob", object=claim("prod"))).code == 200
    assert server.send(Write("eve", object=claim())).code == 403
    assert server.send(Write("nobody", object=claim())).code == 403
    assert ours.evaluated == 2, "what does not depend on the object is settled by the filter"


def test_requests_without_admission_are_folded(tmp_path: Path, shape: str) -> None:
    reads = [("reads", "Allow", "object.ok"), ("guard", "Deny", 'request.verb == "watch" && object.bad')]
    server = NativeApiServer(webhook(tmp_path, shape, reads), NativeAuthorizer("rbac", ALLOW))
    assert server.send(Write(verb="list")).code == 200, "left to the next authorizer"
    assert server.send(Write(verb="watch")).code == 403, "it could be denied"
    assert server.send(Write(version="*")).code == 200


@pytest.mark.parametrize("lazy", [True, False])
def test_a_union_goes_on_where_conditions_do_not_hold(tmp_path: Path, shape: str, lazy: bool) -> None:
    ours, rbac = webhook(tmp_path, shape), NativeAuthorizer("rbac", ALLOW)
    server = NativeApiServer(ours, rbac, lazy=lazy)
    assert server.send(Write(object=claim())).code == 200
    assert rbac.asked == (0 if lazy else 1)
    assert server.send(Write(object=claim("prod"))).code == 200, "the role allows it"
    assert rbac.asked == (1 if lazy else 2)
    guarded = NativeApiServer(webhook(tmp_path / "g", shape, BOTH_KINDS), rbac, lazy=lazy)
    assert guarded.send(Write(object=spec("prod"))).code == 200
    assert guarded.send(Write(object=spec("dev", locked=True))).code == 403, "a Deny is final"
    before = NativeApiServer(NativeAuthorizer("node", DENY), ours)
    assert before.send(Write(object=claim())).code == 403


def test_two_of_our_kind_in_one_union(tmp_path: Path, shape: str) -> None:
    guard = NativeWebhook("guard", serving(tmp_path / "a", BOTH_KINDS[:1], shape=of_shape(shape)), shape)
    grants = NativeWebhook("grants", serving(tmp_path / "b", BOTH_KINDS[1:], shape=of_shape(shape)), shape)
    server = NativeApiServer(guard, grants)
    assert server.send(Write(object=spec())).code == 200
    assert server.send(Write(object=spec("prod"))).code == 403
    assert server.send(Write(object=spec(locked=True))).code == 403
    assert (guard.evaluated, grants.evaluated) == (3, 2), "a Deny ends it"
    alone = NativeApiServer(guard, NativeAuthorizer("rbac", NO_OPINION))
    guard.evaluated = 0
    assert alone.send(Write(object=spec())).code == 403
    assert guard.evaluated == 0, "it cannot become allowed, so no object is read"


def test_deletes_and_collections_are_judged_object_by_object(tmp_path: Path, shape: str) -> None:
    policies = [("own", "Allow", 'request.verb in ["delete", "deletecollection"] && oldObject.spec.owner == "alice"')]
    ours = webhook(tmp_path, shape, policies)
    server = NativeApiServer(ours)
    hers, his = (claim(name=name) | {"spec": {"owner": name}} for name in ("alice", "bob"))
    assert server.send(Write(verb="delete", name="alice", old_object=hers)).code == 200
    assert server.send(Write(verb="delete", name="bob", old_object=his)).code == 403
    assert server.send(Write(verb="deletecollection"), hers, hers).code == 200
    ours.evaluated = 0
    assert server.send(Write(verb="deletecollection"), hers, his, hers).code == 403
    assert ours.evaluated == 2, "the first refusal ends it"


def test_an_update_that_creates_needs_both_grants(tmp_path: Path, shape: str) -> None:
    update = ("update", "Allow", 'request.verb in ["update", "patch"] && object.spec.storageClassName == "dev"')
    create = ("create", "Allow", 'request.verb == "create" && object.spec.locked == false')
    for number, (policies, allowed) in enumerate((([update], False), ([create], False), ([update, create], True))):
        server = NativeApiServer(webhook(tmp_path / str(number), shape, policies))
        for verb in ("update", "patch"):
            write = Write(verb=verb, name="c", object=spec())
            assert (server.send(write).code == 200) is allowed, (verb, policies)
    assert server.send(Write(verb="update", name="c", object=spec("prod"))).code == 403
    assert server.send(Write(verb="update", name="c", object=spec(locked=True))).code == 403
    assert server.send(Write(verb="update", name="c", object=spec(locked=True), old_object=spec())).code == 200


# versions


def test_an_old_server_never_sees_conditions(tmp_path: Path) -> None:
    server = NativeApiServer(webhook(tmp_path, "none"))
    assert server.send(Write(object=claim())).code == 403
    assert server.send(Write("bob", object=claim())).code == 200


def test_servers_of_all_versions_share_one_authorizer(tmp_path: Path) -> None:
    """With the bridge on, new servers still get conditions, and a server that wants none is not granted any."""
    served = serving(tmp_path, bridged=True)
    for shape in ("seed", "series"):
        server = NativeApiServer(NativeWebhook("t", served, shape))
        assert server.send(Write(object=claim())).code == 200
        assert server.send(Write(object=claim("prod"))).code == 403
        assert server.send(Write(verb="list")).code == 403
    concrete = NativeWebhook("t", served, "series", handled=["Allow", "Deny", "NoOpinion"])
    assert NativeApiServer(concrete).send(Write(object=claim())).code == 403


def test_a_server_that_handles_no_unions_gets_the_failing_answer(tmp_path: Path) -> None:
    chain = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [{"type": "CEL", "name": "policies"}, {"type": "CEL", "name": "more"}],
    }
    served = serving(tmp_path)
    more = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "ClusterAuthorizationPolicy",
        "metadata": {"name": "more"},
        "spec": {"authorizer": "more", "effect": "Allow", "expression": "object.other"},
    }
    served.write(POLICIES, chain, more)
    assert served.reload()
    types = ["Allow", "Deny", "NoOpinion", "ConditionsMap"]
    server = NativeApiServer(NativeWebhook("t", served, "series", handled=types), NativeAuthorizer("rbac", ALLOW))
    assert server.send(Write(object=claim("prod"))).code == 200, "ours has no opinion"
    whole = NativeApiServer(NativeWebhook("t", served, "series"))
    assert whole.send(Write(object=claim())).code == 200
    assert whole.send(Write(object=claim("prod") | {"other": True})).code == 200
    assert whole.send(Write(object=claim("prod") | {"other": False})).code == 403


@pytest.mark.parametrize("options", [{"one_address": True}, {"mode": "Optimized"}])
def test_one_address_and_compact_conditions_decide_alike(tmp_path: Path, shape: str, options: dict[str, Any]) -> None:
    server = NativeApiServer(webhook(tmp_path, shape, **options))
    assert server.send(Write(object=claim())).code == 200
    assert server.send(Write(object=claim("prod"))).code == 403


def test_any_replica_evaluates_what_another_returned(tmp_path: Path, shape: str) -> None:
    first = serving(tmp_path / "a", shape=of_shape(shape))
    replica = serving(tmp_path / "b", [], shape=of_shape(shape))
    server = NativeApiServer(NativeWebhook("t", first, shape, evaluator=replica))
    assert server.send(Write(object=claim())).code == 200, "the policies of the first phase count"
    assert server.send(Write(object=claim("prod"))).code == 403
    stranger = serving(tmp_path / "c", key=b"another key, of enough bytes", shape=of_shape(shape))
    assert NativeApiServer(NativeWebhook("t", first, shape, evaluator=stranger)).send(Write(object=claim())).code != 200


# failures


@pytest.mark.parametrize("status", [404, 500, 503])
def test_a_second_phase_that_fails_fails_closed(tmp_path: Path, shape: str, status: int) -> None:
    """A set that could deny denies. One that could only allow leaves the request to the next authorizer."""
    rbac = NativeAuthorizer("rbac", ALLOW)
    grants = webhook(tmp_path / "a", shape, BOTH_KINDS[1:], fails=status)
    assert NativeApiServer(grants, rbac).send(Write(object=spec())).code == 200
    assert NativeApiServer(grants).send(Write(object=spec())).code == 500
    guard = webhook(tmp_path / "b", shape, BOTH_KINDS[:1], fails=status)
    assert NativeApiServer(guard, rbac).send(Write(object=spec())).code == 500
    assert NativeApiServer(grants).send(Write("bob", object=spec())).code == 403, "without conditions it is as ever"


@pytest.mark.parametrize(("mode", "code"), [("Deny", 403), ("NoOpinion", 200)])
def test_both_failure_modes_of_a_deny_that_fails(tmp_path: Path, shape: str, mode: str, code: int) -> None:
    chain = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [{"type": "CEL", "name": "policies", "failureMode": mode}],
    }
    served = serving(tmp_path, shape=of_shape(shape))
    served.write(BOTH_KINDS, chain)
    assert served.reload()
    server = NativeApiServer(NativeWebhook("t", served, shape), NativeAuthorizer("rbac", ALLOW))
    assert server.send(Write(object=claim() | {"spec": {"storageClassName": "prod"}})).code == code
    assert server.send(Write(object=spec("prod"))).code == 200
    assert server.send(Write(object=spec("prod", locked=True))).code == 403


def _renamed(name: str) -> Callable[[Any], Any]:
    def tamper(conditions: Any) -> Any:
        if isinstance(conditions, list):
            return [{**entry, "authorizerName": name} for entry in conditions]
        # A map that stands alone has no name.
        return {"type": "Union", "union": [{"authorizerName": name, "decision": conditions}]}

    return tamper


def _texts(conditions: Any) -> list[dict[str, Any]]:
    """Return every condition of an answer, in any shape."""
    if isinstance(conditions, dict):
        if "id" in conditions:
            return [conditions]
        conditions = list(conditions.values())
    return [condition for value in conditions if isinstance(value, dict | list) for condition in _texts(value)]


def _rewritten(**fields: str) -> Callable[[Any], Any]:
    def tamper(conditions: Any) -> Any:
        for condition in _texts(conditions):
            condition.update(fields)
        return conditions

    return tamper


def _as_allow(conditions: Any) -> Any:
    if isinstance(conditions, list):
        return [{"authorizerName": "policies", "allowed": True}]
    return {"type": "Union", "union": [{"authorizerName": "policies", "decision": {"type": "Allow", "allow": {}}}]}


def _with_allow_behind(conditions: Any) -> Any:
    if isinstance(conditions, list):
        return [*conditions, {"authorizerName": "rbac", "allowed": True}]
    members = conditions.get("union") or [{"authorizerName": "policies", "decision": conditions}]
    last = {"authorizerName": "rbac", "decision": {"type": "Allow", "allow": {}}}
    return {"type": "Union", "union": [*members, last]}


def _without_denies(conditions: Any) -> Any:
    if isinstance(conditions, list):
        for entry in conditions:
            entry["conditions"] = [condition for condition in entry["conditions"] if condition["effect"] != DENY]
    else:
        conditions["conditionsMap"].pop("denyConditions")
    return conditions


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "text": _rewritten(condition="true"),
    "id": _rewritten(id="other"),
    "type": _rewritten(type="example.com/other"),
    "without the Denies": _without_denies,
    "empty": lambda conditions: [] if isinstance(conditions, list) else {"type": "ConditionsMap", "conditionsMap": {}},
    "allowed": _as_allow,
    "allowed behind": _with_allow_behind,
    "another name": _renamed("other"),
    "no name": _renamed(""),
    "nothing": lambda conditions: None,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_server_that_sends_something_else_back_is_refused(tmp_path: Path, shape: str, mistake: str) -> None:
    ours = webhook(tmp_path, shape, BOTH_KINDS)
    assert NativeApiServer(ours).send(Write(object=spec())).code == 200
    ours.tamper = MISTAKES[mistake]
    for object_ in (spec(), spec("prod"), spec(locked=True)):
        assert NativeApiServer(ours).send(Write(object=object_)).code in (403, 500)


def test_conditions_of_one_request_are_no_use_for_another(tmp_path: Path, shape: str) -> None:
    policies = [
        ("alice", "Allow", 'request.userInfo.username == "alice" && object.ok == true'),
        ("mallory", "Allow", 'request.userInfo.username == "mallory" && object.ok == false'),
    ]
    ours = webhook(tmp_path, shape, policies)
    hers = ours.authorize(Write()).conditions
    ours.tamper = lambda conditions: hers
    stolen = Write("mallory", object=claim() | {"ok": True})
    if shape == "series":
        assert NativeApiServer(ours).send(stolen).code in (403, 500), "this shape names the user"
    other_kind = Write(
        "mallory",
        resource="secrets",
        object={"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "c", "namespace": "dev"}, "ok": True},
    )
    assert NativeApiServer(ours).send(other_kind).code in (403, 500)


# the whole


VALUES = st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, 2, {"c": True}]))
POLICY = st.tuples(st.sampled_from(("Allow", "Deny", "NoOpinion")), st.sampled_from(EXPRESSIONS))


@settings(max_examples=60)
@given(
    policies=st.lists(POLICY, max_size=4),
    verb=st.sampled_from(("create", "update", "patch", "delete")),
    new=VALUES,
    old=VALUES,
    shape=st.sampled_from(SHAPES),
    lazy=st.booleans(),
)
def test_two_phases_decide_as_one_in_every_shape(
    policies: list[tuple[str, str]], verb: str, new: dict[str, Any], old: dict[str, Any], shape: str, lazy: bool
) -> None:
    named = [(f"p{number}", effect, text) for number, (effect, text) in enumerate(policies)]
    metadata = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "dev"}}
    object_ = {**new, **metadata} if verb != "delete" else None
    old_object = {**old, **metadata} if verb != "create" else None
    name = "" if verb == "create" else "c"
    write = Write(user="u", verb=verb, resource="configmaps", name=name, object=object_, old_object=old_object)
    with tempfile.TemporaryDirectory() as folder:
        ours = webhook(Path(folder), shape, named)
        code = NativeApiServer(ours, lazy=lazy).send(write).code
        attributes = Attributes(user="u", verb=verb, version="v1", resource="configmaps", name=name, namespace="dev")
        outcome = judge_write(ours.served.follower.current.chain, attributes, object=object_, old_object=old_object)
    assert (code == 200) is outcome.is_allowed
