"""The resources that API servers have by themselves, by every name `kubectl` knows them by (`kubectl api-resources`).

A request names a resource by plural, group and version; people write `deploy`, `deployment` or `deployments`. What a
cluster adds comes from its CustomResourceDefinitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tierwall.resources.snapshot import Snapshot

# Verbs of requests for resources and paths, and those that authorizers ask about (RBAC, "escalate", "bind", …).
VERBS: Final = frozenset(
    [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        "proxy",
        "head",
        "post",
        "put",
        "options",
        "use",
        "bind",
        "escalate",
        "impersonate",
        "approve",
        "sign",
        "attest",
        "*",
    ]
)


class ApiResource(msgspec.Struct, frozen=True):
    """One resource: where it is served, and by which names it goes."""

    plural: str
    group: str
    version: str
    others: tuple[str, ...] = ()

    def is_called(self, name: str) -> bool:
        """Whether this is one of its names."""
        return name == self.plural or name in self.others


# Group and version, then `plural=singular,short,…`.
_TABLE: Final = """
/v1 bindings=binding componentstatuses=componentstatus,cs configmaps=configmap,cm endpoints=ep events=event,ev
 limitranges=limitrange,limits namespaces=namespace,ns nodes=node,no persistentvolumeclaims=persistentvolumeclaim,pvc
 persistentvolumes=persistentvolume,pv pods=pod,po podtemplates=podtemplate
 replicationcontrollers=replicationcontroller,rc resourcequotas=resourcequota,quota secrets=secret
 serviceaccounts=serviceaccount,sa services=service,svc
admissionregistration.k8s.io/v1 mutatingwebhookconfigurations=mutatingwebhookconfiguration
 validatingadmissionpolicies=validatingadmissionpolicy
 validatingadmissionpolicybindings=validatingadmissionpolicybinding
 validatingwebhookconfigurations=validatingwebhookconfiguration
apiextensions.k8s.io/v1 customresourcedefinitions=customresourcedefinition,crd,crds
apiregistration.k8s.io/v1 apiservices=apiservice
apps/v1 controllerrevisions=controllerrevision daemonsets=daemonset,ds deployments=deployment,deploy
 replicasets=replicaset,rs statefulsets=statefulset,sts
authentication.k8s.io/v1 selfsubjectreviews=selfsubjectreview tokenreviews=tokenreview
authorization.k8s.io/v1 localsubjectaccessreviews=localsubjectaccessreview
 selfsubjectaccessreviews=selfsubjectaccessreview selfsubjectrulesreviews=selfsubjectrulesreview
 subjectaccessreviews=subjectaccessreview
autoscaling/v2 horizontalpodautoscalers=horizontalpodautoscaler,hpa
batch/v1 cronjobs=cronjob,cj jobs=job
certificates.k8s.io/v1 certificatesigningrequests=certificatesigningrequest,csr
coordination.k8s.io/v1 leases=lease
discovery.k8s.io/v1 endpointslices=endpointslice
events.k8s.io/v1 events=event,ev
flowcontrol.apiserver.k8s.io/v1 flowschemas=flowschema prioritylevelconfigurations=prioritylevelconfiguration
networking.k8s.io/v1 ingressclasses=ingressclass ingresses=ingress,ing ipaddresses=ipaddress,ip
 networkpolicies=networkpolicy,netpol servicecidrs=servicecidr
node.k8s.io/v1 runtimeclasses=runtimeclass
policy/v1 poddisruptionbudgets=poddisruptionbudget,pdb
rbac.authorization.k8s.io/v1 clusterrolebindings=clusterrolebinding clusterroles=clusterrole rolebindings=rolebinding
 roles=role
resource.k8s.io/v1 deviceclasses=deviceclass resourceclaims=resourceclaim
 resourceclaimtemplates=resourceclaimtemplate resourceslices=resourceslice
scheduling.k8s.io/v1 priorityclasses=priorityclass,pc
storage.k8s.io/v1 csidrivers=csidriver csinodes=csinode csistoragecapacities=csistoragecapacity
 storageclasses=storageclass,sc volumeattachments=volumeattachment
"""


def _built_in() -> Iterator[ApiResource]:
    group = version = ""
    for word in _TABLE.split():
        plural, equals, others = word.partition("=")
        if equals:
            yield ApiResource(plural, group, version, tuple(others.split(",")))
        else:
            group, _, version = word.rpartition("/")


BUILT_IN: Final = tuple(_built_in())


def api_resources(snapshot: Snapshot) -> tuple[ApiResource, ...]:
    """All resources: those of Kubernetes first, then those that CustomResourceDefinitions add."""
    definitions = snapshot.of_kind("apiextensions.k8s.io", "CustomResourceDefinition")
    return BUILT_IN + tuple(one for definition in definitions for one in _defined(definition.value.get("spec")))


def _defined(spec: Any) -> Iterator[ApiResource]:
    # Whether the definition is right is not asked here: what it lacks is merely not known.
    if not isinstance(spec, dict) or not isinstance(names := spec.get("names"), dict):
        return
    plural, group, versions = names.get("plural"), spec.get("group"), spec.get("versions")
    if not isinstance(plural, str) or not isinstance(group, str):
        return
    short = names.get("shortNames")
    others = [names.get("singular"), *(short if isinstance(short, list) else ())]
    served = [one for one in versions if isinstance(one, dict)] if isinstance(versions, list) else []
    stored = next((one.get("name") for one in served if one.get("storage") is True), None)
    version = stored if isinstance(stored, str) else ""
    yield ApiResource(plural, group, version, tuple(name for name in others if isinstance(name, str)))
