"""Complete questions that are written as for kubectl to what an API server is asked.

`deploy`, `deployments.apps` and `pods/exec` name a resource. Its group and version come from Kubernetes
(`kubectl api-resources`), from a CustomResourceDefinition of the snapshot, or from Tierwall's own definitions. Every
question is read like this (`expand_short_name`), except that a plural is asked as written: `resource: deployments`
without a group is about the core group. `explain api` and `can-i` complete plurals too (`resolve`), and programs may do
the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from tierwall.api.algebra.request import OPERATIONS
from tierwall.core.diagnostics import near_miss
from tierwall.core.words import with_hint
from tierwall.resources.kinds.served import has_cluster_scope
from tierwall.resources.resource import list_of_maps
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.api.question import ApiQuestion


_REQUEST_VERBS: Final = (*OPERATIONS, "get", "list", "watch", "proxy", "head", "post", "put", "options")
# Verbs that no request has, only checks of authorizers.
_CHECKED_VERBS: Final = ("use", "bind", "escalate", "impersonate", "approve", "sign", "attest", "*")
VERBS: Final = frozenset(_REQUEST_VERBS + _CHECKED_VERBS)
# Constrained impersonation asks with verbs such as `impersonate:user-info` and `impersonate-on:user-info:create`.
_IMPERSONATION: Final = ("impersonate:", "impersonate-on:")
# What only impersonation is about: no API server serves them.
_IMPERSONATED: Final = frozenset(("users", "groups", "uids", "userextras"))


class ApiResource(msgspec.Struct, frozen=True):
    """One resource: its names, and the group and version that serve it."""

    plural: str
    group: str
    version: str
    other_names: tuple[str, ...] = ()
    # Of CustomResourceDefinitions only.
    scope: str = ""


# Group and version, then `plural=singular,short,…`.
_OF_KUBERNETES: Final = """
/v1 bindings=binding componentstatuses=componentstatus,cs configmaps=configmap,cm endpoints=ep events=event,ev
 limitranges=limitrange,limits namespaces=namespace,ns nodes=node,no persistentvolumeclaims=persistentvolumeclaim,pvc
 persistentvolumes=persistentvolume,pv pods=pod,po podtemplates=podtemplate
 replicationcontrollers=replicationcontroller,rc resourcequotas=resourcequota,quota secrets=secret
 serviceaccounts=serviceaccount,sa services=service,svc
admissionregistration.k8s.io/v1 mutatingadmissionpolicies=mutatingadmissionpolicy
 mutatingadmissionpolicybindings=mutatingadmissionpolicybinding
 mutatingwebhookconfigurations=mutatingwebhookconfiguration
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
 storageclasses=storageclass,sc volumeattachments=volumeattachment volumeattributesclasses=volumeattributesclass,vac
"""
# The custom resources that Tierwall judges or writes, in the versions in which they are stored.
_OF_TIERWALL: Final = """
policy.networking.k8s.io/v1alpha1 adminnetworkpolicies=adminnetworkpolicy,anp
 baselineadminnetworkpolicies=baselineadminnetworkpolicy,banp
policy.networking.k8s.io/v1alpha2 clusternetworkpolicies=clusternetworkpolicy,cnp
gateway.networking.k8s.io/v1 gatewayclasses=gatewayclass,gc gateways=gateway,gtw listenersets=listenerset,lset
 httproutes=httproute grpcroutes=grpcroute
gateway.networking.k8s.io/v1beta1 referencegrants=referencegrant,refgrant
gateway.networking.x-k8s.io/v1alpha1 xlistenersets=xlistenerset,lset
agentic.networking.x-k8s.io/v1alpha1 xaccesspolicies=xaccesspolicy accesspolicies=accesspolicy
agentic.networking.x-k8s.io/v0alpha0 xbackends=xbackend
agentic.prototype.x-k8s.io/v0alpha0 xaccesspolicies=xaccesspolicy accesspolicies=accesspolicy xbackends=xbackend
agentgateway.dev/v1alpha1 agentgatewaypolicies=agentgatewaypolicy,agpol agentgatewaybackends=agentgatewaybackend,agbe
 agentgatewaymodels=agentgatewaymodel,agmodel
tierwall.io/v1alpha1 clusterauthorizationpolicies=clusterauthorizationpolicy authorizationpolicies=authorizationpolicy
 nodereports=nodereport
"""


def _read_table(table: str) -> Iterator[ApiResource]:
    group = version = ""
    for word in table.split():
        plural, equals, other_names = word.partition("=")
        if equals:
            yield ApiResource(plural, group, version, tuple(other_names.split(",")))
        else:
            group, _, version = word.rpartition("/")


BUILT_IN: Final = tuple(_read_table(_OF_KUBERNETES))
JUDGED: Final = tuple(_read_table(_OF_TIERWALL))


def may_be_custom(resource: str) -> bool:
    """Whether only CustomResourceDefinitions can tell what a name of a resource means."""
    known = (*BUILT_IN, *JUDGED)
    return bool(resource) and not any(resource in (served.plural, "*", *served.other_names) for served in known)


def api_resources(snapshot: Snapshot) -> tuple[ApiResource, ...]:
    """Return all resources: those of Kubernetes first, then those of CustomResourceDefinitions, then Tierwall's."""
    definitions = snapshot.of_kind("apiextensions.k8s.io", "CustomResourceDefinition")
    defined = [resource for definition in definitions for resource in _defined_resources(definition.value.get("spec"))]
    return (*BUILT_IN, *defined, *JUDGED)


def _defined_resources(spec: Any) -> Iterator[ApiResource]:
    # Admission judges the definition; here, whatever it lacks is just unknown.
    if not isinstance(spec, dict) or not isinstance(names := spec.get("names"), dict):
        return
    plural, group, versions = names.get("plural"), spec.get("group"), spec.get("versions")
    if not isinstance(plural, str) or not isinstance(group, str):
        return
    short = names.get("shortNames")
    other_names = [names.get("singular"), *(short if isinstance(short, list) else ())]
    stored = next((version.get("name") for version in list_of_maps(versions) if version.get("storage") is True), None)
    version = stored if isinstance(stored, str) else ""
    scope = "Cluster" if spec.get("scope") == "Cluster" else "Namespaced"
    yield ApiResource(plural, group, version, tuple(name for name in other_names if isinstance(name, str)), scope)


def is_cluster_scoped(snapshot: Snapshot, group: str, plural: str) -> bool:
    """Whether the objects of a resource are in no namespace; False if that is not known."""
    return any(
        served.scope == "Cluster" or (not served.scope and has_cluster_scope(group, served.other_names))
        for served in api_resources(snapshot)
        if (served.group, served.plural) == (group, plural)
    )


class ResolvedQuestion(NamedTuple):
    """A completed question, and doubts about its verb or resource, which Tierwall does not know."""

    question: ApiQuestion
    doubts: tuple[str, ...]


def expand_short_name(snapshot: Snapshot, question: ApiQuestion) -> ApiQuestion:
    """Replace a short name, a singular or a dotted name of a known resource by its plural, group and version."""
    known = api_resources(snapshot)
    if not question.resource or any(served.plural == question.resource for served in known):
        return question
    return _complete(question, known) or question


def resolve(snapshot: Snapshot, question: ApiQuestion) -> ResolvedQuestion:
    """Complete a question: resource, group, version and subresource from the name, and the operation from the verb.

    A `group`, `version`, `subresource` or `operation` that the question gives is kept, even if it is empty. An unknown
    name is asked as it is written.
    """
    if question.has_data and question.operation is UNSET and question.verb in OPERATIONS:
        question = replace(question, operation=OPERATIONS[question.verb])
    doubts: list[str] = []
    if question.verb not in VERBS and not question.verb.startswith(_IMPERSONATION):
        doubts.append(with_hint(f"unknown verb `{question.verb}`", near_miss(question.verb, VERBS)))
    if question.resource:
        known = api_resources(snapshot)
        completed = _complete(question, known)
        question = completed or _split_name(question)
        is_impersonated = question.verb.startswith("impersonate") and question.resource in _IMPERSONATED
        if completed is None and question.resource != "*" and not is_impersonated:
            doubts.append(_unknown_resource(question, known))
    return ResolvedQuestion(question, tuple(doubts))


def _complete(question: ApiQuestion, known: Iterable[ApiResource]) -> ApiQuestion | None:
    """Complete a question about a known resource; None if the resource is unknown."""
    split = _split_name(question)
    name = split.resource.lower()  # as kubectl does: `Deployment` is `deployment`
    for served in known:
        if (name == served.plural or name in served.other_names) and split.group in (None, served.group):
            version = split.version if split.version is not None else served.version
            return replace(split, resource=served.plural, group=served.group, version=version)
    return None


def _split_name(question: ApiQuestion) -> ApiQuestion:
    """Split a name such as `deployments.v1.apps` or `pods/exec` into its parts."""
    whole, _, subresource = question.resource.partition("/")
    resource, _, rest = whole.partition(".")
    first, _, more = rest.partition(".")
    is_version = len(first) > 1 and first[0] == "v" and first[1].isdigit()
    version, group = (first, more) if is_version else ("", rest)
    return replace(
        question,
        resource=resource,
        group=question.group if question.group is not None else group or None,
        version=question.version if question.version is not None else version or None,
        subresource=question.subresource if question.subresource is not None else subresource or None,
    )


def _unknown_resource(question: ApiQuestion, known: Iterable[ApiResource]) -> str:
    whole = f"{question.resource}.{question.group}" if question.group else question.resource
    names = (f"{served.plural}.{served.group}" for served in known if served.group)
    hint = near_miss(whole, names if "." in whole else (served.plural for served in known))
    return with_hint(f"unknown resource type `{whole}`", hint)
