"""Questions to the tool plane and their answers as documents.

docs/policy-tests.md#tool, docs/semantics.md#who-decided-a-request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.core.diagnostics import Diagnostic, InputError, near_miss, unknown_keys
from tierwall.core.trace import DEFAULT, Step
from tierwall.core.verdict import Verdict
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.asked import read
from tierwall.tool.decide import Decision, Level, Reason, decide
from tierwall.tool.places import Way
from tierwall.tool.sentence import sentence, why_none

EXPECTED = ("verdict", "decidedBy", "evaluated", "level")
_VERDICTS = (str(Verdict.ALLOW), str(Verdict.DENY))


class Asked(NamedTuple):
    """A question and its decision."""

    way: Way
    decision: Decision


def ask(snapshot: Snapshot, question: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The decision document; InputError lists all that is wrong with the question."""
    return document(answer(snapshot, question))


def answer(snapshot: Snapshot, question: Mapping[str, Any]) -> Asked:
    """The decision itself; InputError lists all that is wrong with the question."""
    way, request, answers = read(snapshot, question)
    return Asked(way, decide(way.stack, request, answers))


def document(asked: Asked) -> dict[str, Any]:
    """A decision as `tierwall test` and `tierwall explain` print it."""
    way, decision = asked
    request = decision.request
    about: dict[str, Any] = {
        "gateway": f"{way.gateway.namespace}/{way.gateway.name}",
        "listener": way.listener.name if way.listener is not None else None,
        "backend": str(way.backend),
        "caller": request.caller,
        "method": request.method,
        "tool": request.tool,
        "uri": request.uri,
        "http": f"{request.http_method} {request.path}",
    }
    return {
        "sentence": sentence(way, decision),
        "verdict": str(decision.verdict),
        "decidedBy": decided_by(decision),
        "level": str(decision.level),
        "evaluated": [one.policy.reference for one in decision.looked],
        "request": {key: value for key, value in about.items() if value is not None},
        "trace": [step.document() for step in steps(decision)],
    }


def decided_by(decision: Decision) -> list[dict[str, str]]:
    """On Deny the one policy that denied; on Allow every policy that was evaluated, in order."""
    if not decision.looked:
        return [DEFAULT.document()]
    settling = decision.looked[-1:] if decision.verdict is Verdict.DENY else decision.looked
    return [{"policy": one.policy.reference, "rule": one.rule.label if one.rule else "spec"} for one in settling]


def steps(decision: Decision) -> Iterator[Step]:
    """What was evaluated, in order."""
    for one in decision.looked:
        note = ""
        if one.reason is Reason.INVALID:
            note = "; ".join(one.policy.closed[:3])
        elif one.reason is Reason.UNREAD:
            note = decision.request.unread
        elif one.reason is Reason.NO_RULE:
            note = why_none(one.policy, decision.request)
        resource = one.policy.resource
        label, path = (one.rule.label, one.rule.path) if one.rule else ("spec", ("spec",))
        yield Step(str(one.level), str(one.reason), resource.reference, label, note, resource, path)
    if not decision.looked:
        yield Step(str(Level.DEFAULT), "allowed", note="no policy guards this way")


def mismatches(expect: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """What of an expectation does not hold; InputError when the expectation itself is malformed."""
    problems = unknown_keys("TW701", expect, EXPECTED, "`expect` of a tool case")
    out: list[str] = []
    for key, words in (("verdict", _VERDICTS), ("level", tuple(map(str, Level)))):
        if key in expect:
            if expect[key] not in words:
                found = f"expected one of {', '.join(words)} as `{key}`, found `{expect[key]}`"
                problems.append(_malformed(found, near_miss(str(expect[key]), words)))
            elif got[key] != expect[key]:
                out.append(f"{key}: expected {expect[key]}, got {got[key]}")
    if "evaluated" in expect:
        wanted = expect["evaluated"]
        if not isinstance(wanted, list) or not all(isinstance(one, str) and one for one in wanted):
            problems.append(_malformed(f"expected a list of references as `evaluated`, found `{wanted}`"))
        elif wanted != got["evaluated"]:
            out.append(f"evaluated: expected {_listed(wanted)}, got {_listed(got['evaluated'])}")
    if "decidedBy" in expect:
        out += _not_decided_by(expect["decidedBy"], got["decidedBy"], problems)
    if problems:
        raise InputError(problems)
    return out


def _not_decided_by(expected: Any, entries: list[dict[str, str]], problems: list[Diagnostic]) -> Iterator[str]:
    found = ", ".join(" ".join(entry.values()) for entry in entries)
    wanted = expected if isinstance(expected, list) else [expected]
    if not wanted:  # nobody decided
        wanted = [DEFAULT.policy]
    for one in wanted:
        text = " ".join(map(str, one.values())) if isinstance(one, Mapping) and "policy" in one else one
        if not isinstance(text, str) or not text:
            problems.append(_malformed(f"expected a reference in `decidedBy`, found `{one}`"))
        elif not any(_named(text, entry) for entry in entries):
            yield f"decidedBy: expected {text}, got {found}"


def _named(wanted: str, entry: Mapping[str, str]) -> bool:
    policy, _, rule = wanted.partition(" ")
    return policy == entry["policy"] and (not rule or rule == entry.get("rule"))


def _listed(references: list[str]) -> str:
    return ", ".join(references) or "none"


def _malformed(message: str, hint: str = "") -> Diagnostic:
    return Diagnostic("TW701", message, hint=hint)
