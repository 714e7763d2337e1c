"""A kind: a schema and what the API server knows about it (group, scope, names, whether it is a CRD)."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct

from tierwall.resources.schema import Reader, Schema

Scope = Literal["Namespaced", "Cluster", "None"]  # "None": a configuration file, no object of an API server
NameFormat = Literal["k8s-long-name", "k8s-short-name", "k8s-path-segment-name", "k8s-service-name", ""]


_READER = Reader({})


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
    reader: Reader = _READER

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
    reader = Reader({} if installed else definition.get("x-tierwall-fragments", {}), installed=installed)
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
