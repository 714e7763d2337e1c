"""The resources whose writes the admission of this API server sees (docs/authorizer.md#who-enforces-what).

Anyone may ask an authorizer about anything: kubelets ask about `nodes/proxy` and other subresources of nodes, other API
servers about their own groups, programs about resources that exist nowhere. A condition on these would be granted and
never evaluated. So only what is known to pass through admission counts: the resources of Kubernetes and those of
CustomResourceDefinitions, with the subresources that they are known to have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tierwall.api.algebra.request import CONNECT_RESOURCES, CONNECT_VERBS, Attributes
from tierwall.api.resource_names import BUILT_IN
from tierwall.resources.resource import list_of_maps
from tierwall.resources.snapshot import Snapshot

# Webhooks are not asked about the configuration of admission itself.
UNSEEN_GROUPS: Final = frozenset(("admissionregistration.k8s.io",))
# Resources that are not served by default, as `resource.group`.
_NOT_BY_DEFAULT: Final = """
clustertrustbundles.certificates.k8s.io podcertificaterequests.certificates.k8s.io leasecandidates.coordination.k8s.io
storageversions.internal.apiserver.k8s.io devicetaintrules.resource.k8s.io workloads.scheduling.k8s.io
podgroups.scheduling.k8s.io storageversionmigrations.storagemigration.k8s.io
"""
# Subresources by resource. A node has only its status: kubelets ask about all others, and enforce no conditions.
_SUBRESOURCES: Final = """
status: pods services nodes namespaces persistentvolumes persistentvolumeclaims resourcequotas replicationcontrollers
 deployments.apps replicasets.apps statefulsets.apps daemonsets.apps cronjobs.batch jobs.batch
 horizontalpodautoscalers.autoscaling certificatesigningrequests.certificates.k8s.io
 podcertificaterequests.certificates.k8s.io ingresses.networking.k8s.io servicecidrs.networking.k8s.io
 poddisruptionbudgets.policy flowschemas.flowcontrol.apiserver.k8s.io
 prioritylevelconfigurations.flowcontrol.apiserver.k8s.io customresourcedefinitions.apiextensions.k8s.io
 apiservices.apiregistration.k8s.io volumeattachments.storage.k8s.io resourceclaims.resource.k8s.io
 devicetaintrules.resource.k8s.io storageversions.internal.apiserver.k8s.io podgroups.scheduling.k8s.io
 storageversionmigrations.storagemigration.k8s.io
scale: replicationcontrollers deployments.apps replicasets.apps statefulsets.apps
approval: certificatesigningrequests.certificates.k8s.io
token: serviceaccounts
finalize: namespaces
binding: pods
eviction: pods
ephemeralcontainers: pods
resize: pods
exec: pods
attach: pods
portforward: pods
proxy: pods services
"""


class AdmittedResources(msgspec.Struct, frozen=True):
    """The resources that admission sees. `aggregated` are the groups of other API servers."""

    # Group, resource and subresource.
    resources: frozenset[tuple[str, str, str]]
    aggregated: frozenset[str] = frozenset()

    def covers(self, attributes: Attributes) -> bool:
        """Whether admission is asked about the object of a request, and recognizes the request."""
        group, resource, subresource = attributes.group, attributes.resource, attributes.subresource
        if not attributes.supports_conditions or group in self.aggregated:
            return False
        if (group, resource, subresource) not in self.resources:
            return False
        # To admission, a proxied delete, for example, is a CONNECT, which would be judged as a get or a create.
        is_connect = not group and attributes.combined_resource in CONNECT_RESOURCES
        return not is_connect or attributes.verb in CONNECT_VERBS


def admitted_resources(snapshot: Snapshot) -> AdmittedResources:
    """Return what admission sees on the API server that has the definitions and APIServices of a snapshot."""
    definitions = snapshot.of_kind("apiextensions.k8s.io", "CustomResourceDefinition")
    defined = frozenset(entry for definition in definitions for entry in _defined(definition.spec))
    aggregated = frozenset(
        group
        for service in snapshot.of_kind("apiregistration.k8s.io", "APIService")
        if service.spec.get("service") and isinstance(group := service.spec.get("group"), str) and group
    )
    if not defined and not aggregated:
        return OF_KUBERNETES
    return AdmittedResources(OF_KUBERNETES.resources | defined, aggregated)


def _defined(spec: Any) -> Iterator[tuple[str, str, str]]:
    names = spec.get("names")
    group, plural = spec.get("group"), names.get("plural") if isinstance(names, dict) else None
    if not isinstance(group, str) or not isinstance(plural, str) or group in UNSEEN_GROUPS:
        return
    for version in list_of_maps(spec.get("versions")):
        if version.get("served") is not True:
            continue
        yield group, plural, ""
        subresources = version.get("subresources")
        if isinstance(subresources, dict):
            for subresource in ("status", "scale"):
                if isinstance(subresources.get(subresource), dict):
                    yield group, plural, subresource


def _of_kubernetes() -> Iterator[tuple[str, str, str]]:
    for served in BUILT_IN:
        yield served.group, served.plural, ""
    for name in _NOT_BY_DEFAULT.split():
        yield *_group_and_resource(name), ""
    subresource = ""
    for word in _SUBRESOURCES.split():
        if word.endswith(":"):
            subresource = word[:-1]
        else:
            yield *_group_and_resource(word), subresource


def _group_and_resource(name: str) -> tuple[str, str]:
    resource, _, group = name.partition(".")
    return group, resource


OF_KUBERNETES: Final = AdmittedResources(
    frozenset(entry for entry in _of_kubernetes() if entry[0] not in UNSEEN_GROUPS)
)
