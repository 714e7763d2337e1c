"""What is unknown in the first phase and given in the second (KEP-5681, "ConditionData").

A part that is not given is null, `operation` too. `request.name` of a create without a name is the name of the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tierwall.api.attributes import Attributes

# The CEL variables of the second phase; always unknown in the first, whatever the verb.
UNKNOWN = ("object", "oldObject", "options", "operation", "namespaceObject", "impersonatedRequest")


class ConditionData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data that conditions are about. Values are JSON trees and are never changed."""

    operation: str | None = None
    object: Any = None
    old_object: Any = None
    options: Any = None
    namespace_object: Any = None
    impersonated_request: Any = None
    # Who asks, for checks through `authorizer`; a condition cannot read it.
    requester: Attributes | None = None

    @classmethod
    def of(cls, question: Mapping[str, Any], requester: Attributes | None = None) -> ConditionData | None:
        """The data of a question, or None if it has none."""
        if not any(key in question for key in UNKNOWN):
            return None
        return cls(
            operation=question.get("operation"),
            object=question.get("object"),
            old_object=question.get("oldObject"),
            options=question.get("options"),
            namespace_object=question.get("namespaceObject"),
            impersonated_request=question.get("impersonatedRequest"),
            requester=requester,
        )

    @property
    def name(self) -> str:
        """`object.metadata.name` if that is a string, else nothing."""
        metadata = self.object.get("metadata") if isinstance(self.object, Mapping) else None
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        return name if isinstance(name, str) else ""

    def variables(self) -> dict[str, Any]:
        """The variables of a CEL condition; of `request` only the name is left open by the first phase."""
        return {
            "object": self.object,
            "oldObject": self.old_object,
            "options": self.options,
            "operation": self.operation,
            "namespaceObject": self.namespace_object,
            "impersonatedRequest": self.impersonated_request,
            "request": {"name": self.name},
        }
