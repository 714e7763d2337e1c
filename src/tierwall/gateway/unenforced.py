"""Parts that Envoy does not enforce of the settings in force at a place (docs/gateway.md#obeyed-by-run).

Envoy has one configuration for every request, so conditions count as unknown: a list whose entry depends on the request
is not enforced, whichever entry one request would select.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tierwall.attach.backend import is_permitted, refs_inside
from tierwall.core.reference import Reference
from tierwall.gateway.decide import Candidate, MergedField, Merger, merger
from tierwall.gateway.model.conditional import ANY_REQUEST
from tierwall.gateway.model.enforcement import (
    UnenforcedSetting,
    competing,
    list_parts,
    overfull,
    restricts,
    unenforced,
)
from tierwall.gateway.model.places import RequestPlace


def unenforced_at(merging: Merger, place: RequestPlace, merged: Mapping[str, MergedField]) -> Iterator[str]:
    """Yield what Envoy does not enforce at a place, as notes; `merged` are the fields for the request asked about."""
    if any(map(_has_list, merged.values())) or any(merging.lists_selecting_nothing(place)):
        merged = merger(merging.snapshot, merging.profile, merging.phase, ANY_REQUEST).merge_at(place)
    for field in merged.values():
        parts = (*(part for _, part in unenforced_in_force(field)), *_not_permitted(merging, field))
        yield from dict.fromkeys(map(str, parts))


def _not_permitted(merging: Merger, field: MergedField) -> Iterator[UnenforcedSetting]:
    """Yield the services that a field needs and its object may not name (`--backend-ref-grants strict`)."""
    path = field.field.path
    for candidate in field.in_force:
        for ref in refs_inside(candidate.resource, candidate.value) if candidate.has_value else ():
            if not is_permitted(merging.snapshot, candidate.resource, ref.place):
                yield UnenforcedSetting(path, ref.path, f"no ReferenceGrant permits {ref.place}", restricts(path))


def unenforced_in_force(field: MergedField) -> Iterator[tuple[Candidate, UnenforcedSetting]]:
    """Yield what Envoy does not enforce of a field merged for any request, and the object that sets it."""
    path = field.field.path
    for candidate in field.in_force:
        if _depends(candidate):
            continue
        for part in unenforced(path, candidate.value) if candidate.has_value else ():
            yield candidate, part
            if not part.path:
                return
    if field.field.union:
        values = (candidate.value for candidate in field.in_force if candidate.has_value)
        yield from ((field.in_force[0], part) for part in overfull(path, values))
    depending = [] if field.field.union else list(filter(_depends, field.in_force))
    if depending and not is_chosen(field):
        yield depending[0], competing(path)
    elif depending:
        for candidate in field.in_force:
            yield from ((candidate, part) for part in list_parts(candidate.written))


def is_chosen(field: MergedField) -> bool:
    """Whether Envoy chooses the value of a field, merged for any request, when a request comes."""
    if field.field.union or not any(map(_depends, field.in_force)):
        return False
    # Each level replaces those before it only if nothing locks the field.
    return len(field.in_force) == 1 or not any(each.locks for each in in_choosing_order(field))


def in_choosing_order(field: MergedField) -> tuple[Candidate, ...]:
    """Return the candidates in force such that each replaces those before it where it selects an entry."""
    counting = {candidate.source for candidate in field.in_force}
    by_source: dict[Reference, Candidate] = {}
    for tier in field.stack:
        # On one level, the oldest counts.
        for each in reversed(tier.policies):
            if each.source in counting:
                by_source.pop(each.source, None)
                by_source[each.source] = each
    return tuple(by_source.values())


def _has_list(field: MergedField) -> bool:
    return any(_has_entries(tier.policies) for tier in field.stack)


def _has_entries(candidates: Iterable[Candidate]) -> bool:
    return any(candidate.written.entries is not None for candidate in candidates)


def _depends(candidate: Candidate) -> bool:
    """Whether the value of a list depends on the request."""
    entries = candidate.written.entries
    if entries is None:
        return False
    is_conditional = candidate.entry is not None and entries[candidate.entry].get("condition") is not None
    return is_conditional or not candidate.certain
