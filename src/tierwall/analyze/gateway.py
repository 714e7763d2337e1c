"""Findings about gateway settings: what never takes effect, what is disputed, what is widened, what is half lost.

All are about places that requests can reach, whatever the request is (profile docs); the last is about where the
documentation and the code of agentgateway part ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice

from tierwall.attach.acceptance import broken_expressions
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.core.answer import Reason
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.core.words import join_names
from tierwall.gateway.decide import Candidate, MergedField, merger
from tierwall.gateway.effects import FieldOverlap, is_allow, policy_effects, prospective_effects
from tierwall.gateway.model.fields import FIELDS, PHASES, SECTIONS, Phase, PolicyField, WrittenField
from tierwall.gateway.model.places import reachable_places
from tierwall.gateway.sentence import BEATS, seniority_phrase
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

NEVER, DISPUTED, WIDENED, HALF_LOST, BROKEN, PROFILES_DIFFER = "TW303", "TW304", "TW305", "TW306", "TW307", "TW309"

_HALVES = ("request", "response")
_NAMED = 5  # how many others a finding shows


def settings_that_never_count(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Settings that another one replaces at every place, those to come included; and those of equal precedence."""
    for policy in attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies:
        for path, fate in policy_effects(snapshot).effects_of(policy).items():
            before = [rival for rival, first in fate.rivals.values() if not first]
            if before:
                yield _disputed(path, fate.candidate, min(before, key=lambda rival: rival.resource.seniority))
            # A tie that is lost has been reported as a dispute.
            beaten = [lost for lost in fate.beaten_by.values() if not before or lost.reason is not Reason.LOSES_TIE]
            if not fate.in_force and beaten and not _may_come(snapshot, policy, path):
                first = min(beaten, key=lambda lost: str(lost.winner.source))
                why = f"{first.winner.source} ({first.winner_level}) {BEATS[first.reason]}"
                more = f", and {len(beaten) - 1} more elsewhere" if len(beaten) > 1 else ""
                yield _finding(
                    NEVER,
                    fate.candidate,
                    f"`{path}` of {policy.reference} never takes effect: {why}{more}",
                    ((f"{lost.winner.source} sets it", lost.winner) for lost in beaten),
                )


def _may_come(snapshot: Snapshot, policy: Resource, path: str) -> bool:
    """Whether a setting is a default for routes and ListenerSets that may be added."""
    hoped = prospective_effects(snapshot).effects_of(policy).get(path)
    return hoped is not None and hoped.in_force


def _disputed(path: str, loser: Candidate, winner: Candidate) -> Diagnostic:
    why = seniority_phrase(winner.resource, loser.resource)
    return _finding(
        DISPUTED,
        loser,
        f"{loser.source} and {winner.source} set `{path}` with equal precedence; {winner.source} {why}",
        [(f"{winner.source} sets it", winner)],
        "set the field in one of the two, or target different sections",
    )


def widened_authorization(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """An Allow that is joined to a less specific Allow lets requests through that the latter alone would deny."""
    joined = (
        (path, overlap)
        for (_, _, path), overlap in policy_effects(snapshot).joined.items()
        if overlap.lower_level.before_routing and not overlap.upper_level.before_routing and _wider(overlap)
    )
    yield from _overlapping(
        WIDENED,
        joined,
        "widens",
        ": the rules are taken together, and any Allow that is true allows",
        "use the action Require to narrow, or Override on the less specific policy",
        "allows less",
    )


def _overlapping(
    code: str, overlaps: Iterable[tuple[str, FieldOverlap]], does: str, why: str, hint: str, other: str
) -> Iterator[Diagnostic]:
    """What a setting does to less specific ones: all in one finding, so that a busy Gateway does not repeat it."""
    by_upper: dict[tuple[str, Resource], list[FieldOverlap]] = {}
    for path, overlap in overlaps:
        by_upper.setdefault((path, overlap.upper.resource), []).append(overlap)
    for (path, _), several in by_upper.items():
        several.sort(key=lambda overlap: str(overlap.lower.source))
        _, _, upper, upper_level = several[0]
        lower = join_names([f"{overlap.lower.source} ({overlap.lower_level})" for overlap in several], 1)
        message = f"{upper.source} ({upper_level}) {does} `{path}` of {lower}{why}"
        related = ((f"{overlap.lower.source} {other}", overlap.lower) for overlap in several)
        yield _finding(code, upper, message, related, hint)


def _wider(overlap: FieldOverlap) -> bool:
    return is_allow(overlap.upper) and not _expressions(overlap.upper) <= _expressions(overlap.lower)


def _expressions(candidate: Candidate) -> set[str]:
    policy = candidate.written.value.get("policy")
    expressions = policy.get("matchExpressions") if isinstance(policy, dict) else None
    return {str(text) for text in expressions} if isinstance(expressions, list) else set()


def lost_halves(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """A field is merged whole: one that sets the request half alone drops the response half of what it replaces."""
    for half in _HALVES:
        replaced = (
            (path, overlap)
            for (_, _, path), overlap in policy_effects(snapshot).replaced.items()
            if _has_halves(FIELDS[path])
            and half in _halves(overlap.lower.written, any)
            and half not in _halves(overlap.upper.written, all)
        )
        why, hint = f" whole, and so drops its `{half}` part", f"repeat the `{half}` part in the more specific policy"
        yield from _overlapping(HALF_LOST, replaced, "replaces", why, hint, f"sets `{half}`")


@cache
def _has_halves(field: PolicyField) -> bool:
    schema = SECTIONS[field.section].at(*field.keys)
    return schema is not None and all(schema.at(half) is not None for half in _HALVES)


def _halves(written: WrittenField, needed: Callable[[Iterable[bool]], bool]) -> set[str]:
    """The halves that an object writes; of a conditional list those that any (or all) of its entries have."""
    values = [written.value] if written.entries is None else [entry.get("policy") for entry in written.entries]
    return {half for half in _HALVES if needed(isinstance(value, dict) and half in value for value in values)}


def broken_expression_findings(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Expressions that do not parse: the gateway leaves their setting out, and a condition never holds."""
    for policy in attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies:
        for one in broken_expressions(policy):
            message = f"`{'.'.join(map(str, one.path[1:]))}` is not a valid CEL expression: {one.message}"
            shown = one.text if len(one.text) <= 80 else f"{one.text[:79]}…"
            yield policy.diagnostic(BROKEN, message, one.path, actual=shown)


def profiles_that_differ(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Where the published page and the code of agentgateway settle a field differently; once for each pair."""
    seen = set()
    for phase in _phases(snapshot):
        docs, code = merger(snapshot, "docs", phase), merger(snapshot, "agentgateway", phase)
        for asked in reachable_places(snapshot):
            one, other = docs.merge_at(asked), code.merge_at(asked)
            for path in dict.fromkeys((*one, *other)):
                in_force = _in_force(one.get(path)), _in_force(other.get(path))
                if in_force[0] == in_force[1] or (path, in_force) in seen:
                    continue
                seen.add((path, in_force))
                names = [", ".join(str(source) for source, _ in found) or "not set" for found in in_force]
                party = (one.get(path) or other[path]).taken[-1]
                words = f"`{path}` at {asked}: {names[0]} by the documentation, {names[1]} by the code of agentgateway"
                yield _finding(PROFILES_DIFFER, party, words)


def _phases(snapshot: Snapshot) -> tuple[Phase, ...]:
    """The phases in which something can differ: PreRouting only if a policy is in it."""
    policies = attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies
    early = any((one.spec.get("traffic") or {}).get("phase") == "PreRouting" for one in policies)
    return PHASES if early else PHASES[:1]


def _in_force(merged: MergedField | None) -> tuple[tuple[Reference, int | None], ...]:
    """Who sets a field, and by which entry: the values are equal if these are."""
    if merged is None:
        return ()
    return tuple((candidate.source, candidate.entry) for candidate in merged.taken if candidate.sets)


def _finding(
    code: str, setting: Candidate, message: str, related: Iterable[tuple[str, Candidate]] = (), hint: str = ""
) -> Diagnostic:
    """A finding about a setting; of the settings that it is related to it shows a few."""
    places = tuple((words, other.resource.position(other.path, key=True)) for words, other in islice(related, _NAMED))
    return setting.resource.diagnostic(code, message, setting.path, key=True, hint=hint, related=places)
