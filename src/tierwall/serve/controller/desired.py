"""The statuses that objects should have, as plain values: what the controller computes, and `status_writer` writes.

They have no times: `lastTransitionTime` is that of the API server's object for as long as `status` stays the same, so
only the writer knows it. `observedGeneration` of every condition is `DesiredStatus.generation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct

from tierwall.resources.resource import Identity, Resource
from tierwall.serve.controller.envoy_report import generation_of

CONTROLLER_NAME = "tierwall.io/controller"
# Where an object has one list of conditions for all controllers, the types of ours begin like this.
CONDITION_PREFIX = "tierwall.io/"
MAX_MESSAGE_BYTES = 1024
# A condition of Gateways of ours that is there only while it is True.
INSECURE_FALLBACK = "InsecureFrontendValidationMode"


class WantedCondition(Struct, frozen=True):
    """A condition. `status` is `True`, `False` or `Unknown`."""

    type: str
    status: str
    reason: str
    message: str = ""


class WantedRef(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The `ancestorRef` of a policy or the `parentRef` of a route; empty parts are left out."""

    group: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    section_name: str = ""
    port: int = 0


class WantedAncestor(Struct, frozen=True):
    """Our entry of `status.ancestors` of a policy, or of `status.parents` of a route."""

    ref: WantedRef
    conditions: tuple[WantedCondition, ...]


class WantedListener(Struct, frozen=True):
    """An entry of `status.listeners` of a Gateway; `kinds` are the group and kind of the routes that it takes."""

    name: str
    attached_routes: int
    kinds: tuple[tuple[str, str], ...]
    conditions: tuple[WantedCondition, ...]


class DesiredStatus(Struct, frozen=True, kw_only=True):
    """The status of one object, as far as it is ours. A part that is None is left as it is; an empty one is emptied.

    `uid` and `generation` are those of the object that was judged: nothing is written on another one.
    """

    identity: Identity
    version: str
    uid: str
    generation: int
    # `status.conditions`. Of kinds that every controller may write, only types with `CONDITION_PREFIX`.
    conditions: tuple[WantedCondition, ...] | None = None
    # `status.ancestors` of policies: our entries.
    ancestors: tuple[WantedAncestor, ...] | None = None
    # `status.parents` of routes: our entries.
    parents: tuple[WantedAncestor, ...] | None = None
    # Of Gateways of our class: listeners, and addresses with their types.
    listeners: tuple[WantedListener, ...] | None = None
    addresses: tuple[tuple[str, str], ...] | None = None
    # How many ListenerSets are attached to it.
    attached_listener_sets: int | None = None
    # Of our GatewayClass.
    supported_features: tuple[str, ...] | None = None

    @classmethod
    def of(cls, resource: Resource, **parts: Any) -> DesiredStatus:
        """Return the status of an object with these parts."""
        uid, generation = generation_of(resource)
        return cls(identity=resource.identity, version=resource.version, uid=uid, generation=generation, **parts)


# Tells what engines say about a policy as it is now, as its `Programmed` condition without prefix; None if no engine
# must hold it. The target is the ancestor of a policy that has one `Programmed` for each.
Programmed: TypeAlias = Callable[[Resource, WantedRef | None], WantedCondition | None]
