"""`namespaceObject` through the bridge: the namespace comes from the followed objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.labs.authorizer_server import Served, access, admission, conditions, series

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
