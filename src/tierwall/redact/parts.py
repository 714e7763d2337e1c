"""The parts of objects that decisions read, of kinds whose schemas say less or nothing (docs/clusters.md#redact).

Everything else of such an object is left out: images, commands, environments, volumes, messages. A path has no indexes:
`spec.containers.ports.hostPort`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache

from tierwall.resources.kinds.registry import all_kinds
from tierwall.resources.schema import Schema
from tierwall.resources.snapshot import KindKey

_REF = "group kind namespace name sectionName port weight"
_KEYS = "name"
# A pod's ports, and the Secrets, ConfigMaps and claims that its node may read (the Node authorizer).
_CONTAINER = {
    "": "name restartPolicy",
    "ports": "name containerPort protocol hostPort hostIP",
    "env.valueFrom.secretKeyRef": _KEYS,
    "env.valueFrom.configMapKeyRef": _KEYS,
    "envFrom.secretRef": _KEYS,
    "envFrom.configMapRef": _KEYS,
}
_SOURCE = {"secret": "secretName name", "configMap": _KEYS}
_DRIVERS = ("cephfs", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos", "csi")
_POD = {
    "": "hostNetwork nodeName serviceAccountName",
    **{f"{holder}.{key}".rstrip("."): fields for holder in ("containers", "initContainers", "ephemeralContainers")
       for key, fields in _CONTAINER.items()},
    "imagePullSecrets": _KEYS,
    "resourceClaims": "resourceClaimName",
    **{f"volumes.{prefix}{key}": fields for prefix in ("", "projected.sources.") for key, fields in _SOURCE.items()},
    "volumes.persistentVolumeClaim": "claimName",
    "volumes.azureFile": "secretName",
    **{f"volumes.{driver}.{ref}": _KEYS for driver in _DRIVERS for ref in ("secretRef", "nodePublishSecretRef")},
}  # fmt: skip
_TEMPLATE = {"spec.template.metadata": "labels", **{f"spec.template.spec.{key}".rstrip("."): _POD[key] for key in _POD}}
_WORKLOAD = {"spec": "replicas parallelism", **_TEMPLATE}
_CRON_JOB = {"spec.jobTemplate.spec": "parallelism", **{f"spec.jobTemplate.{key}": _TEMPLATE[key] for key in _TEMPLATE}}
_ROUTE = {"spec": "hostnames", "spec.parentRefs": _REF, "spec.rules": "name", "spec.rules.backendRefs": _REF}
_INGRESS_BACKEND = {"": "serviceName servicePort", "service": "name", "service.port": "name number",
                    "resource": "apiGroup kind name"}  # fmt: skip
_INGRESS = {
    "spec.rules": "host",
    **{f"{holder}.{key}".rstrip("."): fields
       for holder in ("spec.defaultBackend", "spec.backend", "spec.rules.http.paths.backend")
       for key, fields in _INGRESS_BACKEND.items()},
}  # fmt: skip
_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job")
_ALPHA_ROUTES = ("TLSRoute", "TCPRoute", "UDPRoute")
_READ: Mapping[KindKey, Mapping[str, str]] = {
    ("", "Pod"): {f"spec.{key}".rstrip("."): fields for key, fields in _POD.items()},
    **{(group, kind): _WORKLOAD for group in ("", "apps", "batch", "extensions") for kind in _WORKLOADS},
    ("batch", "CronJob"): _CRON_JOB,
    ("", "Service"): {"spec": "externalIPs loadBalancerSourceRanges"},
    ("", "PersistentVolumeClaim"): {"spec": "volumeName"},
    ("storage.k8s.io", "VolumeAttachment"): {"spec": "nodeName"},
    ("apiregistration.k8s.io", "APIService"): {"spec": "group version", "spec.service": "namespace name"},
    ("networking.k8s.io", "Ingress"): _INGRESS,
    ("extensions", "Ingress"): _INGRESS,
    ("route.openshift.io", "Route"): {
        "spec": "host",
        "spec.port": "targetPort",
        "spec.to": "kind name weight",
        "spec.alternateBackends": "kind name weight",
    },
    **{("gateway.networking.k8s.io", kind): _ROUTE for kind in _ALPHA_ROUTES},
}
# Of policies of other systems: which objects they are about, and which policy they bind.
_FOREIGN: Mapping[str, str] = {
    "spec": "policyName",
    "spec.targetRef": _REF,
    "spec.targetRefs": _REF,
    "spec.targetSelectors": "group kind sectionName matchLabels matchExpressions",
}


@cache
def read_parts(key: KindKey) -> Set[str]:
    """Return the paths that decisions read of a kind, beside those of its schema, and all paths above them."""
    return frozenset(_with_parents(_READ.get(key, {})))


@cache
def foreign_parts() -> Set[str]:
    """Return the paths that decisions read of objects of other systems, and all paths above them."""
    return frozenset(_with_parents(_FOREIGN))


@cache
def field_names() -> Set[str]:
    """Return the names of all fields that any kind has."""
    return names_in(kind.schema for kind in all_kinds())


def names_in(schemas: Iterable[Schema]) -> Set[str]:
    """Return the names of all fields of some schemas."""
    names: set[str] = set()
    # A schema is equal only to itself.
    seen: set[Schema] = set()
    waiting = list(schemas)
    while waiting:
        schema = waiting.pop()
        if schema not in seen:
            seen.add(schema)
            names.update(part.name for part in schema.properties)
            waiting += (part.schema for part in schema.properties)
            waiting += (inner for inner in (schema.items, schema.additional) if inner is not None)
    return names


def _with_parents(parts: Mapping[str, str]) -> Iterator[str]:
    for holder, fields in parts.items():
        names = holder.split(".")
        yield from (".".join(names[:length]) for length in range(1, len(names) + 1))
        yield from (f"{holder}.{field}" for field in fields.split())
