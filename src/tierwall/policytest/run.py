"""Run policy tests on the model or on a real engine, and report the results (docs/policy-tests.md#output)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from tierwall.core.answer import Answer, Omission
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.protocols import Engine, EngineReply
from tierwall.core.question import Question
from tierwall.core.reference import Reference
from tierwall.planes import PLANES, ask, differences, plane, read
from tierwall.policytest.suite import PolicyCase, PolicySuite
from tierwall.proofs.proof import Change, Proof
from tierwall.proofs.result import ProofResult
from tierwall.resources.snapshot import Snapshot


class CaseResult(Struct, frozen=True, kw_only=True):
    """The result of one case. `ok` is None where the engine could not ask it, and `skipped` says why."""

    file: str
    test: str
    case: str
    ok: bool | None
    answer: Answer | None
    expect: Mapping[str, Any]
    # The parts of the expectation that do not hold.
    mismatches: tuple[str, ...] = ()
    # Why the question or the expectation is malformed, or why the engine failed.
    error: str = ""
    skipped: str = ""
    # The line of a case that failed.
    line: int | None = None
    # The result of a case that is a proof.
    proof: ProofResult | None = None


class TestReport(Struct, frozen=True):
    """All cases of a run, in order."""

    # The name is part of the public API; pytest must not take the class for a test.
    __test__: ClassVar[bool] = False

    cases: tuple[CaseResult, ...]

    @property
    def passed(self) -> int:
        """The number of cases that passed."""
        return sum(case.ok is True for case in self.cases)

    @property
    def failed(self) -> int:
        """The number of cases that failed."""
        return sum(case.ok is False for case in self.cases)

    @property
    def skipped(self) -> int:
        """The number of cases that the engine could not ask."""
        return sum(case.ok is None for case in self.cases)


class ModelEngine(Engine[Snapshot, Any, Any]):
    """The library itself: it enforces nothing and answers every question."""

    planes: ClassVar[tuple[str, ...]] = tuple(PLANES)

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[EngineReply]:
        """Yield one reply for each question."""
        for question in questions:
            try:
                yield EngineReply(plane(question.plane).ask(snapshot, question))
            except InputError as error:
                yield EngineReply(error=error.summary)


def run(suites: Iterable[PolicySuite], engine: Engine[Snapshot, Any, Any]) -> Iterator[CaseResult]:
    """Yield one result for each case, in order. InputError if the engine cannot be asked at all."""
    for suite in suites:
        for case, reply in zip(suite.cases, ask_engine(suite, engine), strict=True):
            yield _judge(suite, case, reply) if case.proof is None else _judge_proof(suite, case, case.proof, engine)


def ask_engine(suite: PolicySuite, engine: Engine[Snapshot, Any, Any]) -> Iterator[EngineReply]:
    """Yield one reply for each case, in order. The engine gets only well-formed questions of its own planes."""
    known: dict[int, EngineReply] = {}
    questions: list[Question] = []
    for number, case in enumerate(suite.cases):
        if case.proof is not None:
            known[number] = EngineReply()
            continue
        if case.plane not in engine.planes:
            planes = " and ".join(engine.planes)
            known[number] = EngineReply(skipped=f"this engine answers {planes} questions, not `{case.plane}`")
            continue
        problems: list[Diagnostic] = []
        question = read(case.plane, case.question, suite.defaults, problems)
        if problems:
            known[number] = EngineReply(error=_question_problems(suite, case))
        else:
            questions.append(question.in_namespace(suite.namespace))
    answers = _replies(suite.snapshot, engine, questions) if questions else iter(())
    for number in range(len(suite.cases)):
        yield known[number] if number in known else next(answers)


def _replies(
    snapshot: Snapshot, engine: Engine[Snapshot, Any, Any], questions: Sequence[Question]
) -> Iterator[EngineReply]:
    """Yield the replies of an engine, with what it did not consider: what the model leaves out, and its own limits."""
    replies = engine.ask(snapshot, questions)
    if isinstance(engine, ModelEngine):
        yield from replies
        return
    limits: dict[Reference, list[Diagnostic]] = {}
    for limit in engine.limits(snapshot):
        if limit.reference is not None:
            limits.setdefault(limit.reference, []).append(limit)
    for question, reply in zip(questions, replies, strict=True):
        if reply.answer is None:
            yield reply
            continue
        decided = plane(question.plane).ask(snapshot, question)
        met = dict.fromkeys(step.policy for step in decided.steps if step.policy in limits)
        left_out = (_limit(snapshot, limit) for policy in met for limit in limits[policy])
        not_considered = tuple(dict.fromkeys((*decided.not_considered, *left_out)))
        yield replace(reply, answer=replace(reply.answer, not_considered=not_considered))


def _limit(snapshot: Snapshot, limit: Diagnostic) -> Omission:
    reference = limit.reference
    assert reference is not None, "only limits of objects are named"
    policy = snapshot.find(reference)
    return Omission(
        reason="engine",
        kind=reference.kind,
        group=policy.group if policy is not None else reference.group,
        count=1,
        examples=(reference,),
        at=limit.at,
        effect=limit.message,
    )


def _question_problems(suite: PolicySuite, case: PolicyCase) -> str:
    """Say everything that is wrong with a question. Only its plane knows the problems beside unknown keys."""
    try:
        ask(case.plane, suite.snapshot, case.question, suite.defaults, suite.namespace)
    except InputError as error:
        return error.summary
    raise AssertionError("a plane must refuse a question with problems")


def _judge_proof(suite: PolicySuite, case: PolicyCase, proof: Proof, engine: Engine[Snapshot, Any, Any]) -> CaseResult:
    """Prove a case with the library. A real engine has to confirm a counterexample, too."""
    from tierwall.policytest.proofs import differences as proof_differences
    from tierwall.proofs.proving import prove

    planes = (proof.plane,) if proof.plane else proof.claim.planes if isinstance(proof.claim, Change) else ()
    result: ProofResult | None = None
    mismatches: list[str] = []
    error = skipped = ""
    if not set(planes) & set(engine.planes):
        skipped = f"this engine answers {' and '.join(engine.planes)} questions, not `{' or '.join(planes)}`"
    else:
        try:
            result = prove(
                suite.snapshot, proof, against=case.against, effort=suite.proof_effort, namespace=suite.namespace
            )
            if not isinstance(engine, ModelEngine):
                result, skipped = confirmed_by_engine(suite, proof, result, engine)
            mismatches = proof_differences(case.expect, result)
        except InputError as malformed:
            error = malformed.summary
    ok = None if skipped else not mismatches and not error
    at = suite.resource.position(case.path) if ok is False else None
    return CaseResult(
        file=suite.file,
        test=suite.name,
        case=case.name,
        ok=ok,
        answer=None,
        expect=case.expect,
        mismatches=tuple(mismatches),
        error=error,
        skipped=skipped,
        line=at.line if at is not None else None,
        proof=result,
    )


def confirmed_by_engine(
    suite: PolicySuite, proof: Proof, result: ProofResult, engine: Engine[Snapshot, Any, Any]
) -> tuple[ProofResult, str]:
    """Ask a real engine the question of a counterexample, too; return the result, and why it could not be asked.

    Of a change, the engine is asked with the new objects only.
    """
    from tierwall.proofs.proving import engine_result
    from tierwall.resources.plain_objects import objects_over

    example = result.counterexample
    if example is None:
        return result, ""
    if example.question.plane not in engine.planes:
        return result, f"this engine cannot ask `{example.question.plane}` questions"
    snapshot = objects_over(suite.snapshot, example.objects, suite.namespace)
    (reply,) = engine.ask(snapshot, [example.question])
    if reply.answer is None:
        return result, reply.skipped or reply.error
    return engine_result(proof, result, reply.answer), ""


def _asked(expect: Mapping[str, Any], unasked: Mapping[str, str]) -> tuple[Mapping[str, Any], str]:
    """Return the expectations that an engine was asked about, and why it was not asked about the others, if any."""
    why: dict[str, str] = {}
    out: dict[str, Any] = {}
    for key, value in expect.items():
        if key in unasked:
            why[key] = unasked[key]
            continue
        if isinstance(value, Mapping):
            why |= {name: unasked[name] for name in value if name in unasked}
            value = {name: wanted for name, wanted in value.items() if name not in unasked}
        out[key] = value
    reasons = "; ".join(f"{name}: {reason}" for name, reason in why.items())
    return out, f"not testable here: {reasons}" if why else ""


def _judge(suite: PolicySuite, case: PolicyCase, reply: EngineReply) -> CaseResult:
    ok: bool | None = False
    mismatches: list[str] = []
    error, skipped = reply.error, reply.skipped
    if skipped:
        ok = None
    elif reply.answer is not None:
        asked, unasked = _asked(case.expect, reply.unasked)
        try:
            mismatches = differences(asked, reply.answer)
            ok = False if mismatches else None if unasked else True
            skipped = "" if mismatches else unasked
        except InputError as malformed:
            error = malformed.summary
    at = suite.resource.position(case.path) if ok is False else None
    return CaseResult(
        file=suite.file,
        test=suite.name,
        case=case.name,
        ok=ok,
        answer=reply.answer,
        expect=case.expect,
        mismatches=tuple(mismatches),
        error=error,
        skipped=skipped,
        line=at.line if at is not None else None,
    )
