"""Kinds, found by the apiVersion and kind of an object. A definition is read with the first object of its kind.

`data/<group>/<Kind>.json` is the CustomResourceDefinition of a kind, with Tierwall's own keywords (`resources.schema`).
Kinds that are built into Kubernetes have the same form, with the checks of its Go validation:

* rbac: `pkg/apis/rbac/validation/validation.go`; Go reads a missing string as an empty one, so the defaults are empty;
* NetworkPolicy: `pkg/apis/networking/validation/validation.go`; bits of a CIDR beyond its prefix are allowed and
  masked, as an API server without strict IP validation does;
* AuthorizationConfiguration: apiserver's `ValidateAuthorizationConfiguration`; the type `CEL` and the field
  `failureMode` are Tierwall's own;
* CustomResourceDefinition: `pkg/apis/apiextensions/validation/validation.go`; schemas are judged by
  `resources.definition`;
* workloads, pods, nodes, Services: only read.

v1alpha1 of the administrators' policies takes two dialects: the flat peers that shipped from v0.1.3 on (`namespaces` is
a label selector) and the nested ones of KEP-2091 and v0.1.0 to v0.1.2. A requirement that stands only in their prose,
not in a CRD, gives a warning. AccessPolicy exists in three generations, each as `XAccessPolicy`, the name in the CRDs,
and as `AccessPolicy`, the name in the proposal.
"""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Literal

import msgspec
from msgspec import Struct

from tierwall.resources.schema import Schema, SchemaReader

Scope = Literal["Namespaced", "Cluster", "None"]  # "None": a configuration file, not an object of an API server
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
    strict: bool = True  # an unknown field is an error; kinds that Tierwall only reads tolerate it
    is_crd: bool = True
    storage: bool = True  # the version of a CRD in which objects are stored
    served: bool = True
    status_subresource: bool = False
    installed: bool = False  # defined by a CustomResourceDefinition among the objects
    keywords: Mapping[str, Any] = {}  # the schema as written in the definition
    reader: SchemaReader = _READER

    @cached_property
    def schema(self) -> Schema:
        """The schema of the whole object, without apiVersion, kind and metadata, which all kinds share."""
        return self.reader.read(self.keywords)

    @property
    def description(self) -> str:
        """The purpose of the kind."""
        description: str = self.keywords.get("description", "")
        return description

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version


def read_kinds(definition: Mapping[str, Any], *, installed: bool = False) -> Iterator[Kind]:
    """Yield every version of the kind that a CustomResourceDefinition or a file of `kinds/data` defines."""
    spec = definition["spec"]
    names = spec["names"]
    # Tierwall's own keywords mean nothing in an installed definition.
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
            keywords=version["schema"]["openAPIV3Schema"],
            reader=reader,
        )


_DATA = __file__.removesuffix("registry.py") + "data"
_KINDS: Mapping[str, tuple[str, ...]] = {
    "networking.k8s.io": ("NetworkPolicy",),
    "policy.networking.k8s.io": ("AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"),
    "": ("Namespace", "Node", "Pod", "ReplicationController", "Service"),
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
    "tierwall.io": ("ClusterAuthorizationPolicy", "AuthorizationPolicy", "NodeReport", "PolicyTest", "Snapshot"),
}
# Kinds of the objects seen so far, by apiVersion and kind.
_seen: dict[tuple[str, str], Kind] = {}


def read_data(name: str) -> Any:
    """Return the content of a file of `data`."""
    with open(f"{_DATA}/{name}", "rb") as file:
        return msgspec.json.decode(file.read())


@cache
def built_in_definition(group: str, kind: str) -> Mapping[str, Any]:
    """Return the built-in definition of a kind."""
    definition: Mapping[str, Any] = read_data(f"{group or 'core'}/{kind}.json")
    return definition


@cache
def versions_of(group: str, kind: str) -> Mapping[str, Kind]:
    """Return the versions of a built-in kind by apiVersion; none if the kind is unknown."""
    if kind not in _KINDS.get(group, ()):
        return {}
    return {version.api_version: version for version in read_kinds(built_in_definition(group, kind))}


def all_kinds() -> Iterator[Kind]:
    """Yield every built-in kind, group by group, in a fixed order."""
    for group, kinds in _KINDS.items():
        for kind in kinds:
            yield from versions_of(group, kind).values()


def find_kind(api_version: object, kind: object) -> Kind | None:
    """Return the built-in kind of objects with this apiVersion and kind, or None if it is unknown."""
    if not isinstance(api_version, str) or not isinstance(kind, str):
        return None
    known = _seen.get((api_version, kind))
    if known is None:
        group = api_version.rpartition("/")[0]
        known = versions_of(group, kind).get(api_version) if kind in _KINDS.get(group, ()) else None
        if known is not None:
            _seen[api_version, kind] = known
    return known


def judged_kinds() -> dict[str, tuple[str, ...]]:
    """Return the names of all built-in kinds by group."""
    return dict(_KINDS)


@cache
def needs_group(group: str, kind: str) -> bool:
    """Whether a reference to a kind gives its group: Tierwall has a kind of that name, but in another group."""
    return not is_built_in(group, kind) and any(kind in kinds for kinds in _KINDS.values())


def is_built_in(group: str, kind: str) -> bool:
    """Whether Tierwall knows a kind, in whatever version."""
    return kind in _KINDS.get(group, ())


def schema_of(api_version: str, kind: str, *path: str) -> Schema:
    """Return the schema of a built-in kind, or of its field at `path`."""
    version = find_kind(api_version, kind)
    if version is None:
        raise LookupError(f"{api_version} {kind} is not a kind that Tierwall knows")
    schema = version.schema.at(*path)
    if schema is None:
        raise LookupError(f"{kind} does not have the field {'.'.join(path)}")
    return schema
