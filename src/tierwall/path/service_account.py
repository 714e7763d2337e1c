"""The ServiceAccount under which a pod calls (Kubernetes, "Configure Service Accounts for Pods")."""

from __future__ import annotations

from tierwall.network.model.endpoints import Endpoint, objects_behind, pod_spec
from tierwall.resources.snapshot import Snapshot


def service_account(snapshot: Snapshot, pod: Endpoint) -> str:
    """Return the ServiceAccount of a pod as `namespace/name`; a pod that names none runs under `default`."""
    for resource in objects_behind(snapshot, pod):
        if resource.kind != "Namespace":
            spec = pod_spec(resource)
            name = spec.get("serviceAccountName") or spec.get("serviceAccount")
            return f"{pod.namespace}/{name if isinstance(name, str) else 'default'}"
    return f"{pod.namespace}/default"
