"""Lists of connections, of ways in and of what nodes may read are the same for redacted objects
(docs/clusters.md#redact)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings

import tierwall
from tests import ROOT
from tests.randomness import examples
from tests.redact.renamed import outcome, rename_outcome, rename_question, snapshot_of
from tests.worlds import network_clusters
from tierwall.cli.main import root
from tierwall.redact.redaction import RedactedObjects, redact

Object = dict[str, Any]


def listed(objects: list[Object], folder: Path) -> dict[str, Any]:
    (folder / "objects.json").write_text("\n".join(map(json.dumps, objects)))
    result = CliRunner().invoke(root, ["list", str(folder), "-o", "json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def ways(document: dict[str, Any], redacted: RedactedObjects | None = None) -> list[str]:
    """Return the ways in without the words about problems, in the words of redacted objects if they are given."""
    entries = [{key: item for key, item in way.items() if key != "problem"} for way in document["waysIn"]]
    return sorted(json.dumps(_renamed(entry, redacted) if redacted else entry, sort_keys=True) for entry in entries)


def _renamed(value: Any, redacted: RedactedObjects, field: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _renamed(item, redacted, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, redacted, field) for item in value]
    if not isinstance(value, str) or field in ("protocol", "offered", "port", "verdict"):
        return value
    kind, slash, rest = value.partition("/")
    return f"{kind}/{redacted.rename(rest)}" if slash and kind[:1].isupper() else redacted.rename(value)


def test_ways_in(tmp_path: Path) -> None:
    objects = [resource.value for resource in tierwall.load(ROOT / "examples" / "ways-in").objects()]
    redacted = redact(snapshot_of(objects))
    before, after = listed(objects, tmp_path), listed(list(redacted.values), tmp_path)
    assert ways(after) == ways(before, redacted)
    assert _pods(after) == sorted(redacted.rename(pod) for pod in _pods(before))


def _pods(document: dict[str, Any]) -> list[str]:
    return sorted(document["groups"]["*/*"])


def reach(objects: list[Object]) -> set[tuple[str, str, str]]:
    """Return which pods reach which, on which ports. Ranges of addresses are not ranges any more."""
    pairs = tierwall.load(objects=objects).connections().pairs()
    named = ((str(pair.sources), str(pair.destinations), pair.ports) for pair in pairs)
    return {
        (source, destination, ports) for source, destination, ports in named if "/" in source and "/" in destination
    }


WORKLOADS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i, ports: [{containerPort: 80, name: http}]}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: shop}
spec: {schedule: '@daily', jobTemplate: {spec: {template: {metadata: {labels: {app: job}}, spec: {containers: []}}}}}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, namespace: shop, labels: {app: db}}
spec:
  containers: [{name: c, image: i}]
  initContainers: [{name: s, restartPolicy: Always, ports: [{containerPort: 81, name: side}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: plain, port: 8080, targetPort: http}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: http}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {app: job}}}], ports: [{port: side}]}]
"""
ENDS = (
    "shop/web-0",
    "shop/web-1",
    "shop/db-0",
    "shop/nightly-0",
    "Deployment/shop/web",
    "CronJob/shop/nightly",
    "shop/web",
)


@pytest.mark.parametrize("source", [*ENDS, "outside"])
@pytest.mark.parametrize("destination", [*ENDS, "Service/shop/web"])
def test_pods_of_workloads_and_services(source: str, destination: str) -> None:
    before = snapshot_of(list(yaml.safe_load_all(WORKLOADS)))
    redacted = redact(before)
    after = snapshot_of(list(redacted.values))
    for port in (80, 81, 8080):
        question = {"from": source, "to": destination, "port": port}
        asked = {
            key: item if item == "outside" else rename_question(redacted, item, key, key != "port")
            for key, item in question.items()
        }
        expected = rename_outcome(redacted, outcome("network", before, question))
        assert outcome("network", after, asked) == expected, (question, asked)


POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  nodeName: node-a.acme.example
  serviceAccountName: runner
  imagePullSecrets: [{name: registry}]
  resourceClaims: [{name: gpu, resourceClaimName: gpu-claim}]
  containers:
  - name: c
    image: i
    env:
    - {name: A, valueFrom: {secretKeyRef: {name: token, key: k}}}
    - {name: B, valueFrom: {configMapKeyRef: {name: flags, key: k}}}
    envFrom: [{secretRef: {name: all-of-it}}, {configMapRef: {name: settings}}]
  volumes:
  - {name: a, secret: {secretName: tls}}
  - {name: b, configMap: {name: files}}
  - {name: c, persistentVolumeClaim: {claimName: data}}
  - {name: d, projected: {sources: [{secret: {name: inner}}]}}
  - {name: e, csi: {driver: x, nodePublishSecretRef: {name: mount}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shop}
spec: {volumeName: pv-7, accessModes: [ReadWriteOnce]}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: csi-1}
spec: {attacher: x, nodeName: node-a.acme.example, source: {persistentVolumeName: pv-7}}
---
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers: [{type: Node, name: kubelets}]
"""
SECRETS = ("registry", "token", "all-of-it", "tls", "inner", "mount")
READ = [
    *(("secrets", "shop", name, "get") for name in (*SECRETS, "files", "other")),
    *(("configmaps", "shop", name, "get") for name in ("flags", "settings", "files", "tls")),
    *(("persistentvolumeclaims", "shop", "data", "get"), ("persistentvolumes", "", "pv-7", "get")),
    *(("pods", "shop", "web", "get"), ("serviceaccounts", "shop", "runner", "get")),
]


@pytest.mark.parametrize("node", ["node-a.acme.example", "node-b.acme.example"])
def test_nodes_may_read_what_their_pods_name(node: str) -> None:
    before = snapshot_of(list(yaml.safe_load_all(POD)))
    redacted = redact(before)
    after = snapshot_of(list(redacted.values))
    verdicts = set()
    for resource, namespace, name, verb in READ:
        user = {"user": f"system:node:{node}", "groups": ["system:nodes"]}
        question = {**user, "verb": verb, "resource": resource, "namespace": namespace, "name": name, "version": "v1"}
        expected = rename_outcome(redacted, outcome("api", before, question))
        assert outcome("api", after, rename_question(redacted, question)) == expected, question
        verdicts.add(expected["verdict"])
    assert verdicts == {"Allow", "NoOpinion"}


@settings(max_examples=examples(15), deadline=None)
@given(network_clusters.clusters())
def test_connections(objects: list[Object]) -> None:
    redacted = redact(snapshot_of(objects))
    rename = redacted.rename
    expected = {(rename(source), rename(destination), ports) for source, destination, ports in reach(objects)}
    assert reach(list(redacted.values)) == expected
