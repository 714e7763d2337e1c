"""The chart on real nodes, installed from the image that deploy/image/build writes, as the docs say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.labs.chart import CHART, NAMESPACE
from tests.labs.kube_cluster import TIERWALL
from tests.labs.real_nodes import RealNodes

_REMOVE = ROOT / "deploy" / "remove" / "daemonset.yaml"


def build_image(folder: Path) -> Path:
    """Write the archive of the image."""
    archive = folder / "tierwall.tar"
    command = [sys.executable, "-m", "supply", "image", "--out", str(archive)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return archive


class InstalledChart:
    """One release, `tierwall`, in its namespace."""

    def __init__(self, nodes: RealNodes) -> None:
        self.nodes = nodes

    def install(self, *settings: str) -> None:
        """Install the definitions and the chart, and wait until every pod is ready. Settings: `value=…`."""
        kinds = ("AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy")
        definitions = subprocess.run([TIERWALL, "crds", *kinds], check=True, capture_output=True, text=True).stdout
        self.nodes.kubectl("apply", "--server-side", "-f", "-", stdin=definitions)
        self.nodes.kubectl("create", "namespace", NAMESPACE)
        self.nodes.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=privileged")
        self._helm("install", settings)

    def upgrade(self, *settings: str) -> None:
        """Install the chart again with other values, and wait until every pod is ready."""
        self._helm("upgrade", settings)

    def _helm(self, verb: str, settings: tuple[str, ...]) -> None:
        values = [word for setting in settings for word in ("--set", setting)]
        try:
            self.nodes.helm(verb, "tierwall", str(CHART), "--namespace", NAMESPACE, "--wait", "--timeout=90s", *values)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.described()}") from None

    def uninstall(self) -> None:
        """Uninstall the chart, and wait until its pods are gone."""
        self.nodes.helm("uninstall", "tierwall", "--namespace", NAMESPACE)
        self.kubectl("wait", "--for=delete", "pod", "--all", "--timeout=90s")

    def remove_tables(self) -> None:
        """Remove the table of every node, and what removes it."""
        self.kubectl("apply", "-f", str(_REMOVE))
        self.kubectl("rollout", "status", "daemonset/tierwall-remove", "--timeout=90s")
        self.kubectl("delete", "-f", str(_REMOVE))

    def kubectl(self, *words: str) -> str:
        """Run kubectl in the namespace of the release; it must succeed."""
        return self.nodes.kubectl("--namespace", NAMESPACE, *words)

    def objects(self, resource: str, *words: str) -> list[dict[str, Any]]:
        """Return objects in the namespace of the release."""
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", resource, "-o", "json", *words))["items"]
        return items

    def reports(self) -> dict[str, dict[str, Any]]:
        """Return the status of each NodeReport by the name of its node."""
        return {value["metadata"]["name"]: value.get("status", {}) for value in self.objects("nodereports")}

    def agent(self, node: str) -> str:
        """Return the name of the pod of a node's agent."""
        pods = self.objects(
            "pods", "-l", "app.kubernetes.io/component=node-agent", "--field-selector", f"spec.nodeName={node}"
        )
        [name] = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return str(name)

    def forbidden(self) -> Iterator[str]:
        """Yield the requests of this release that the API server did not allow."""
        for event in self.nodes.audited():
            user, agent, answer = event["user"]["username"], event.get("userAgent", ""), event["responseStatus"]
            is_ours = user.startswith(f"system:serviceaccount:{NAMESPACE}:") and not agent.startswith("kubectl/")
            # A 403 may have other reasons, such as a namespace that is about to go.
            is_allowed = event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow"
            if is_ours and not is_allowed:
                yield f"{user}: {event['verb']} {event['requestURI']}: {answer.get('message', '')}"

    def described(self) -> str:
        """Return what helps to find out why a pod is not ready."""
        logs = [
            self.kubectl("logs", f"--selector=app.kubernetes.io/component={component}", "--prefix", "--tail=20")
            for component in ("controller", "node-agent")
        ]
        return "\n".join([self.kubectl("get", "pods", "-o", "wide"), self.kubectl("get", "events"), *logs])
