"""The `api` question of policy tests and `explain`: both phases, the decision document, and what was expected of it.

docs/policy-tests.md#api, docs/semantics.md#the-final-decision. Of a conditional answer to a request on which conditions
can be enforced nothing final is said until data is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tierwall.api.attributes import Attributes, ConditionsMode, extra_of
from tierwall.api.chain import Chain, ChainDecision
from tierwall.api.condition_set import Conditional
from tierwall.api.configuration import chain_of
from tierwall.api.data import UNKNOWN, ConditionData
from tierwall.api.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.api.expectation import mismatches
from tierwall.core.diagnostics import Diagnostic, InputError, unknown_keys
from tierwall.core.labels import Requirement
from tierwall.core.trace import DEFAULT, Settled
from tierwall.resources.snapshot import Snapshot

__all__ = ["Asked", "ask", "decide", "document", "mismatches"]

_WHO = ("user", "uid")
_WHAT = ("group", "version", "resource", "subresource", "namespace", "name")
_KEYS = (
    *_WHO,
    "groups",
    "extra",
    "verb",
    *_WHAT,
    "path",
    "labelSelector",
    "fieldSelector",
    "conditions",
    *UNKNOWN,
)


class Asked(msgspec.Struct, frozen=True):
    """A question with its answers: of the first phase, and the final one if there is one."""

    attributes: Attributes
    first: ChainDecision
    final: Decision | None

    @property
    def called(self) -> tuple[str, ...]:
        """Who was asked in order to decide."""
        return self.final.asked if isinstance(self.final, ChainDecision) else self.first.asked

    @property
    def decided_by(self) -> tuple[str, ...]:
        """Who settled it; for a conditional answer those whose answers count, and who settled it in the end."""
        if not self.first.is_conditional:
            return (self.first.decided_by,) if self.first.decided_by else ()
        names = [answer.authorizer.name for answer in self.first.answers]
        if isinstance(self.final, ChainDecision) and self.final.decided_by:
            names.append(self.final.decided_by)
        return tuple(dict.fromkeys(names))

    @property
    def error(self) -> str:
        """The evaluation error that has to be reported, if any."""
        answer = self.final if self.final is not None else self.first
        return answer.error if answer.verdict in (DENY, NO_OPINION) else ""


def ask(snapshot: Snapshot, question: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The decision document of a question; InputError lists everything that is wrong with it."""
    given = {key: value for key, value in defaults.items() if key in _KEYS}
    return document(decide(chain_of(snapshot), {**given, **question}))


def decide(chain: Chain, question: Mapping[str, Any]) -> Asked:
    """Both phases of a question."""
    attributes = attributes_of(question)
    return decided(chain, attributes, ConditionData.of(question, attributes))


def decided(chain: Chain, attributes: Attributes, data: ConditionData | None) -> Asked:
    """The first phase, and the second if there is data or there cannot be any."""
    first = chain.authorize(attributes)
    final: Decision | None = None
    if not first.is_conditional:
        final = first
    elif data is not None:
        final = first.evaluate(data)
    elif not attributes.supports_conditions:
        final = Decision(first.failure, "conditions cannot be enforced on this request", first.error)
    return Asked(attributes, first, final)


def document(asked: Asked) -> dict[str, Any]:
    """The decision document (docs/reference/decision-document.md)."""
    first, final = asked.first, asked.final
    entries = first.entries() if first.is_conditional else ()
    settled = [Settled(name) for name in asked.decided_by] or [DEFAULT]
    out: dict[str, Any] = {"verdict": str(first.verdict)}
    if final is not None:
        out["final"] = str(final.verdict)
    out["decidedBy"] = [one.document() for one in settled]
    out["called"] = list(asked.called)
    out["conditionSets"] = [_entry(name, decision) for name, decision in entries]
    if asked.error:
        out |= {"error": True, "evaluationError": asked.error}
    answer = final if final is not None else first
    if answer.reason:
        out["reason"] = answer.reason
    conditions = [one for name, decision in entries for one in _conditions(name, decision)]
    if conditions:
        out["conditions"] = conditions
    steps = final.steps if isinstance(final, ChainDecision) else first.steps
    out["trace"] = [step.document() for step in steps]
    return out


def _entry(name: str, decision: Decision) -> dict[str, Any]:
    if isinstance(decision, Conditional):
        return {"authorizer": name, "effects": decision.conditions.effects()}
    return {"authorizer": name, "allowed" if decision.verdict is ALLOW else "denied": True}


def _conditions(name: str, decision: Decision) -> Iterator[dict[str, Any]]:
    if not isinstance(decision, Conditional):
        return
    for one in decision.conditions.conditions:
        out: dict[str, Any] = {"authorizer": name, "id": one.id, "effect": str(one.effect), "condition": one.text}
        out["type"] = one.type
        if one.description:
            out["description"] = one.description
        if one.source is not None:
            out["policy"] = str(one.source.policy)
            at = one.source.origin.position(("spec", "expression")) if one.source.origin is not None else None
            if at is not None:
                out["source"] = {"file": at.file, "line": at.line, "column": at.column}
        yield out


def attributes_of(question: Mapping[str, Any]) -> Attributes:
    """What a question asks; InputError lists everything that is wrong with it."""
    problems = unknown_keys("TW703", question, _KEYS, "an `api` question")

    def problem(message: str, hint: str = "") -> None:
        problems.append(Diagnostic("TW703", message, hint=hint))

    def text(key: str) -> str:
        value = question.get(key)
        if value is None or isinstance(value, str):
            return value or ""
        problem(f"`{key}` must be a string, found `{value}`")
        return ""

    texts = {key: text(key) for key in (*_WHO, "verb", *_WHAT, "path")}
    groups = _texts(question.get("groups"))
    if groups is None:
        problem("`groups` must be a list of strings")
    extra = _extra(question.get("extra"))
    if extra is None:
        problem("`extra` must map strings to lists of strings")
    mode = question.get("conditions", ConditionsMode.HUMAN_READABLE)
    if not isinstance(mode, str) or mode not in {str(one) for one in ConditionsMode}:
        problem(f'`conditions` must be `HumanReadable`, `Optimized` or `""`, found `{mode}`')
    selectors: dict[str, tuple[Requirement, ...] | None] = {}
    for key in ("labelSelector", "fieldSelector"):
        selectors[key] = None
        if question.get(key) is not None:
            selectors[key] = _selector(question[key])
            if selectors[key] is None:
                problem(f"`{key}` must be a list of requirements with `key`, `operator` and `values`")
    operation = question.get("operation")
    if operation is not None and not isinstance(operation, str):
        problem(f"`operation` must be a string, found `{operation}`")
    if texts["path"] and (clash := [key for key in _WHAT if texts[key]]):
        problem(f"`path` asks about no resource, so `{clash[0]}` has no place beside it")
    if problems:
        raise InputError(problems)
    return Attributes(
        **texts,
        groups=groups or (),
        extra=extra or (),
        is_resource_request=not texts["path"],
        label_selector=selectors["labelSelector"],
        field_selector=selectors["fieldSelector"],
        conditions_mode=ConditionsMode(mode),
    )


def _texts(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        return None
    return tuple(value)


def _extra(value: Any) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        return None
    if not all(
        isinstance(key, str) and isinstance(one, list) and _texts(one) is not None for key, one in value.items()
    ):
        return None
    return extra_of(value)


def _selector(value: Any) -> tuple[Requirement, ...] | None:
    if not isinstance(value, list):
        return None
    found: list[Requirement] = []
    for one in value:
        if (
            not isinstance(one, Mapping)
            or not isinstance(one.get("key"), str)
            or not isinstance(one.get("operator"), str)
        ):
            return None
        values = _texts(one.get("values"))
        if values is None:
            return None
        found.append(Requirement(one["key"], one["operator"], values))
    return tuple(found)
