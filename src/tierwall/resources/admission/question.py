"""The `admit` question: would an API server with these CRDs accept the object (docs/policy-tests.md#admit)?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from msgspec import UNSET, Struct

from tierwall.core.answer import Answer, Reason, Step
from tierwall.core.diagnostics import Diagnostic, input_error
from tierwall.core.expectation import Expectation, malformed_expectation
from tierwall.core.question import Question
from tierwall.core.reference import Reference
from tierwall.core.source import Origin, Path
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.core.words import as_given, join_names
from tierwall.resources.admission.problem import AdmissionProblem
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import admit_with_definitions


class LocatedValue(NamedTuple):
    """A value and the place where it was written."""

    value: Any
    origin: Origin
    path: Path = ()


class AdmitQuestion(Question, frozen=True, kw_only=True):
    """Would an API server accept this object, or each of these?"""

    plane: ClassVar[str] = "admit"

    object: Any = UNSET
    # Relative to the policy test, which reads the file and asks about `objects`.
    file: str | None = None
    # Plain values or `LocatedValue`s.
    objects: Sequence[Any] | None = None


class JudgedObject(Struct, frozen=True):
    """An object and the reasons to refuse it."""

    value: Any
    refusals: Sequence[tuple[AdmissionProblem, Origin | None, Path]]


def _message_problems(key: str, value: Any) -> Iterator[Diagnostic]:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        yield malformed_expectation(key, "a part of a message", value)


def _message_differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
    messages = [step.note or "" for step in answer.steps]
    if not any(str(value) in message for message in messages):
        actual = "; ".join(f"`{message}`" for message in messages) or "no message"
        yield f"{key}: expected a message with `{value}`, got {actual}"


QUESTION = AdmitQuestion
EXPECTATIONS = {"message": Expectation(_message_problems, _message_differences)}


def ask(snapshot: Snapshot, question: AdmitQuestion, problems: Iterable[Diagnostic] = ()) -> Answer:
    """Allow if admission refuses none of the objects. Every refusal is a step; no policy decides, so none is named."""
    mistakes = list(problems)
    values = _values(question, mistakes)
    if mistakes:
        raise input_error(mistakes)
    judged = [_judge(snapshot, value) for value in values]
    refused = any(judgement.refusals for judgement in judged)
    return Answer(
        plane=AdmitQuestion.plane,
        verdict=Verdict.DENY if refused else Verdict.ALLOW,
        sentence=_sentence(judged),
        decided_by=(),
        steps=tuple(
            Step(
                tier="admission",
                verdict=StepVerdict.DENY,
                reason=Reason.OBJECT_REFUSED,
                note=problem.message,
                origin=origin,
                path=path,
            )
            for judgement in judged
            for problem, origin, path in judgement.refusals
        ),
    )


def _values(question: AdmitQuestion, problems: list[Diagnostic]) -> Sequence[Any]:
    defaults = {"object": UNSET, "file": None, "objects": None}
    given = [key for key, default in defaults.items() if getattr(question, key) is not default]
    if len(given) != 1:
        keys = " and ".join(f"`{key}`" for key in given) or "neither"
        problems.append(Diagnostic("TW703", f"expected `object` or `file`, found {keys}"))
    elif question.file is not None:
        hint = "give what the file holds as `objects`"
        problems.append(Diagnostic("TW703", "only a policy test reads the `file` of an admit question", hint=hint))
    objects: Any = question.objects
    if objects is not None and not isinstance(objects, list | tuple):
        problems.append(Diagnostic("TW703", f"expected a list of objects as `objects`, found {as_given(objects)}"))
    return (question.object,) if objects is None else objects


def _judge(snapshot: Snapshot, value: Any) -> JudgedObject:
    plain, origin, path = value if isinstance(value, LocatedValue) else (value, None, ())
    refusals = [
        (problem, origin, (*path, *problem.path))
        for problem in admit_with_definitions(snapshot, plain)
        if problem.refuses
    ]
    return JudgedObject(plain, refusals)


def _sentence(judged: Sequence[JudgedObject]) -> str:
    refused = [judgement for judgement in judged if judgement.refusals]
    if not judged:
        return "there is no object to accept or refuse"
    if not refused:
        return f"an API server would accept {join_names([*map(_name, judged)])}"
    first, count = refused[0].refusals[0][0], sum(len(judgement.refusals) for judgement in refused)
    more = f" (and {count - 1} more)" if count > 1 else ""
    return f"an API server would refuse {join_names([*map(_name, refused)])}: {first.message}{more}"


def _name(judged: JudgedObject) -> str:
    """Return the reference of an object, as far as the object states it."""
    value = judged.value
    kind = value.get("kind") if isinstance(value, Mapping) else None
    metadata = value.get("metadata") if isinstance(value, Mapping) else None
    name, namespace = (metadata.get("name"), metadata.get("namespace")) if isinstance(metadata, Mapping) else ("", "")
    if not isinstance(kind, str) or not kind:
        return "an object without a kind"
    return str(Reference(kind, str(namespace or ""), str(name))) if name else f"a {kind} without a name"
