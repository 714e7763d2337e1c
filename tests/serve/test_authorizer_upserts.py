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


def test_an_object_is_remembered_for_a_while_and_never_too_many() -> None:
    clock = Clock()
    index = UpsertIndex(100, clock, limit=2)
    a, b, c = (Attributes(user="u", resource="pods", namespace="n", name=name) for name in "abc")
    assert index.remember(a)
    clock.now += 50
    assert index.remember(b)
    assert not index.remember(c), "full"
    assert index.remember(a), "known already"
    clock.now += 99
    assert index.knows("u", "", "pods", "n", "a")
    assert index.remember(b)
    clock.now += 1
    assert not index.knows("u", "", "pods", "n", "a")
    assert index.remember(c), "a place became free"
    assert not index.knows("u", "", "pods", "other", "c")


def test_a_namespace_is_found_however_it_is_asked_about() -> None:
    index = UpsertIndex(100)
    index.remember(Attributes(user="u", resource="namespaces", name="n"))
    assert index.knows("u", "", "namespaces", "n", "n")
