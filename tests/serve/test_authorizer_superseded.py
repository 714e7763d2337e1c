"""Superseded sets of policies: no change waits for them, and whoever changes too often closes only their own namespace
(docs/semantics.md#superseded-conditions-stay-in-force)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.labs.authorizer_server import Clock, Served, access, admission
from tests.worlds.api_fakes import CREATE, policy
from tierwall.api.algebra.request import Attributes
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer.policies import MAX_RETAINED
from tierwall.serve.authorizer.superseded import ChangeScope, SupersededSets, change_scope

CLAIMS = "request.resource == 'persistentvolumeclaims' && request.verb == 'create'"
CONDITIONAL = f"{CLAIMS} && object.spec.storageClassName == 'dev'"


def own(namespace: str, number: int, expression: str = CONDITIONAL) -> dict[str, Any]:
    return {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "AuthorizationPolicy",
        "metadata": {"name": "own", "namespace": namespace},
        "spec": {"effect": "Allow", "expression": expression, "description": f"edit {number}"},
    }


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path, [], bridged=True)


def churn(served: Served, namespace: str, times: int, *others: dict[str, Any]) -> None:
    for number in range(times):
        served.write([], own(namespace, number), *others)
        served.clock.now += 1
        assert served.reload(), "no change waits"


def is_admitted(served: Served, namespace: str, storage_class: str = "dev") -> bool:
    review = admission(namespace=namespace)
    review["request"]["object"]["spec"]["storageClassName"] = storage_class
    return bool(served.post("/admit", review).json["response"]["allowed"])


def is_allowed(served: Served, namespace: str) -> bool:
    review = access(attributes={"namespace": namespace})
    return bool(served.post("/authorize", review).json["status"]["allowed"])


def test_a_revocation_counts_at_once_however_often_others_changed_their_policies(served: Served) -> None:
    churn(served, "a", 3 * MAX_RETAINED, own("b", 0))
    assert is_allowed(served, "b")
    served.write([], own("a", 3 * MAX_RETAINED))
    assert served.reload()
    assert not is_allowed(served, "b")
    assert len(served.follower.retained) == MAX_RETAINED


def test_the_grants_of_a_namespace_are_enforced_however_often_others_change_theirs(served: Served) -> None:
    served.write([], own("b", 0))
    assert served.reload()
    assert is_allowed(served, "b"), "on the condition that admission finds `dev`"
    served.write([])
    assert served.reload()
    churn(served, "a", 3 * MAX_RETAINED)
    assert not is_admitted(served, "b", "prod"), "the API server may have kept the answer"
    assert is_admitted(served, "b", "dev")
    assert is_admitted(served, "c", "prod"), "nothing was granted there"


def test_who_changes_too_often_is_closed_until_the_forgotten_grants_expire(served: Served) -> None:
    churn(served, "a", 2 * MAX_RETAINED)
    served.write([])
    assert served.reload()
    assert not is_admitted(served, "a", "prod")
    assert is_admitted(served, "b", "prod")
    assert served.follower.superseded.forgotten()
    served.clock.now += 331
    assert is_admitted(served, "a", "prod")
    assert not served.follower.superseded.forgotten()


def test_below_the_limit_nothing_is_forgotten(served: Served) -> None:
    churn(served, "a", MAX_RETAINED)
    assert not served.follower.superseded.forgotten()
    assert len(served.follower.retained) == MAX_RETAINED


def snapshot(*resources: Resource) -> Snapshot:
    return Snapshot.of(resources)


def test_the_scope_of_a_change_is_what_the_changed_policies_could_match() -> None:
    def scope(before: list[Resource], after: list[Resource]) -> ChangeScope:
        return change_scope(snapshot(*before), snapshot(*after))

    mine, other = policy("p", "Allow", "object.x == 1", namespace="a"), policy("q", "Allow", "true", namespace="b")
    assert scope([mine, other], [other]).namespaces == {"a"}
    assert scope([], [mine, other]).owners == {"a", "b"}
    assert scope([mine], [policy("p", "Allow", "object.x == 1", namespace="a")]) == ChangeScope(), "the same content"
    wide = scope([policy("p", "Deny", "request.resource == 'pods' && object.x == 1")], [])
    assert wide.covers(CREATE)
    assert not wide.covers(Attributes(user="alice", verb="create", resource="secrets", namespace="dev"))
    assert scope([policy("p", "Deny", "1 +")], []).covers(CREATE), "nobody knows what it could match"
    chain = Resource("apiserver.config.k8s.io", "v1", "AuthorizationConfiguration", "", "", {"authorizers": []})
    assert scope([], [chain]).everything
    role = Resource("rbac.authorization.k8s.io", "v1", "ClusterRole", "", "r", {"rules": []})
    assert scope([role], []) == ChangeScope(), "RBAC sets no conditions"


def test_many_forgotten_scopes_are_joined_and_stay_bounded() -> None:
    clock = Clock()
    sets: SupersededSets[int] = SupersededSets(clock, 4)
    for number in range(100):
        sets.put(number, str(number), ChangeScope(frozenset((f"n{number}",))), 330)
    assert len(sets.retained()) == 4
    assert len(sets.forgotten()) <= 4
    for number in range(96):
        asked = Attributes(user="u", verb="create", resource="pods", namespace=f"n{number}")
        assert any(scope.covers(asked) for scope in sets.forgotten())
    clock.now += 331
    assert (sets.retained(), sets.forgotten()) == ((), ())
