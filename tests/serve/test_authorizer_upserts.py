"""An update or patch that creates must meet the conditions of both, also where admission sees only a create."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.labs.authorizer_server import CLAIMS, Clock, Served, access, admission, claim
from tierwall.api.algebra.request import Attributes
from tierwall.serve.authorizer.upsert_index import UpsertIndex

CREATE = ("create", "Allow", f'{CLAIMS} && request.verb == "create" && object.spec.storageClassName == "dev"')
UPDATE = ("update", "Allow", f'{CLAIMS} && request.verb in ["update", "patch"] && object.spec.size == 1')
NAMED = {"name": "c"}


def spec(storage_class: str, size: int) -> dict[str, Any]:
    return claim() | {"spec": {"storageClassName": storage_class, "size": size}}


def is_allowed(served: Served, review: dict[str, Any]) -> bool:
    return bool(served.post("/authorize", review).json["status"]["allowed"])


def is_admitted(served: Served, object_: dict[str, Any], **more: Any) -> bool:
    return bool(served.post("/admit", admission(object=object_, **more)).json["response"]["allowed"])


def upsert(served: Served, object_: dict[str, Any]) -> bool:
    """Do what an API server does for an update of an object that does not exist."""
    return (
        is_allowed(served, access(verb="update", attributes=NAMED))
        and is_allowed(served, access(attributes=NAMED))
        and is_admitted(served, object_)
    )


def test_both_conditions_must_hold(tmp_path: Path) -> None:
    served = Served(tmp_path, [CREATE, UPDATE], bridged=True)
    for _ in range(2):
        assert upsert(served, spec("dev", 1))
        assert not upsert(served, spec("dev", 2))
        assert not upsert(served, spec("prod", 1))


def test_a_plain_create_needs_only_its_own_conditions(tmp_path: Path) -> None:
    served = Served(tmp_path, [CREATE, UPDATE], bridged=True)
    assert is_allowed(served, access())
    assert is_admitted(served, spec("dev", 2))
    assert not upsert(served, spec("dev", 2))
    assert is_admitted(served, spec("dev", 2) | {"metadata": {"name": "d"}}, name="d"), "another object"
    other = admission("bob", object=spec("dev", 2))
    assert served.post("/admit", other).json["response"]["allowed"] is True, "another user"


@pytest.mark.parametrize("create", ["Allow", "NoOpinion"])
def test_conditions_of_the_update_hold_where_the_create_has_none(tmp_path: Path, create: str) -> None:
    free = [("create", "Allow", f'{CLAIMS} && request.verb == "create"')] if create == "Allow" else []
    served = Served(
        tmp_path, [*free, UPDATE, ("guard", "Deny", f'{CLAIMS} && request.verb == "patch" && object.bad')], bridged=True
    )
    is_allowed(served, access(attributes=NAMED))
    good = spec("dev", 1) | {"bad": False}
    assert is_admitted(served, good)
    assert not is_admitted(served, spec("dev", 2) | {"bad": False})
    assert not is_admitted(served, good | {"bad": True})


def test_equal_conditions_need_no_memory(tmp_path: Path) -> None:
    both = ("both", "Allow", f'{CLAIMS} && request.verb in ["create", "update", "patch"] && object.ok')
    served = Served(tmp_path, [both], bridged=True, settle=1)
    served.clock.now += 2
    assert is_allowed(served, access(attributes=NAMED))


def test_with_replicas_such_a_create_is_denied(tmp_path: Path) -> None:
    served = Served(tmp_path, [CREATE, UPDATE], bridged=True, settle=1)
    served.clock.now += 2
    status = served.post("/authorize", access(attributes=NAMED)).json["status"]
    assert status["denied"] is True
    assert "update and patch" in status["reason"]
    assert is_allowed(served, access())


def test_such_a_create_is_denied_as_soon_as_canaries_show_replicas(tmp_path: Path) -> None:
    served, replica = (Served(tmp_path, [CREATE, UPDATE], bridged=True) for _ in range(2))
    assert upsert(served, spec("dev", 1))
    canary, _ = replica.reviews.canaries.canary("default")
    maps = {"group": "", "version": "v1", "resource": "configmaps"}
    assert not is_admitted(served, canary, resource=maps, name=canary["metadata"]["name"])
    assert not upsert(served, spec("dev", 1))
    assert is_allowed(served, access()), "a create in a collection needs no memory"


def created(user: str, name: str) -> Attributes:
    return Attributes(user=user, resource="pods", namespace="n", name=name)


def test_an_object_is_remembered_for_a_while() -> None:
    clock = Clock()
    index = UpsertIndex(100, clock)
    assert index.remember(created("u", "a"))
    clock.now += 50
    assert index.remember(created("u", "a")), "for longer"
    clock.now += 99
    assert index.knows("u", "", "pods", "n", "a")
    assert not index.knows("u", "", "pods", "other", "a")
    clock.now += 1
    assert not index.knows("u", "", "pods", "n", "a")


def test_who_makes_up_many_names_crowds_out_nobody() -> None:
    clock = Clock()
    index = UpsertIndex(100, clock, limit=4)
    assert index.remember(created("victim", "a"))
    for number in range(50):
        assert index.remember(created("flood", str(number)))
        assert index.remember(created("victim", "a"))
        assert index.knows("flood", "", "pods", "n", str(number))
    assert index.remember(created("victim", "b"))
    for user, name, is_known in (("victim", "a", True), ("victim", "b", True), ("victim", "c", False)):
        assert index.knows(user, "", "pods", "n", name) is is_known
    assert index.knows("flood", "", "pods", "n", "any"), "whoever makes up names is judged more strictly"
    clock.now += 100
    assert not index.knows("flood", "", "pods", "n", "any")
    assert index.remember(created("flood", "x"))
    assert not index.knows("flood", "", "pods", "n", "any"), "forgiven"


def test_no_object_is_forgotten_early_however_many_users_there_are() -> None:
    clock = Clock()
    index = UpsertIndex(100, clock, limit=4)
    remembered = [user for user in "abcdef" if index.remember(created(user, "x"))]
    assert remembered == list("abcd")
    assert all(index.knows(user, "", "pods", "n", "x") for user in remembered)
    assert index.remember(created("a", "x")), "known already"
    clock.now += 100
    assert index.remember(created("e", "x")), "a place became free"


def test_a_namespace_is_found_however_it_is_asked_about() -> None:
    index = UpsertIndex(100)
    index.remember(Attributes(user="u", resource="namespaces", name="n"))
    assert index.knows("u", "", "namespaces", "n", "n")
