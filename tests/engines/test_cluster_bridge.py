"""A real kube-apiserver obeys the policies: `tierwall authorizer --bridge` beside it, real kubectl in front of it."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.labs.control_plane import KubectlResult
from tests.labs.kube_cluster import TIERWALL, Cluster
from tests.labs.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]

IS = 'request.apiGroup == "" && request.userInfo.username == '
CLAIMS = f'request.resource == "persistentvolumeclaims" && {IS}"alice"'
BASE = (
    ("alice-reads", "Allow", f'{IS}"alice" && request.verb in ["get", "list", "watch"]'),
    ("alice-creates-maps", "Allow", f'request.resource == "configmaps" && {IS}"alice" && request.verb == "create"'),
    ("alice-creates-claims", "Allow", f'{CLAIMS} && request.verb == "create" && object.spec.storageClassName == "dev"'),
    (
        "alice-changes-claims",
        "Allow",
        f'{CLAIMS} && request.verb in ["update", "patch"] && has(object.metadata.labels) && '
        'object.metadata.labels.owner == "alice" && oldObject.metadata.labels.owner == "alice"',
    ),
    (
        "alice-deletes-claims",
        "Allow",
        f'{CLAIMS} && request.verb in ["delete", "deletecollection"] && has(oldObject.metadata.labels) && '
        'oldObject.metadata.labels.owner == "alice"',
    ),
    ("no-secrets-for-mallory", "Deny", f'request.resource == "secrets" && {IS}"mallory"'),
    (
        "locked-maps",
        "Deny",
        'request.resource == "configmaps" && request.verb in ["update", "patch", "delete", "deletecollection"] && '
        "has(oldObject.metadata.labels) && has(oldObject.metadata.labels.locked)",
    ),
    (
        "alice-lists-in-pods",
        "Allow",
        f'request.resource == "pods" && {IS}"alice" && (request.verb == "create" && request.subresource == "" || '
        'request.subresource == "exec" && object.command == ["ls"])',
    ),
    (
        "alice-makes-namespaces",
        "Allow",
        f'request.resource == "namespaces" && {IS}"alice" && request.verb == "create" && '
        'object.metadata.name.startsWith("alice-")',
    ),
    (
        "alice-asks-about-bob",
        "Allow",
        'request.resource == "subjectaccessreviews" && request.userInfo.username == "alice" && '
        'object.spec.user == "bob"',
    ),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    cluster.policy("base.yaml", *BASE)
    try:
        cluster.start()
        rules = ("--verb=get,list,create,update,patch,delete", "--resource=configmaps,secrets")
        cluster.kubectl("admin", "create", "role", "editor", *rules, expect=True)
        cluster.kubectl("admin", "create", "rolebinding", "bob", "--role=editor", "--user=bob", expect=True)
        cluster.kubectl("admin", "create", "rolebinding", "mallory", "--role=editor", "--user=mallory", expect=True)
        # Tests only read these objects. What they change, they create themselves.
        cluster.kubectl("admin", "create", "configmap", "hers", expect=True)
        assert cluster.apply("admin", "create", claim("not-hers", owner="bob")).is_done
        yield cluster
    finally:
        cluster.stop()


def claim(name: str, storage_class: str = "dev", owner: str | None = "alice") -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "dev"}
    if owner is not None:
        metadata["labels"] = {"owner": owner}
    spec = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def access_review(user: str) -> dict[str, Any]:
    attributes = {"verb": "get", "version": "v1", "resource": "pods", "namespace": "dev"}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }


def test_an_unconditional_allow_lets_a_request_through(cluster: Cluster) -> None:
    cluster.kubectl("alice", "create", "configmap", "made-by-her", expect=True)
    cluster.kubectl("alice", "get", "configmap", "made-by-her", expect=True)


def test_an_unconditional_deny_beats_rbac(cluster: Cluster) -> None:
    said = cluster.kubectl("mallory", "create", "secret", "generic", "s", "--from-literal=a=b")
    assert said.is_forbidden
    assert "no-secrets-for-mallory" in said.text
    cluster.kubectl("bob", "create", "secret", "generic", "s", "--from-literal=a=b", expect=True)


def test_where_no_policy_has_an_opinion_rbac_decides(cluster: Cluster) -> None:
    cluster.kubectl("bob", "create", "configmap", "made-by-him", expect=True)
    assert cluster.kubectl("bob", "get", "pods").is_forbidden


def test_a_conditional_create_is_decided_on_the_object(cluster: Cluster) -> None:
    before = len(cluster.records())
    assert cluster.apply("alice", "create", claim("good")).is_done
    refused = cluster.apply("alice", "create", claim("bad", "prod"))
    assert refused.is_forbidden
    assert "conditions do not hold" in refused.text
    # No data could make it allowed for bob, so he is refused before admission.
    assert cluster.apply("bob", "create", claim("his")).is_forbidden
    records = [record for record in cluster.records()[before:] if record.get("resource") == "persistentvolumeclaims"]
    assert [(record["phase"], record["verdict"]) for record in records if record["user"] == "alice"] == [
        ("authorize", "Conditional"),
        ("admit", "Allow"),
        ("authorize", "Conditional"),
        ("admit", "NoOpinion"),
    ]
    assert [(record["phase"], record["verdict"]) for record in records if record["user"] == "bob"] == [
        ("authorize", "NoOpinion")
    ]
    assert records[1]["policy"] == "ClusterAuthorizationPolicy/alice-creates-claims"


def test_people_are_told_what_would_be_allowed(cluster: Cluster) -> None:
    words = 'object.spec.storageClassName == "dev"'
    refused = cluster.apply("alice", "create", claim("told", "prod"))
    assert f"conditions do not hold: allowed only if {words}" in refused.text
    asked = cluster.kubectl("alice", "auth", "can-i", "create", "pvc")
    assert asked.text.startswith(f"no - conditional: allowed only if {words}"), asked
    # No grant at all reads differently.
    nothing = cluster.kubectl("alice", "auth", "can-i", "delete", "services")
    assert nothing.text.startswith("no"), nothing
    assert "conditional" not in nothing.text
    assert words not in cluster.kubectl("bob", "auth", "can-i", "create", "pvc").text, "it is about alice alone"


def test_the_audit_log_tells_the_final_decision(cluster: Cluster) -> None:
    assert cluster.apply("alice", "create", claim("audited")).is_done
    assert cluster.apply("alice", "create", claim("audited-bad", "prod")).is_forbidden
    prefix = "conditions.tierwall.io/"
    told = [
        {key.removeprefix(prefix): value for key, value in event.items() if key.startswith(prefix)}
        for event in cluster.audited("alice")
        if event["verb"] == "create" and f"{prefix}decision" in event
    ][-2:]
    by = "policies ClusterAuthorizationPolicy/alice-creates-claims"
    conditions = 'allowed if object.spec.storageClassName == "dev"'
    assert told == [
        {"decision": "Allow", "decidedBy": by, "conditions": conditions},
        {"decision": "NoOpinion", "decidedBy": by, "conditions": conditions},
    ]
    logged = [record for record in cluster.records() if record["phase"] == "admit" and record["user"] == "alice"][-2:]
    assert [{key: record[key] for key in told[0]} for record in logged] == told


def test_a_conditional_update_sees_both_objects(cluster: Cluster) -> None:
    assert cluster.apply("admin", "create", claim("hers-to-change")).is_done
    changed = claim("hers-to-change")
    changed["metadata"]["annotations"] = {"note": "x"}
    assert cluster.apply("alice", "replace", changed).is_done
    assert cluster.apply("alice", "replace", claim("hers-to-change", owner="bob")).is_forbidden
    assert cluster.apply("alice", "replace", claim("not-hers")).is_forbidden


def test_a_conditional_patch_is_judged_as_the_update_it_makes(cluster: Cluster) -> None:
    assert cluster.apply("admin", "create", claim("hers-to-patch")).is_done
    patch = ("patch", "pvc", "hers-to-patch", "--type=merge", "-p")
    cluster.kubectl("alice", *patch, '{"metadata":{"annotations":{"note":"y"}}}', expect=True)
    assert cluster.kubectl("alice", *patch, '{"metadata":{"labels":{"owner":"bob"}}}').is_forbidden
    other = cluster.kubectl("alice", "patch", "pvc", "not-hers", "--type=merge", "-p", '{"metadata":{"labels":null}}')
    assert other.is_forbidden


def test_an_update_that_creates_must_meet_the_conditions_of_both(cluster: Cluster) -> None:
    is_hers = 'request.resource == "endpoints" && request.userInfo.username == "alice"'
    cluster.policy(
        "upserts.yaml",
        ("upsert-create", "Allow", f'{is_hers} && request.verb == "create" && "a" in object.metadata.labels'),
        ("upsert-patch", "Allow", f'{is_hers} && request.verb in ["update", "patch"] && "b" in object.metadata.labels'),
    )
    for name, labels, is_done in (
        ("both", {"a": "", "b": ""}, True),
        ("only-create", {"a": ""}, False),
        ("only-patch", {"b": ""}, False),
    ):
        metadata = {"name": name, "namespace": "dev", "labels": labels}
        value = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata}
        command = ("apply", "--server-side", "--validate=false", "-f", "-")
        said = cluster.kubectl("alice", *command, stdin=json.dumps(value))
        assert said.is_done is is_done, said
        assert said.is_done or said.is_forbidden
    plain = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {**metadata, "name": "plain", "labels": {"a": ""}}}
    assert cluster.apply("alice", "create", plain).is_done, "a plain create is not an update"


def test_a_conditional_delete_is_decided_on_the_stored_object(cluster: Cluster) -> None:
    assert cluster.apply("admin", "create", claim("hers-to-delete")).is_done
    assert cluster.kubectl("alice", "delete", "pvc", "not-hers", "--wait=false").is_forbidden
    cluster.kubectl("alice", "delete", "pvc", "hers-to-delete", "--wait=false", expect=True)


def test_a_collection_is_deleted_object_by_object(cluster: Cluster) -> None:
    assert cluster.apply("admin", "create", claim("one-of-hers")).is_done
    path = "/api/v1/namespaces/dev/persistentvolumeclaims"
    refused = cluster.kubectl("alice", "delete", "--raw", path)
    assert refused.is_forbidden
    cluster.kubectl("admin", "get", "pvc", "not-hers", expect=True)
    cluster.kubectl("alice", "delete", "--raw", f"{path}?labelSelector=owner%3Dalice", expect=True)


def test_a_condition_that_can_only_deny_holds_for_what_rbac_allows(cluster: Cluster) -> None:
    cluster.kubectl("admin", "create", "configmap", "locked", expect=True)
    cluster.kubectl("admin", "create", "configmap", "open", expect=True)
    cluster.kubectl("admin", "label", "configmap", "locked", "locked=yes", expect=True)
    refused = cluster.kubectl("bob", "delete", "configmap", "locked")
    assert refused.is_forbidden
    assert "locked-maps" in refused.text
    cluster.kubectl("bob", "delete", "configmap", "open", expect=True)


def test_a_connect_request_is_decided_on_its_options(cluster: Cluster) -> None:
    cluster.kubectl("admin", "run", "box", "--image=none", expect=True)
    refused = cluster.kubectl("alice", "exec", "box", "--", "rm")
    assert refused.is_forbidden
    # It passed admission, but there is no node to run it on.
    passed = cluster.kubectl("alice", "exec", "box", "--", "ls")
    assert "does not have a host assigned" in passed.text


def test_what_admission_never_sees_is_not_granted_on_conditions(cluster: Cluster) -> None:
    before = (cluster.health() or {})["revision"]
    hooks = (
        'request.apiGroup == "admissionregistration.k8s.io" && request.userInfo.username == "alice" && '
        'object.metadata.name == "harmless"'
    )
    cluster.policy("hooks.yaml", ("alice-hooks", "Allow", hooks))
    assert (cluster.health() or {})["revision"] != before
    name = "tierwall-authorizer"
    assert cluster.kubectl("alice", "delete", "validatingwebhookconfiguration", name).is_forbidden
    (cluster.policies / "hooks.yaml").unlink()
    eventually(lambda: (cluster.health() or {})["revision"] == before, "the policies of before")


def test_a_long_object_locks_out_only_those_whom_conditions_are_about(cluster: Cluster) -> None:
    # In JSON, each of these is six characters, and a review of an update has the object twice.
    metadata = {"name": "long", "namespace": "dev"}
    value = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "<" * 900_000}}
    maps = "/api/v1/namespaces/dev/configmaps"
    cluster.kubectl("admin", "create", "--raw", maps, "-f", "-", stdin=json.dumps(value), expect=True)
    value["metadata"] = {**metadata, "labels": {"changed": "by-admin"}}
    cluster.kubectl("admin", "replace", "--raw", f"{maps}/long", "-f", "-", stdin=json.dumps(value), expect=True)
    refused = cluster.kubectl("bob", "replace", "--raw", f"{maps}/long", "-f", "-", stdin=json.dumps(value))
    assert not refused.is_done
    assert "conditions are about this request" in refused.text
    assert "8,388,608 bytes" in refused.text


def test_conditions_see_the_namespace_as_the_api_server_has_it(cluster: Cluster) -> None:
    locked = 'request.resource == "services" && "locked" in namespaceObject.metadata.labels'
    before = (cluster.health() or {})["revision"]
    cluster.policy(
        "locked.yaml",
        ("no-services-if-locked", "Deny", f'{locked} && request.userInfo.username == "alice"'),
        ("alice-services", "Allow", f'{IS}"alice" && request.resource == "services" && request.verb == "create"'),
    )

    def said() -> str:
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "dev"}}
        service["spec"] = {"ports": [{"port": 80}]}
        answer = cluster.kubectl(
            "alice", "create", "--dry-run=server", "--validate=false", "-f", "-", stdin=json.dumps(service)
        )
        return "" if answer.is_done else answer.text

    assert said() == ""
    cluster.kubectl("admin", "label", "namespace", "dev", "locked=yes", expect=True)
    eventually(lambda: "no-services-if-locked" in said(), said)
    cluster.kubectl("admin", "label", "namespace", "dev", "locked-", expect=True)
    eventually(lambda: said() == "", said)
    (cluster.policies / "locked.yaml").unlink()
    eventually(lambda: (cluster.health() or {})["revision"] == before, "the policies of before")


def test_admin_access_needs_the_label_of_the_namespace(cluster: Cluster) -> None:
    before = (cluster.health() or {})["revision"]
    label = "resource.kubernetes.io/admin-access"
    claims = 'request.apiGroup == "resource.k8s.io" && request.resource == "resourceclaims"'
    policies = (
        ("alice-claims-devices", "Allow", f'{claims} && request.userInfo.username == "alice"'),
        (
            "admin-access",
            "Deny",
            f"{claims} && request.userInfo.username == 'alice' && object.spec.devices.requests.exists(r, "
            "has(r.exactly) && has(r.exactly.adminAccess) && r.exactly.adminAccess) && "
            f'!(namespaceObject.metadata.?labels[?"{label}"].orValue("") == "true")',
        ),
    )
    device = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"namespace": "dev"}}
    cluster.policy("devices.yaml", *policies)
    for number, (value, may_be_admin) in enumerate((("false", False), ("true", True))):
        # The API server itself wants the label, too.
        cluster.kubectl("admin", "label", "--overwrite", "namespace", "dev", f"{label}={value}", expect=True)
        for is_admin in (False, True):
            request = {"name": "r", "exactly": {"deviceClassName": "x", "adminAccess": is_admin}}
            device["metadata"] = {"namespace": "dev", "name": f"c{number}-{is_admin}".lower()}
            create = partial(cluster.apply, "alice", "create", {**device, "spec": {"devices": {"requests": [request]}}})
            if may_be_admin or not is_admin:
                # The label may take a moment to arrive. A refused create leaves nothing behind.
                eventually(partial(_is_done, create), "the label")
            else:
                assert create().is_forbidden
    (cluster.policies / "devices.yaml").unlink()
    eventually(lambda: (cluster.health() or {})["revision"] == before, "the policies of before")


def _is_done(command: Callable[[], KubectlResult]) -> bool:
    return command().is_done


def test_conditions_on_access_reviews_are_enforced(cluster: Cluster) -> None:
    assert cluster.apply("alice", "create", access_review("bob")).is_done
    refused = cluster.apply("alice", "create", access_review("admin"))
    assert refused.is_forbidden
    assert "conditions do not hold" in refused.text


def test_both_phases_see_the_same_request(cluster: Cluster) -> None:
    cluster.kubectl("alice", "create", "namespace", "alice-1", expect=True)
    assert cluster.kubectl("alice", "create", "namespace", "other").is_forbidden
    assert cluster.apply("alice", "create", claim("compared")).is_done
    cluster.kubectl("alice", "label", "pvc", "compared", "more=x", expect=True)
    assert cluster.apply("alice", "replace", claim("compared")).is_done
    cluster.kubectl("alice", "delete", "pvc", "compared", "--wait=false", expect=True)
    compared = 0
    keys = ("user", "groups", "group", "version", "resource", "subresource", "namespace")
    asked: dict[str, list[dict[str, Any]]] = {}
    for record in cluster.records():
        key = f"{record.get('user')} {record.get('resource')} {record.get('subresource', '')}"
        if record["phase"] == "authorize" and record["verdict"] == "Conditional":
            asked.setdefault(key, []).append(record)
        elif record["phase"] == "admit" and key in asked:
            first = asked[key][-1]
            assert [first.get(name) for name in keys] == [record.get(name) for name in keys]
            compared += 1
    assert compared >= 6


def test_a_question_that_is_no_request_is_not_answered_yes_on_conditions(cluster: Cluster) -> None:
    # `kubectl auth can-i` asks about any version, and no admission follows.
    said = cluster.kubectl("alice", "auth", "can-i", "create", "pvc")
    assert said.text.startswith("no - conditional")
    assert "yes" in cluster.kubectl("alice", "auth", "can-i", "create", "configmaps").text


def test_an_edit_of_the_policies_counts_at_once(cluster: Cluster) -> None:
    assert cluster.kubectl("bob", "get", "pvc").is_forbidden
    cluster.policy(
        "more.yaml",
        ("bob-reads", "Allow", f'{IS}"bob" && request.verb == "list" && request.resource == "persistentvolumeclaims"'),
    )
    cluster.kubectl("bob", "get", "pvc", expect=True)


def test_a_file_that_cannot_be_parsed_keeps_its_policies_and_says_so(cluster: Cluster) -> None:
    cluster.policy("edited.yaml", ("bob-lists", "Allow", f'{IS}"bob" && request.resource == "services"'))
    cluster.kubectl("bob", "get", "services", expect=True)
    cluster.write_policies("edited.yaml", "kind: [", wait=False)
    eventually(lambda: "problems" in (cluster.health() or {}), "word of the broken file")
    cluster.kubectl("bob", "get", "services", expect=True)
    health = cluster.health() or {}
    assert [problem["code"] for problem in health["problems"]] == ["TW010"]
    # What the file had is in force, and so is everything else: nothing is stale.
    assert (health["ready"], health["stale"]) == (True, False)
    assert "tierwall_authorizer_policies_stale 0.0" in cluster.metrics()
    assert "TW010" in cluster.log("authorizer")
    cluster.policy("edited.yaml")
    assert "problems" not in (cluster.health() or {})
    assert cluster.kubectl("bob", "get", "services").is_forbidden


def test_without_the_authorizer_everything_is_refused_until_it_is_back(cluster: Cluster) -> None:
    cluster.stop_process("authorizer", kill=True)
    assert not cluster.kubectl("alice", "get", "configmap", "hers").is_done
    assert not cluster.kubectl("admin", "create", "configmap", "unseen").is_done, "admission fails closed"
    # It runs in the cluster, so it must be able to read before it can answer.
    cluster.kubectl("authorizer", "get", "namespaces", expect=True)
    assert not cluster.kubectl("authorizer", "get", "configmaps").is_done
    cluster.start_authorizer()
    cluster.kubectl("alice", "get", "configmap", "hers", expect=True)
    assert cluster.apply("alice", "create", claim("again")).is_done
    assert cluster.apply("alice", "create", claim("again-bad", "prod")).is_forbidden


def test_certificates_rotate_in_place(cluster: Cluster, tmp_path: Path) -> None:
    before = served_certificate(cluster)
    fresh = tmp_path / "pki"
    fresh.mkdir()
    for name in ("ca.crt", "ca.key"):
        shutil.copy(cluster.pki / name, fresh)
    url = f"https://127.0.0.1:{cluster.port}"
    subprocess.run(
        [TIERWALL, "authorizer", "install", "--out", str(fresh), "--url", url], check=True, timeout=PATIENCE_S
    )
    for name in ("server.key", "server.crt"):
        os.replace(shutil.copy(fresh / name, cluster.pki / f"{name}.new"), cluster.pki / name)
    eventually(lambda: served_certificate(cluster) != before, "the new certificate")
    pem = (fresh / "server.crt").read_text()
    assert served_certificate(cluster) == pem
    assert cluster.apply("alice", "create", claim("after-rotation")).is_done
    assert cluster.apply("alice", "create", claim("after-rotation-bad", "prod")).is_forbidden


def served_certificate(cluster: Cluster) -> str:
    """Return the certificate that the authorizer shows now."""
    return ssl.get_server_certificate(("127.0.0.1", cluster.port))
