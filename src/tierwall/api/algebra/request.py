"""A request: what the first phase knows (`Attributes`), and what the second phase adds (`ConditionData`).

KEP-5681, "Core interface changes", "Feature availability" and "ConditionData". A missing attribute is empty, and no
groups are added; missing data is null, `operation` too. `request.name` of a create without a name is the name of the
object.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from tierwall.core.labels import Requirement

# The operations of admission, by the verbs that write.
OPERATIONS = {
    "create": "CREATE",
    "update": "UPDATE",
    "patch": "UPDATE",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
WRITE_VERBS = frozenset(OPERATIONS)
# Those that select objects; admission sees only those that are deleted.
READ_VERBS = frozenset(("list", "watch"))
COLLECTION_VERBS = READ_VERBS | {"deletecollection"}
CONNECT_VERBS = frozenset(("get", "create"))
CONNECT_RESOURCES = frozenset(
    ("pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy", "nodes/proxy")
)


class ConditionsMode(StrEnum):
    """Whether the caller understands conditions, and which form it wants."""

    NONE = ""
    HUMAN_READABLE = "HumanReadable"
    OPTIMIZED = "Optimized"


class Attributes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. `path` is for non-resource requests, which have empty resource attributes.

    INVARIANT: `gc=False` holds because a request refers to strings and booleans alone.
    """

    user: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    is_resource_request: bool = True
    label_selector: tuple[Requirement, ...] | None = None
    field_selector: tuple[Requirement, ...] | None = None
    conditions_mode: ConditionsMode = ConditionsMode.HUMAN_READABLE

    @property
    def is_name_unknown(self) -> bool:
        """Whether this is a create without a name: only the object tells it."""
        return self.verb == "create" and not self.name

    @property
    def combined_resource(self) -> str:
        """`resource`, or `resource/subresource`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    @property
    def is_connect(self) -> bool:
        """Whether the request goes to a connect handler, which admission sees as CONNECT."""
        return (
            self.is_resource_request
            and not self.group
            and self.verb in CONNECT_VERBS
            and self.combined_resource in CONNECT_RESOURCES
        )

    @property
    def is_about_a_collection(self) -> bool:
        """Whether this is about all objects that its selectors select."""
        return self.is_resource_request and self.verb in COLLECTION_VERBS and not self.subresource

    @property
    def has_selectors(self) -> bool:
        """Whether it selects a part of the objects."""
        return self.label_selector is not None or self.field_selector is not None

    @property
    def supports_conditions(self) -> bool:
        """Whether conditions can be enforced: admission runs, on exactly one kind of object."""
        if not self.is_resource_request or "*" in self.group or "*" in self.version or "*" in self.resource:
            return False
        return self.verb in WRITE_VERBS or self.is_connect

    def user_info(self) -> dict[str, Any]:
        """Return `request.userInfo`."""
        return {
            "username": self.user,
            "groups": list(self.groups),
            "uid": self.uid,
            "extra": {key: list(values) for key, values in self.extra},
        }

    def request(self) -> dict[str, Any]:
        """Return the CEL variable `request`; it has selectors only if the request does."""
        out: dict[str, Any] = {
            "verb": self.verb,
            "apiGroup": self.group,
            "apiVersion": self.version,
            "resource": self.resource,
            "subresource": self.subresource,
            "namespace": self.namespace,
            "name": self.name,
            "path": self.path,
            "userInfo": self.user_info(),
        }
        if self.label_selector is not None:
            out["labelSelector"] = _selector(self.label_selector)
        if self.field_selector is not None:
            out["fieldSelector"] = _selector(self.field_selector)
        return out

    def sentence(self, modal: str = "") -> str:
        """Write the request in words: "`alice` create pods in namespace `dev`", or "`alice` may create …"."""
        groups = " and ".join(f"`{group}`" for group in self.groups)
        nobody = f"a member of {groups}" if groups else "a user without a name"
        who = f"`{self.user}`" if self.user else nobody
        verb = f"{modal} {self.verb or 'do'}" if modal else self.verb
        if not self.is_resource_request:
            return f"{who} {verb} {self.path}"
        group = f".{self.group}" if self.group else ""
        subresource = f"/{self.subresource}" if self.subresource else ""
        name = f" `{self.name}`" if self.name else ""
        where = f" in namespace `{self.namespace}`" if self.namespace else ""
        return f"{who} {verb} {self.resource or 'nothing'}{group}{subresource}{name}{where}"


def hashable_extra(value: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Turn `userInfo.extra` into a hashable value that does not depend on the order of keys."""
    return tuple(sorted((key, tuple(values)) for key, values in value.items()))


def _selector(requirements: tuple[Requirement, ...]) -> list[dict[str, Any]]:
    return [
        {"key": requirement.key, "operator": requirement.operator, "values": list(requirement.values)}
        for requirement in requirements
    ]


# The CEL variables of the second phase; always unknown in the first, whatever the verb.
UNKNOWN = ("object", "oldObject", "options", "operation", "namespaceObject", "impersonatedRequest")


class ConditionData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data that conditions read. Values are JSON trees and never change.

    A namespace that exists and is not known is UNSET: whatever reads it fails.
    """

    operation: str | None = None
    object: Any = None
    old_object: Any = None
    options: Any = None
    namespace_object: Any = None
    impersonated_request: Any = None
    # The request that is decided, for checks through `authorizer`; conditions cannot read it.
    requester: Attributes | None = None

    @property
    def name(self) -> str:
        """`object.metadata.name`, or an empty string if that is not a string."""
        metadata = self.object.get("metadata") if isinstance(self.object, Mapping) else None
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        return name if isinstance(name, str) else ""

    def variables(self) -> dict[str, Any]:
        """Return the variables of a CEL condition; of `request`, only the name can be unknown in the first phase."""
        variables = {
            "object": self.object,
            "oldObject": self.old_object,
            "options": self.options,
            "operation": self.operation,
            "impersonatedRequest": self.impersonated_request,
            "request": {"name": self.name},
        }
        if self.namespace_object is not msgspec.UNSET:
            variables["namespaceObject"] = self.namespace_object
        return variables
