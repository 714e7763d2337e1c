"""On a real kube-apiserver, conditions grant nothing while admission is not proved live, and do again once it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.labs.kube_cluster import Cluster, install
from tests.labs.waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NAME = "tierwall-authorizer"
CONDITIONAL = (
    "alice-creates-labelled-maps",
    "Allow",
    'request.resource == "configmaps" && request.userInfo.username == "alice" && request.verb == "create" && '
    'has(object.metadata.labels) && object.metadata.labels.owner == "alice"',
)
# A guardrail about everything: while conditions fold it denies, and must not deny the canary, too.
GUARDRAIL = (
    "nobody-touches-locked-objects",
    "Deny",
    'request.verb == "create" && has(object.metadata.labels) && has(object.metadata.labels.locked)',
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("admission"))
    cluster.policy("base.yaml", CONDITIONAL, GUARDRAIL)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def labelled(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "dev", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def is_granted(cluster: Cluster) -> bool:
    """Whether the condition grants, and only what it says."""
    good = cluster.apply("alice", "create", labelled("hers", owner="alice"))
    if good.is_done:
        cluster.kubectl("admin", "delete", "configmap", "hers", expect=True)
        assert cluster.apply("alice", "create", labelled("other", owner="bob")).is_forbidden
    return good.is_done


def other_authority(cluster: Cluster) -> str:
    install(cluster.folder / "other", "https://127.0.0.1:1")
    other = yaml.safe_load((cluster.folder / "other" / "webhook.yaml").read_text())
    return str(other["webhooks"][0]["clientConfig"]["caBundle"])


CHANGES: dict[str, tuple[str, Any, str]] = {
    "rules": ("rules/0/resources", ["pods"], "rules"),
    "namespaceSelector": ("namespaceSelector", {"matchLabels": {"a": "b"}}, "namespaceSelector"),
    "objectSelector": ("objectSelector", {"matchLabels": {"a": "b"}}, "objectSelector"),
    "matchConditions": ("matchConditions", [{"name": "x", "expression": "false"}], "matchConditions"),
    "failurePolicy": ("failurePolicy", "Ignore", "failurePolicy"),
    "timeoutSeconds": ("timeoutSeconds", 1, "timeoutSeconds"),
    "matchPolicy": ("matchPolicy", "Equivalent", "matchPolicy"),
    "sideEffects": ("sideEffects", "NoneOnDryRun", "sideEffects"),
    "address": ("clientConfig/url", "https://127.0.0.1:1/admit", "canary"),
    "authority": ("clientConfig/caBundle", "OTHER", "canary"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_configuration_folds_conditions_until_it_is_restored(cluster: Cluster, change: str) -> None:
    path, value, word = CHANGES[change]
    value = other_authority(cluster) if value == "OTHER" else value
    assert is_granted(cluster)
    patch = json.dumps([{"op": "add", "path": f"/webhooks/0/{path}", "value": value}])
    cluster.kubectl("admin", "patch", "validatingwebhookconfiguration", NAME, "--type=json", "-p", patch, expect=True)
    reason = cluster.wait_until_live(False)
    eventually(lambda: word in cluster.wait_until_live(False), lambda: cluster.wait_until_live(False))
    assert reason
    refused = cluster.apply("alice", "create", labelled("hers", owner="alice"))
    assert refused.is_forbidden
    assert "admission is not live" in refused.text
    assert "tierwall_admission_live 0.0" in cluster.metrics()
    health = cluster.health() or {}
    assert health["ready"] is True
    assert health["message"].startswith("admission: not live, ")
    restore(cluster)


def test_a_deleted_configuration_folds_conditions_until_it_is_back(cluster: Cluster) -> None:
    assert is_granted(cluster)
    cluster.kubectl("admin", "delete", "validatingwebhookconfiguration", NAME, expect=True)
    cluster.wait_until_live(False)
    assert cluster.apply("alice", "create", labelled("hers", owner="alice")).is_forbidden
    restore(cluster)


def test_a_start_proves_admission_although_a_guardrail_is_about_every_create(cluster: Cluster) -> None:
    cluster.stop_process("authorizer", kill=True)
    cluster.start_authorizer()
    assert is_granted(cluster)
    locked = labelled("locked", locked="yes", owner="alice")
    assert cluster.apply("alice", "create", locked).is_forbidden


def test_the_canary_never_exists(cluster: Cluster) -> None:
    eventually(lambda: 'phase="canary"' in cluster.metrics(), "a canary")
    maps = cluster.kubectl("admin", "get", "configmaps", "-A", "-o", "name", expect=True)
    assert "tierwall-canary" not in maps.text
    assert not any(record["phase"] == "canary" for record in cluster.records())


def test_without_rights_the_reason_is_told(cluster: Cluster) -> None:
    cluster.kubectl("admin", "delete", "rolebinding", "tierwall-canary", "-n", "default", expect=True)
    eventually(lambda: "canary" in cluster.wait_until_live(False), "the reason")
    assert "tierwall-authorizer" in cluster.wait_until_live(False)
    restore(cluster)


def test_a_change_behind_a_right_that_was_taken_away_folds_conditions(cluster: Cluster) -> None:
    assert is_granted(cluster)
    cluster.kubectl("admin", "delete", "clusterrolebinding", NAME, expect=True)
    # The canary is still refused, and nothing else is asked about.
    patch = json.dumps([{"op": "replace", "path": "/webhooks/0/rules/0/resources", "value": ["configmaps"]}])
    cluster.kubectl("admin", "patch", "validatingwebhookconfiguration", NAME, "--type=json", "-p", patch, expect=True)
    eventually(lambda: "cannot be read" in cluster.wait_until_live(False), "the reason")
    assert cluster.apply("alice", "create", labelled("hers", owner="alice")).is_forbidden
    restore(cluster)


def restore(cluster: Cluster) -> None:
    """Write the configuration and the roles as `install` wrote them, and wait for the proof."""
    cluster.kubectl("admin", "delete", "--ignore-not-found", "validatingwebhookconfiguration", NAME, expect=True)
    for file in ("webhook.yaml", "rbac.yaml"):
        cluster.kubectl("admin", "apply", "-f", str(cluster.pki / file), expect=True)
    cluster.wait_until_live()
    assert "tierwall_admission_live 1.0" in cluster.metrics()
    assert is_granted(cluster)


class StaticCluster(Cluster):
    """A cluster whose webhook stands in files of the API server."""

    install_options = ("--static",)
    admission_config = "admission-static.yaml"
    gates = ("--feature-gates=ManifestBasedAdmissionControlConfig=true",)


def test_static_admission_is_proved_by_the_canary(tmp_path_factory: pytest.TempPathFactory) -> None:
    cluster = StaticCluster(tmp_path_factory.mktemp("static"))
    cluster.policy("base.yaml", CONDITIONAL)
    try:
        cluster.start()
        assert not (cluster.pki / "webhook.yaml").exists()
        assert "canary alone" in cluster.wait_until_live()
        assert is_granted(cluster)
    finally:
        cluster.stop()
