"""The statuses that objects should have, as plain values: computed without a server, written by `status_writer`.

Times are not part of it. Whoever writes keeps the `lastTransitionTime` of a condition whose status stays, and never
writes over a higher `observedGeneration` (docs/controller.md#status).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from tierwall.resources.resource import Identity

CONTROLLER = "tierwall.io/controller"
# The manager of the fields that are written by server-side apply.
FIELD_MANAGER = "tierwall"
# The most entries of `status.ancestors`, and bytes of a message.
MAX_ANCESTORS = 16
MAX_MESSAGE_BYTES = 1024
# The fields of `ancestorRef` or `parentRef`, sorted, without those that are absent.
RefFields: TypeAlias = tuple[tuple[str, str | int], ...]


class WantedCondition(NamedTuple):
    """A condition without its time. Its `observedGeneration` is that of the status."""

    type: str
    status: bool
    reason: str
    message: str


class WantedAncestor(NamedTuple):
    """Our entry of `status.ancestors` of a policy, or of `status.parents` of a route, with all of its conditions."""

    ref: RefFields
    conditions: tuple[WantedCondition, ...]

    @property
    def ref_document(self) -> dict[str, str | int]:
        """`ancestorRef` or `parentRef`."""
        return dict(self.ref)


class WantedListener(NamedTuple):
    """An entry of `status.listeners` of a Gateway."""

    name: str
    supported_kinds: tuple[tuple[str, str], ...]
    attached_routes: int
    conditions: tuple[WantedCondition, ...]


class DesiredStatus(NamedTuple):
    """The status that one object should have. Parts that are None stay as they are.

    `conditions`, `listeners` and `fields` (such as `addresses` and `supportedFeatures`) are written by server-side
    apply: a condition of ours that is not among them goes away. `ancestors` (`parents` of routes) is an atomic list of
    several controllers: exactly these entries have our `controllerName`, and the entries of others stay as they are.
    """

    identity: Identity
    api_version: str
    uid: str
    generation: int
    conditions: tuple[WantedCondition, ...] | None = None
    ancestors: tuple[WantedAncestor, ...] | None = None
    listeners: tuple[WantedListener, ...] | None = None
    fields: Mapping[str, Any] | None = None
    # `ancestors` or `parents`.
    list_field: str = "ancestors"
