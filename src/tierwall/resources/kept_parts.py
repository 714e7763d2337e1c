"""The parts of an object that a snapshot keeps: what answers depend on (docs/clusters.md#what-is-left-out).

A snapshot of a cluster that did not change must not change either, so what servers and controllers write goes:
versions, uids, `managedFields`, and the status of most kinds. Objects that admission refuses stay refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from tierwall.resources.kinds.registry import find_kind
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.validity import installed_definition
from tierwall.resources.workloads import WORKLOADS

SECRET: KindKey = ("", "Secret")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# A field of another type would be refused, so it stays.
_DROPPED: Mapping[str, type[object]] = {
    "managedFields": list,
    "resourceVersion": str,
    "uid": str,
    "selfLink": str,
    "deletionTimestamp": str,
    "deletionGracePeriodSeconds": int,
    "generation": int,
    "creationTimestamp": str,
}
# Kinds whose age breaks no tie, and is in no variable of an expression.
_AGELESS = frozenset((("", "Pod"), ("", "Node"), ("", "Service"), ("", "ServiceAccount"), *WORKLOADS))
_RUNNING = frozenset((("", "Pod"), *WORKLOADS))
# What a container is told, which no decision reads and which often holds what nobody should see.
_TOLD = ("args", "command", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
# What is read of a status; `tierwall status` reads those of policies, and their generation.
_STATUS_FIELDS: Mapping[KindKey, tuple[str, ...]] = {
    ("", "Pod"): ("phase", "podIP", "podIPs", "hostIP"),
    ("", "Node"): ("addresses",),
}
_JUDGED = frozenset(
    (
        ("agentgateway.dev", "AgentgatewayPolicy"),
        *(("policy.networking.k8s.io", f"{kind}NetworkPolicy") for kind in ("Admin", "BaselineAdmin", "Cluster")),
        *(
            (group, kind)
            for group in ("agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io")
            for kind in ("XAccessPolicy", "AccessPolicy")
        ),
    )
)


def kept_objects(snapshot: Snapshot) -> Iterator[Resource]:
    """Yield the objects of a snapshot with what is kept of them, without Secrets; in order, whatever it was before."""
    by_name: Iterable[Resource] = sorted(snapshot, key=lambda resource: (*resource.identity, resource.version))
    for resource in by_name:
        if (resource.group, resource.kind) != SECRET:
            yield replace(resource, value=_kept_value(snapshot, resource), _memo={})


def _kept_value(snapshot: Snapshot, resource: Resource) -> dict[str, Any]:
    key = resource.group, resource.kind
    value = dict(resource.value)
    value["apiVersion"], value["kind"] = resource.api_version, resource.kind
    if isinstance(value.get("metadata"), dict):
        value["metadata"] = _kept_metadata(resource, key)
    if key in _RUNNING and isinstance(value.get("spec"), dict):
        value["spec"] = _kept_spec(value["spec"])
    if "status" in value and key not in _JUDGED and _is_free(snapshot, resource):
        status = value.pop("status")
        fields = _STATUS_FIELDS.get(key, ()) if isinstance(status, dict) else ()
        if kept := {field: status[field] for field in fields if field in status}:
            value["status"] = kept
    return value


def _kept_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a pod or workload without what its containers are told."""
    kept = dict(spec)
    for field, item in spec.items():
        if field in ("containers", "initContainers", "ephemeralContainers") and isinstance(item, list):
            kept[field] = [_kept_container(part) if isinstance(part, dict) else part for part in item]
        elif field in ("template", "jobTemplate", "spec") and isinstance(item, dict):
            kept[field] = _kept_spec(item)
    return kept


def _kept_container(container: Mapping[str, Any]) -> dict[str, Any]:
    kept = {field: item for field, item in container.items() if field not in _TOLD}
    if isinstance(kept.get("env"), list):
        # A variable matters if it takes its value from somewhere.
        kept["env"] = [variable for variable in kept["env"] if isinstance(variable, dict) and "valueFrom" in variable]
        if not kept["env"]:
            del kept["env"]
    return kept


def _kept_metadata(resource: Resource, key: KindKey) -> dict[str, Any]:
    kept = (*(() if key in _AGELESS else ("creationTimestamp",)), *(("generation",) if key in _JUDGED else ()))
    metadata = {
        field: item
        for field, item in resource.metadata.items()
        if field not in _DROPPED or field in kept or not isinstance(item, _DROPPED[field] | None)
    }
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        metadata["annotations"] = {name: text for name, text in annotations.items() if name != _LAST_APPLIED}
        if not metadata["annotations"]:
            del metadata["annotations"]
    if resource.namespace and not metadata.get("namespace"):
        metadata["namespace"] = resource.namespace
    return metadata


def _is_free(snapshot: Snapshot, resource: Resource) -> bool:
    """Whether admission does not look at the status of an object."""
    definition = installed_definition(snapshot, resource)
    kind = find_kind(resource.api_version, resource.kind)
    if definition is not None:
        kind = definition.kinds.get(resource.api_version, kind)
    return kind is None or kind.status_subresource or not kind.strict
