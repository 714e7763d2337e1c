"""The chart on a real API server: it takes every object, and Pod Security takes the pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.labs.chart import EVERYTHING, OTHER_APIS, rendered_text
from tests.labs.live_client import LiveClient

pytestmark = pytest.mark.engine
NAMESPACE, GATEWAYS = "chart-release", "chart-gateways"
# No operator of Prometheus is here.
VALUES = {**EVERYTHING, "gatewayNamespaces": [GATEWAYS], "metrics": {"serviceMonitor": {"enabled": False}}}


@pytest.fixture(scope="module")
def objects(live: LiveClient) -> list[dict[str, Any]]:
    """All objects of a release. Its namespaces and ServiceAccounts exist."""
    text = rendered_text(VALUES, OTHER_APIS, NAMESPACE)
    objects = [value for value in yaml.safe_load_all(text) if value is not None]
    with live.lock():
        live.namespace(GATEWAYS)
        live.namespace(NAMESPACE, **{"pod-security.kubernetes.io/enforce": "restricted"})
        live.create(*(value for value in objects if value["kind"] == "ServiceAccount"))
    return objects


def test_the_api_server_takes_every_object(live: LiveClient, objects: list[dict[str, Any]], tmp_path: Path) -> None:
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(yaml.safe_dump_all(objects))
    tried = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    assert len(live.kubectl(*tried, "-f", str(manifests)).splitlines()) == len(objects)


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_only_the_node_agent_needs_more_than_the_restricted_profile(
    live: LiveClient, objects: list[dict[str, Any]], kind: str
) -> None:
    made = [value for value in objects if value["kind"] == kind]
    assert made
    for value in made:
        template = value["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {**template["metadata"], "name": "tried", "namespace": NAMESPACE}
        status, answer = live.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)
        if kind == "Deployment":
            assert status == 201, answer
            continue
        assert status == 403, answer
        # What it needs: the network of the node, a capability for it, and root, which alone may have one.
        needs = answer["message"].split("violates PodSecurity", 1)[1]
        assert "hostNetwork=true" in needs
        assert "NET_ADMIN" in needs
        assert "runAsNonRoot" in needs
        assert all(word not in needs for word in ("privileged", "allowPrivilegeEscalation", "seccomp", "volume"))
