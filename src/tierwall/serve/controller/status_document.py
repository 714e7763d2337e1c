"""The status of an object with our parts in it as wanted, and everybody else's as they are (docs/controller.md#status).

`status.ancestors` and `status.parents` are lists of several controllers: only entries with our `controllerName` change.
In `status.conditions`, the types that are wanted and those with our prefix are ours. `lastTransitionTime` changes only
when `status` does (Kubernetes API conventions, "Typical status properties").
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tierwall.attach.status import MAX_ANCESTORS
from tierwall.resources.resource import list_of_maps
from tierwall.serve.controller.desired import (
    CONDITION_PREFIX,
    CONTROLLER_NAME,
    INSECURE_FALLBACK,
    DesiredStatus,
    WantedAncestor,
    WantedCondition,
    WantedListener,
    WantedRef,
)

_Maps: TypeAlias = list[Mapping[str, Any]]
# The most entries of `status.parents` (Gateway API, `RouteStatus`).
MAX_PARENTS = 32


def status_with(status: Mapping[str, Any], desired: DesiredStatus, now: str) -> dict[str, Any]:
    """Return a status with our parts as wanted, equal to `status` if they are so already.

    `now` is the `lastTransitionTime` of conditions whose `status` is new.
    """
    out, generation = dict(status), desired.generation
    if desired.conditions is not None:
        types = _our_types(desired)
        _put(out, "conditions", _shared_conditions(status, desired.conditions, types, generation, now))
    if desired.ancestors is not None:
        entries = _entries(status, "ancestors", "ancestorRef", MAX_ANCESTORS, desired.ancestors, generation, now)
        # A status without ancestors is refused.
        out["ancestors"] = entries
    if desired.parents is not None:
        out["parents"] = _entries(status, "parents", "parentRef", MAX_PARENTS, desired.parents, generation, now)
    if desired.listeners is not None:
        _put(out, "listeners", _listeners(status, desired.listeners, generation, now))
    if desired.addresses is not None:
        _put(out, "addresses", [{"type": kind, "value": value} for kind, value in desired.addresses])
    # Releases of the Gateway API without ListenerSets drop the field.
    if desired.attached_listener_sets or ("attachedListenerSets" in out and desired.attached_listener_sets is not None):
        out["attachedListenerSets"] = desired.attached_listener_sets
    if desired.supported_features is not None:
        _put(out, "supportedFeatures", [{"name": name} for name in sorted(desired.supported_features)])
    return out


def our_conditions(status: Mapping[str, Any], desired: DesiredStatus) -> _Maps:
    """Return the conditions of a status that are wanted: what is applied where conditions belong to several."""
    wanted = {condition.type for condition in desired.conditions or ()}
    return [condition for condition in list_of_maps(status.get("conditions")) if condition.get("type") in wanted]


def observed_generation(status: Mapping[str, Any], desired: DesiredStatus) -> int:
    """Return the highest `observedGeneration` of the conditions that are ours; 0 without one."""
    lists: list[Iterable[Mapping[str, Any]]] = []
    if desired.conditions is not None:
        wanted = _our_types(desired)
        conditions = list_of_maps(status.get("conditions"))
        lists.append(condition for condition in conditions if _is_ours(condition, wanted))
    for part, is_wanted in (("ancestors", desired.ancestors is not None), ("parents", desired.parents is not None)):
        if is_wanted:
            entries = (entry for entry in list_of_maps(status.get(part)) if _is_our_entry(entry))
            lists += [list_of_maps(entry.get("conditions")) for entry in entries]
    numbers = (condition.get("observedGeneration") for conditions in lists for condition in conditions)
    return max((number for number in numbers if type(number) is int), default=0)


def _put(out: dict[str, Any], part: str, value: _Maps) -> None:
    """Put a list into a status; an empty one is the same as none."""
    if value or out.get(part):
        out[part] = value


def _our_types(desired: DesiredStatus) -> frozenset[str]:
    """Return the types of conditions that are ours on an object, besides those with our prefix."""
    more = (INSECURE_FALLBACK,) if desired.listeners is not None else ()
    return frozenset((*(condition.type for condition in desired.conditions or ()), *more))


def _shared_conditions(
    status: Mapping[str, Any],
    wanted: tuple[WantedCondition, ...],
    types: frozenset[str],
    generation: int,
    now: str,
) -> _Maps:
    """Return a list of conditions that several controllers share, with ours as wanted and at their places."""
    before = list_of_maps(status.get("conditions"))
    foreign = [condition for condition in before if not _is_ours(condition, types)]
    ours = _conditions([condition for condition in before if _is_ours(condition, types)], wanted, generation, now)
    return _at_their_places(before, [*foreign, *ours], lambda condition: str(condition.get("type")))


def _is_ours(condition: Mapping[str, Any], wanted: frozenset[str]) -> bool:
    name = condition.get("type")
    return isinstance(name, str) and (name in wanted or name.startswith(CONDITION_PREFIX))


def _conditions(
    before: Iterable[Mapping[str, Any]], wanted: Iterable[WantedCondition], generation: int, now: str
) -> _Maps:
    """Return conditions with their times; `before` are those that they replace."""
    known = {condition.get("type"): condition for condition in before}
    return [_condition(known.get(condition.type, {}), condition, generation, now) for condition in wanted]


def _condition(before: Mapping[str, Any], wanted: WantedCondition, generation: int, now: str) -> dict[str, Any]:
    changed = before.get("lastTransitionTime")
    has_time = before.get("status") == wanted.status and isinstance(changed, str) and changed
    return {
        "type": wanted.type,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "observedGeneration": generation,
        "lastTransitionTime": changed if has_time else now,
    }


def _entries(
    status: Mapping[str, Any],
    part: str,
    ref_key: str,
    limit: int,
    wanted: tuple[WantedAncestor, ...],
    generation: int,
    now: str,
) -> _Maps:
    """Return a list of entries of several controllers, with ours as wanted. What does not fit is left out."""
    before = list_of_maps(status.get(part))
    foreign = [entry for entry in before if not _is_our_entry(entry)]
    known = {_ref_key(entry.get(ref_key)): entry for entry in before if _is_our_entry(entry)}
    ours: _Maps = []
    for entry in wanted[: max(limit - len(foreign), 0)]:
        ref = _ref(entry.ref)
        conditions = list_of_maps(known.get(_ref_key(ref), {}).get("conditions"))
        in_order = _at_their_places(
            conditions, _conditions(conditions, entry.conditions, generation, now), lambda each: str(each.get("type"))
        )
        ours.append({ref_key: ref, "controllerName": CONTROLLER_NAME, "conditions": in_order})
    return _at_their_places(before, [*foreign, *ours], lambda entry: _entry_key(entry, ref_key))


def _is_our_entry(entry: Mapping[str, Any]) -> bool:
    return entry.get("controllerName") == CONTROLLER_NAME


def _ref(ref: WantedRef) -> dict[str, Any]:
    """Return a reference as it is written: an API server would replace an absent group by that of Gateways."""
    parts: dict[str, Any] = {"namespace": ref.namespace, "sectionName": ref.section_name, "port": ref.port}
    named = {"group": ref.group, "kind": ref.kind, "name": ref.name}
    return named | {key: value for key, value in parts.items() if value}


def _ref_key(ref: Any) -> str:
    return repr(sorted(ref.items())) if isinstance(ref, dict) else ""


def _entry_key(entry: Mapping[str, Any], ref_key: str) -> str:
    # Entries of others stay in their order, whatever they say.
    return _ref_key(entry.get(ref_key)) if _is_our_entry(entry) else f"foreign {id(entry)}"


def _listeners(status: Mapping[str, Any], wanted: tuple[WantedListener, ...], generation: int, now: str) -> _Maps:
    before = list_of_maps(status.get("listeners"))
    known = {listener.get("name"): listener for listener in before}
    listeners: _Maps = []
    for listener in wanted:
        conditions = list_of_maps(known.get(listener.name, {}).get("conditions"))
        kinds = [{"group": group, "kind": kind} for group, kind in listener.kinds]
        after = _conditions(conditions, listener.conditions, generation, now)
        listeners.append(
            {
                "name": listener.name,
                "attachedRoutes": listener.attached_routes,
                "supportedKinds": kinds,
                "conditions": _at_their_places(conditions, after, lambda each: str(each.get("type"))),
            }
        )
    return _at_their_places(before, listeners, lambda each: str(each.get("name")))


def _at_their_places(
    before: Iterable[Mapping[str, Any]], after: _Maps, key: Callable[[Mapping[str, Any]], str]
) -> _Maps:
    """Return entries in the order that they had before; new ones are at the end."""
    places: dict[str, int] = {}
    for place, entry in enumerate(before):
        places.setdefault(key(entry), place)
    return sorted(after, key=lambda entry: places.get(key(entry), sys.maxsize))
