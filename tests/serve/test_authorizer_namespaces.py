"""`namespaceObject` through the bridge: the namespace comes from the followed objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.labs.authorizer_server import Served, access, admission, conditions, series
from tests.labs.fake_api_server import FakeApiServer, FakeKind
from tests.labs.waiting import PATIENCE_S
from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.reflector import Timing
from tierwall.serve.authorizer.namespace_reflector import NamespaceReflector

CLAIMS = {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"}
LABEL = "resource.kubernetes.io/admin-access"
# KEP-5681's example: AdminAccess needs the label of the namespace.
ADMIN_ACCESS = (
    "admin-access",
    "Deny",
    'request.apiGroup == "resource.k8s.io" && request.resource == "resourceclaims" && '
    "object.spec.devices.requests.exists(r, has(r.adminAccess) && r.adminAccess) && "
    f'!(namespaceObject.metadata.?labels[?"{LABEL}"].orValue("") == "true")',
)
CLAIMS_FOR_ALICE = ("claims", "Allow", 'request.resource == "resourceclaims" && request.userInfo.username == "alice"')


def namespace(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, **({"labels": labels} if labels else {})},
    }


def claim(admin: bool) -> dict[str, Any]:
    metadata = {"name": "c", "namespace": "dev"}
    spec = {"devices": {"requests": [{"name": "r", "adminAccess": admin}]}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def is_created(served: Served, admin: bool) -> bool:
    """Whether a claim passes both phases."""
    attributes = {"group": "resource.k8s.io", "resource": "resourceclaims"}
    if not served.post("/authorize", access(attributes=attributes)).json["status"]["allowed"]:
        return False
    review = admission(resource=CLAIMS, requestResource=CLAIMS, object=claim(admin))
    return bool(served.post("/admit", review).json["response"]["allowed"])


@pytest.mark.parametrize(
    ("labels", "may_be_admin"), [({LABEL: "true"}, True), ({LABEL: "false"}, False), ({}, False), (None, False)]
)
def test_admin_access_needs_the_label_of_the_namespace(
    tmp_path: Path, labels: dict[str, str] | None, may_be_admin: bool
) -> None:
    served = Served(tmp_path, (), bridged=True)
    served.write((ADMIN_ACCESS, CLAIMS_FOR_ALICE), namespace("dev", labels), namespace("other", {LABEL: "true"}))
    assert served.reload()
    assert is_created(served, admin=True) is may_be_admin
    assert is_created(served, admin=False)


def test_a_changed_label_counts_at_once_and_supersedes_nothing(tmp_path: Path) -> None:
    served = Served(tmp_path, (), bridged=True, settle=5)
    served.write((ADMIN_ACCESS, CLAIMS_FOR_ALICE), namespace("dev"))
    assert served.reload()
    served.clock.now += 5
    superseded = len(served.follower.retained)
    for label, is_allowed in (("true", True), ("false", False)):
        served.write((ADMIN_ACCESS, CLAIMS_FOR_ALICE), namespace("dev", {LABEL: label}))
        assert served.reload()
        assert is_created(served, admin=True) is is_allowed
    assert len(served.follower.retained) == superseded


def test_a_namespace_that_is_not_known_fails_what_reads_it(tmp_path: Path) -> None:
    served = Served(tmp_path, (), bridged=True)
    served.write((("null", "Allow", "namespaceObject == null && object.spec.devices != null"),))
    assert served.reload()
    assert not is_created(served, admin=False), "it exists, so it is not null"
    served.write((ADMIN_ACCESS, CLAIMS_FOR_ALICE))
    assert served.reload()
    assert not is_created(served, admin=True)
    assert is_created(served, admin=False), "the namespace does not matter there"


@pytest.mark.parametrize("resource", ["nodes", "namespaces"])
def test_what_is_in_no_namespace_has_null(tmp_path: Path, resource: str) -> None:
    served = Served(tmp_path, (), bridged=True)
    served.write((("null", "Allow", "namespaceObject == null && object.ok"),), namespace("c"))
    assert served.reload()
    group = {"group": "", "version": "v1", "resource": resource}
    for operation in ("CREATE", "UPDATE"):
        # To admission, a Namespace is in itself.
        inside = "c" if resource == "namespaces" else ""
        about: dict[str, Any] = {"resource": group, "requestResource": group, "namespace": inside}
        review = admission("alice", operation, **about, object={"ok": True}, oldObject={"ok": True})
        assert served.post("/admit", review).json["response"]["allowed"] is True
        review["request"]["object"] = {"ok": False}
        assert served.post("/admit", review).json["response"]["allowed"] is False


def test_the_label_with_the_name_is_there_as_an_api_server_sets_it(tmp_path: Path) -> None:
    served = Served(tmp_path, (), bridged=True)
    label = 'namespaceObject.metadata.labels["kubernetes.io/metadata.name"]'
    text = f'request.resource == "resourceclaims" && {label} == "dev"'
    served.write((("dev", "Allow", text),), namespace("dev"))
    assert served.reload()
    assert is_created(served, admin=True)


def test_a_server_that_knows_conditions_gets_the_namespace_too(tmp_path: Path) -> None:
    served = Served(tmp_path, ())
    served.write((ADMIN_ACCESS, CLAIMS_FOR_ALICE), namespace("dev", {LABEL: "true"}))
    assert served.reload()
    attributes = {"group": "resource.k8s.io", "resource": "resourceclaims"}
    answered = served.post("/authorize", access(attributes=attributes, **series())).json["status"]
    request = admission(resource=CLAIMS, requestResource=CLAIMS, object=claim(admin=True))["request"]
    for name, verdict in (("dev", "Allow"), ("prod", "Deny")):
        review = conditions(decision=answered["conditionalDecision"], admissionRequest={**request, "namespace": name})
        assert served.post("/conditions", review).json["response"]["decision"]["type"] == verdict


NAMESPACES = FakeKind("", "v1", "Namespace", "namespaces", namespaced=False)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def test_the_namespaces_of_the_api_server_count_before_those_in_the_folder(tmp_path: Path) -> None:
    served = Served(tmp_path, (), bridged=True)
    served.write((ADMIN_ACCESS, CLAIMS_FOR_ALICE), namespace("dev", {LABEL: "true"}))
    assert served.reload()

    def may_be_admin() -> bool:
        # Every call has an event loop of its own.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(is_created, served, True).result()

    async def follow() -> None:
        server = FakeApiServer(kinds=(NAMESPACES,))
        server.forbidden.add("namespaces")
        await server.start()
        stop = asyncio.Event()
        timing = Timing(first_wait=0.01, longest_wait=0.02, patience=0.01)
        access = ClusterAccess("", server.url, "default")
        reflector = NamespaceReflector(access, served.follower.live_namespaces, timing)
        served.app.namespace_problem = lambda: reflector.problem
        following = asyncio.create_task(reflector.run(stop))
        try:
            await _until(lambda: "forbidden" in reflector.problem)
            assert may_be_admin(), "those in the folder count until others are known"
            assert "namespaces: not read yet (" in served.app.readiness()["message"]
            assert served.app.readiness()["ready"]
            await server.put("namespaces", {"metadata": {"name": "dev", "labels": {LABEL: "false"}}})
            server.forbidden.clear()
            await _until(lambda: not reflector.problem)
            assert not may_be_admin()
            assert "message" not in served.app.readiness()
            await server.put("namespaces", {"metadata": {"name": "dev", "labels": {LABEL: "true"}}})
            await _until(may_be_admin)
            # Other policies know them, too.
            served.write((ADMIN_ACCESS, CLAIMS_FOR_ALICE))
            assert served.reload()
            assert may_be_admin()
            await server.put("namespaces", {"metadata": {"name": "other"}})
            await server.delete("namespaces", "", "dev")
            await _until(lambda: not may_be_admin())
            await server.stop()
            await _until(lambda: bool(reflector.problem))
            assert "namespaces: not followed (" in served.app.readiness()["message"]
        finally:
            stop.set()
            await following
            await server.stop()

    asyncio.run(follow())
