"""What the pods of each node refer to: the Node authorizer's graph (Kubernetes' `plugin/pkg/auth/authorizer/node`).

A node may read a Secret, ConfigMap, claim or volume only through a pod that is bound to it. The graph is part of the
authorizer's policy store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from tierwall.resources.once import per_snapshot
from tierwall.resources.snapshot import Snapshot

# (resource, namespace, name)
Thing: TypeAlias = tuple[str, str, str]

_VOLUME_SECRETS = ("cephfs", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos", "csi")


@per_snapshot
def node_graph(snapshot: Snapshot) -> Mapping[str, frozenset[Thing]]:
    """For each node everything that its pods, and their claims and volumes, refer to; the pods themselves too."""
    found: dict[str, set[Thing]] = {}
    for pod in snapshot.of_kind("", "Pod"):
        node = pod.spec.get("nodeName")
        if isinstance(node, str) and node:
            things = found.setdefault(node, set())
            things.add(("pods", pod.namespace, pod.name))
            things.update(references(pod.spec, pod.namespace))
    for things in found.values():
        for kind, namespace, name in list(things):
            if kind == "persistentvolumeclaims":
                claim = snapshot.get("", "PersistentVolumeClaim", namespace, name)
                volume = claim.spec.get("volumeName") if claim is not None else None
                if isinstance(volume, str) and volume:
                    things.add(("persistentvolumes", "", volume))
    for attachment in snapshot.of_kind("storage.k8s.io", "VolumeAttachment"):
        node = attachment.spec.get("nodeName")
        if isinstance(node, str) and node:
            found.setdefault(node, set()).add(("volumeattachments", "", attachment.name))
    return {node: frozenset(things) for node, things in found.items()}


def references(spec: Mapping[str, Any], namespace: str) -> Iterator[Thing]:
    """The secrets, config maps, claims, resource claims and the service account that a pod's spec names."""
    account = spec.get("serviceAccountName")
    if isinstance(account, str) and account:
        yield "serviceaccounts", namespace, account
    for pull in _maps(spec.get("imagePullSecrets")):
        yield from _named("secrets", namespace, pull.get("name"))
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for container in _maps(spec.get(key)):
            yield from _environment(container, namespace)
    for claim in _maps(spec.get("resourceClaims")):
        yield from _named("resourceclaims", namespace, claim.get("resourceClaimName"))
    for volume in _maps(spec.get("volumes")):
        for source in (volume, *(_maps(_map(volume.get("projected")).get("sources")))):
            yield from _named("secrets", namespace, _map(source.get("secret")).get("secretName"))
            yield from _named("secrets", namespace, _map(source.get("secret")).get("name"))
            yield from _named("configmaps", namespace, _map(source.get("configMap")).get("name"))
        claimed = _map(volume.get("persistentVolumeClaim")).get("claimName")
        yield from _named("persistentvolumeclaims", namespace, claimed)
        yield from _named("secrets", namespace, _map(volume.get("azureFile")).get("secretName"))
        for driver in _VOLUME_SECRETS:
            source = _map(volume.get(driver))
            for field in ("secretRef", "nodePublishSecretRef"):
                yield from _named("secrets", namespace, _map(source.get(field)).get("name"))


def _environment(container: Mapping[str, Any], namespace: str) -> Iterator[Thing]:
    for variable in _maps(container.get("env")):
        source = _map(variable.get("valueFrom"))
        yield from _named("secrets", namespace, _map(source.get("secretKeyRef")).get("name"))
        yield from _named("configmaps", namespace, _map(source.get("configMapKeyRef")).get("name"))
    for source in _maps(container.get("envFrom")):
        yield from _named("secrets", namespace, _map(source.get("secretRef")).get("name"))
        yield from _named("configmaps", namespace, _map(source.get("configMapRef")).get("name"))


def _named(resource: str, namespace: str, name: Any) -> Iterator[Thing]:
    if isinstance(name, str) and name:
        yield resource, namespace, name


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
