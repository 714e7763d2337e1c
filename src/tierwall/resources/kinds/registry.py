"""Kinds, and finding one by the apiVersion and kind of an object. Its definition is read when an object of it is met.

`data/<group>/<Kind>.json` is the CustomResourceDefinition of a kind, with words of our own (`resources.schema`). Kinds
that Kubernetes has built in are written in the same form, with the checks of its Go validation:

* rbac: `pkg/apis/rbac/validation/validation.go`; Go reads a missing text as an empty one, so the defaults are empty;
* NetworkPolicy: `pkg/apis/networking/validation/validation.go`; bits of a CIDR beyond its prefix are let through and
  masked, as an API server without strict IP validation does;
* AuthorizationConfiguration: apiserver's `ValidateAuthorizationConfiguration`; the type `CEL` and the field
  `failureMode` are Tierwall's own;
* CustomResourceDefinition: `pkg/apis/apiextensions/validation/validation.go`; schemas are judged by
  `resources.definition`;
* workloads, pods, nodes, Services: only read.

v1alpha1 of the administrators' policies takes two dialects: the flat peers that shipped from v0.1.3 on (`namespaces` is
a label selector) and the nested ones of KEP-2091 and v0.1.0 to v0.1.2. What their prose asks for but no CRD enforces is
a warning. AccessPolicy exists in three generations, each as `XAccessPolicy`, as the CRDs spell it, and as
`AccessPolicy`, as the proposal does.
"""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Literal

import msgspec
from msgspec import Struct

from tierwall.core.diagnostics import near_miss
from tierwall.resources.schema import Schema, SchemaReader

Scope = Literal["Namespaced", "Cluster", "None"]  # "None": a configuration file, no object of an API server
NameFormat = Literal["k8s-long-name", "k8s-short-name", "k8s-path-segment-name", "k8s-service-name", ""]
_READER = SchemaReader({})


class Kind(Struct, frozen=True, eq=False, kw_only=True, dict=True):
    """One version of one kind."""

    group: str
    version: str
    kind: str
    plural: str
    scope: Scope = "Namespaced"
    short_names: tuple[str, ...] = ()
    name_format: NameFormat = "k8s-long-name"
    strict: bool = True  # an unknown field is an error; kinds that are only read tolerate it
    is_crd: bool = True
    storage: bool = True  # of several versions of one CRD, the one that is stored
    served: bool = True
    status_subresource: bool = False
    installed: bool = False  # defined by somebody else's CustomResourceDefinition, which is among the objects
    words: Mapping[str, Any] = {}  # the schema as the definition says it
    reader: SchemaReader = _READER

    @cached_property
    def schema(self) -> Schema:
        """The whole object but for apiVersion, kind and metadata, which all share."""
        return self.reader.read(self.words)

    @property
    def description(self) -> str:
        """What the kind is for."""
        description: str = self.words.get("description", "")
        return description

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version


def read_kinds(definition: Mapping[str, Any], *, installed: bool = False) -> Iterator[Kind]:
    """Every version of the kind that a CustomResourceDefinition, or a file of `kinds/data`, defines."""
    spec = definition["spec"]
    names = spec["names"]
    # Words of our own mean nothing in what somebody else wrote.
    facts = {} if installed else definition.get("x-tierwall", {})
    reader = SchemaReader({} if installed else definition.get("x-tierwall-fragments", {}), installed=installed)
    for version in spec["versions"]:
        yield Kind(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            scope=spec["scope"],
            short_names=tuple(names.get("shortNames") or ()),
            name_format=facts.get("nameFormat", "k8s-long-name"),
            strict=not facts.get("lenient", False),
            is_crd=not facts.get("native", False),
            storage=version["storage"],
            served=version["served"],
            status_subresource="status" in (version.get("subresources") or {}),
            installed=installed,
            words=version["schema"]["openAPIV3Schema"],
            reader=reader,
        )


_DATA = __file__.removesuffix("registry.py") + "data"
_KINDS: Mapping[str, tuple[str, ...]] = {
    "networking.k8s.io": ("NetworkPolicy",),
    "policy.networking.k8s.io": ("AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"),
    "": ("Namespace", "Node", "Pod", "Service"),
    "apps": ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"),
    "batch": ("Job", "CronJob"),
    "gateway.networking.k8s.io": ("GatewayClass", "Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute", "ReferenceGrant"),
    "gateway.networking.x-k8s.io": ("XListenerSet",),
    "agentic.prototype.x-k8s.io": ("XAccessPolicy", "AccessPolicy", "XBackend"),
    "agentic.networking.x-k8s.io": ("XAccessPolicy", "AccessPolicy", "XBackend"),
    "agentgateway.dev": ("AgentgatewayPolicy", "AgentgatewayBackend", "AgentgatewayModel"),
    "rbac.authorization.k8s.io": ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"),
    "apiserver.config.k8s.io": ("AuthorizationConfiguration",),
    "apiextensions.k8s.io": ("CustomResourceDefinition",),
    "tierwall.io": ("ClusterAuthorizationPolicy", "AuthorizationPolicy", "PolicyTest"),
}
# Of these groups every kind is known: another one is a mistake, never somebody else's object.
_WHOLE_GROUPS = frozenset({"policy.networking.k8s.io", "rbac.authorization.k8s.io", "tierwall.io"})

# Kinds whose objects have been met, by apiVersion and kind.
_met: dict[tuple[str, str], Kind] = {}


def read_data(name: str) -> Any:
    """What a file of `data` holds."""
    with open(f"{_DATA}/{name}", "rb") as file:
        return msgspec.json.decode(file.read())


@cache
def built_in_definition(group: str, kind: str) -> Mapping[str, Any]:
    """The definition of a kind, which is one of ours."""
    definition: Mapping[str, Any] = read_data(f"{group or 'core'}/{kind}.json")
    return definition


@cache
def versions_of(group: str, kind: str) -> Mapping[str, Kind]:
    """The versions of a kind by apiVersion; none if the kind is not ours."""
    if kind not in _KINDS.get(group, ()):
        return {}
    return {version.api_version: version for version in read_kinds(built_in_definition(group, kind))}


def all_kinds() -> Iterator[Kind]:
    """Every kind, group by group, in a fixed order."""
    for group, kinds in _KINDS.items():
        for kind in kinds:
            yield from versions_of(group, kind).values()


def find_kind(api_version: object, kind: object) -> Kind | None:
    """The kind of an object that has this apiVersion and kind, or None if it is not ours to judge."""
    if not isinstance(api_version, str) or not isinstance(kind, str):
        return None
    known = _met.get((api_version, kind))
    if known is None:
        group = api_version.rpartition("/")[0]
        known = versions_of(group, kind).get(api_version) if kind in _KINDS.get(group, ()) else None
        if known is not None:
            _met[api_version, kind] = known
    return known


def schema_of(api_version: str, kind: str, *path: str) -> Schema:
    """The schema of one of our kinds, or of the field of it that a path of names leads to."""
    version = find_kind(api_version, kind)
    if version is None:
        raise LookupError(f"{api_version} {kind} is not a kind that Tierwall knows")
    schema = version.schema.at(*path)
    if schema is None:
        raise LookupError(f"{kind} does not have the field {'.'.join(path)}")
    return schema


def misspelled_kind_hint(api_version: str, kind: str) -> str | None:
    """If an object was surely meant to be of one of our kinds but is not, a hint that says which; else None."""
    group = api_version.rpartition("/")[0]
    names = _KINDS.get(group, ())
    if kind in names:
        return f"{kind} is known in {' and '.join(f'`{version}`' for version in versions_of(group, kind))}"
    if group in _WHOLE_GROUPS or kind.lower() in {name.lower() for name in names}:
        return near_miss(kind, names)
    return None
