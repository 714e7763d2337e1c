"""A kind: a schema and what the API server knows about it (group, scope, names, whether it is a CRD)."""

from typing import Literal

from msgspec import Struct

from tierwall.resources.schema import Schema

Scope = Literal["Namespaced", "Cluster", "None"]  # "None": a configuration file, no object of an API server
NameFormat = Literal["k8s-long-name", "k8s-short-name", "k8s-path-segment-name", "k8s-service-name", ""]


class Column(Struct, frozen=True):
    """A column of `kubectl get` (additionalPrinterColumns)."""

    name: str
    type: str
    json_path: str


class Kind(Struct, frozen=True, kw_only=True):
    """One version of one kind. `schema` is the whole object but for apiVersion, kind and metadata, which all share."""

    group: str
    version: str
    kind: str
    plural: str
    schema: Schema
    scope: Scope = "Namespaced"
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    name_format: NameFormat = "k8s-long-name"
    strict: bool = True  # an unknown field is an error; kinds that are only read tolerate it
    is_crd: bool = True
    storage: bool = True  # of several versions of one CRD, the one that is stored
    served: bool = True
    status_subresource: bool = False
    description: str = ""

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        """The kind of a list of these objects."""
        return f"{self.kind}List"

    @property
    def singular(self) -> str:
        """The lower-case name for one object."""
        return self.kind.lower()
