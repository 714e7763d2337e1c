"""Checks of gateway settings that never take effect, are disputed or widened, or lose a half.

They consider every place that requests can reach, whatever the request is, by the profile `docs`. The last check finds
fields for which the documentation and the code of agentgateway disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache

from tierwall.attach.acceptance import broken_expressions
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.core.answer import Reason
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.core.words import join_names
from tierwall.gateway.decide import Candidate, MergedField, merger
from tierwall.gateway.effects import FieldOverlap, is_allow, policy_effects, prospective_effects
from tierwall.gateway.model.fields import FIELDS, PHASES, SECTIONS, Phase, PolicyField, WrittenField, unread_fields
from tierwall.gateway.model.places import crosses_owners, reachable_places
from tierwall.gateway.sentence import BEATS, UNREAD, seniority_phrase
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

NEVER, DISPUTED, WIDENED, HALF_LOST, BROKEN, PROFILES_DIFFER = "TW303", "TW304", "TW305", "TW306", "TW307", "TW309"

_HALVES = ("request", "response")
_MAX_SHOWN = 5  # how many other settings a finding shows


def ineffective_settings(snapshot: Snapshot, about: Reference | None = None) -> Iterator[Diagnostic]:
    """Find settings that others replace at every place, future places included, and ties in precedence.

    With `about`, only the settings of this policy are looked at.
    """
    for policy in attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies:
        if about not in (None, policy.reference):
            continue
        for written in unread_fields(policy):
            message = f"`{written.field.path}` of {policy.reference} never takes effect: {UNREAD}"
            hint = "target the routes that lead to the pool"
            yield policy.diagnostic(NEVER, message, ("spec", "traffic", *written.path), key=True, hint=hint)
        for path, effect in policy_effects(snapshot, "docs").effects_of(policy).items():
            before = [rival for rival, first in effect.rivals.values() if not first]
            if before:
                yield _disputed(path, effect.candidate, min(before, key=lambda rival: rival.resource.seniority))
            # A lost tie is already reported as a dispute.
            beaten = [lost for lost in effect.beaten_by.values() if not before or lost.reason is not Reason.LOSES_TIE]
            if not effect.in_force and beaten and not _may_take_effect(snapshot, policy, path):
                first = min(beaten, key=lambda lost: str(lost.winner.source))
                why = f"{first.winner.source} ({first.winner_level}) {BEATS[first.reason]}"
                more = f", and {len(beaten) - 1} more elsewhere" if len(beaten) > 1 else ""
                yield _finding(
                    NEVER,
                    effect.candidate,
                    f"`{path}` of {policy.reference} never takes effect: {why}{more}",
                    ((f"{lost.winner.source} sets it", lost.winner) for lost in beaten),
                )


def _may_take_effect(snapshot: Snapshot, policy: Resource, path: str) -> bool:
    """Whether a setting applies to routes and ListenerSets that may be added."""
    effect = prospective_effects(snapshot).effects_of(policy).get(path)
    return effect is not None and effect.in_force


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
    """Find an Allow that joins a less specific Allow and so admits requests that the latter alone would deny."""
    joined = (
        (path, overlap)
        for (_, _, path), overlap in policy_effects(snapshot, "docs").joined.items()
        if crosses_owners(overlap.lower_level, overlap.upper_level) and _wider(overlap)
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
    """Yield one finding for all less specific settings that a setting affects: a busy Gateway has many."""
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
    return {str(expression) for expression in expressions} if isinstance(expressions, list) else set()


def lost_halves(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Find fields that set only one of request and response, and drop the other half of the setting they replace."""
    for half in _HALVES:
        replaced = (
            (path, overlap)
            for (_, _, path), overlap in policy_effects(snapshot, "docs").replaced.items()
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
    """Return the halves that an object writes; in a conditional list, those that any (or all) of its entries have."""
    values = [written.value] if written.entries is None else [entry.get("policy") for entry in written.entries]
    return {half for half in _HALVES if needed(isinstance(value, dict) and half in value for value in values)}


def broken_expression_findings(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Find expressions that do not parse. The gateway drops such a setting, and such a condition is never true."""
    for policy in attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies:
        for broken in broken_expressions(policy):
            message = f"`{'.'.join(map(str, broken.path[1:]))}` is not a valid {broken.expected}: {broken.message}"
            shown = broken.text if len(broken.text) <= 80 else f"{broken.text[:79]}…"
            yield policy.diagnostic(BROKEN, message, broken.path, actual=shown)


def profile_differences(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Find fields that the documentation and the code of agentgateway settle differently; each pair once."""
    seen = set()
    for phase in _phases(snapshot):
        docs, code = merger(snapshot, "docs", phase), merger(snapshot, "agentgateway", phase)
        for place in reachable_places(snapshot):
            by_docs, by_code = docs.merge_at(place), code.merge_at(place)
            for path in dict.fromkeys((*by_docs, *by_code)):
                in_force = _in_force(by_docs.get(path)), _in_force(by_code.get(path))
                if in_force[0] == in_force[1] or (path, in_force) in seen:
                    continue
                seen.add((path, in_force))
                names = [", ".join(str(source) for source, _ in settings) or "not set" for settings in in_force]
                setting = (by_docs.get(path) or by_code[path]).in_force[-1]
                message = (
                    f"`{path}` at {place}: {names[0]} by the documentation, {names[1]} by the code of agentgateway"
                )
                yield _finding(PROFILES_DIFFER, setting, message)


def _phases(snapshot: Snapshot) -> tuple[Phase, ...]:
    """Return the phases in which the profiles can differ: PreRouting only if a policy uses it."""
    policies = attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies
    early = any((policy.spec.get("traffic") or {}).get("phase") == "PreRouting" for policy in policies)
    return PHASES if early else PHASES[:1]


def _in_force(merged: MergedField | None) -> tuple[tuple[Reference, int | None], ...]:
    """Return the policies that set a field, with the entry. If these are equal, so are the values."""
    if merged is None:
        return ()
    return tuple((candidate.source, candidate.entry) for candidate in merged.in_force if candidate.has_value)


def _finding(
    code: str, setting: Candidate, message: str, related: Iterable[tuple[str, Candidate]] = (), hint: str = ""
) -> Diagnostic:
    """Return a finding about a setting, with the positions of the first few related settings."""
    others = list(related)
    positions = tuple((words, other.resource.position(other.path, key=True)) for words, other in others[:_MAX_SHOWN])
    names = tuple(sorted({str(other.resource.reference) for _, other in others}))
    return setting.resource.diagnostic(
        code, message, setting.path, key=True, hint=hint, related=positions, related_objects=names
    )
