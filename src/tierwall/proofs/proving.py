"""Prove a claim: ask its plane for a counterexample, confirm that by the decision, and say what came out.

A counterexample that the decision does not confirm is a defect of the prover. It is never shown as one: the result is
Unknown, and says what to report.
"""

from __future__ import annotations

from msgspec.structs import replace

from tierwall.core.answer import Answer, Omission
from tierwall.core.diagnostics import InputError
from tierwall.core.verdict import Verdict
from tierwall.planes import plane
from tierwall.proofs.planes import ProvingPlane, proving_plane
from tierwall.proofs.proof import DEFAULT_EFFORT, Change, Claim, Proof
from tierwall.proofs.result import (
    Counterexample,
    NoCounterexample,
    PlaneFinding,
    ProofResult,
    ProofStatus,
    RefutationCandidate,
    Unsolved,
)
from tierwall.resources.foreign import omissions
from tierwall.resources.plain_objects import objects_over
from tierwall.resources.snapshot import Snapshot


def prove(
    snapshot: Snapshot,
    proof: Proof,
    *,
    against: Snapshot | None = None,
    effort: float = DEFAULT_EFFORT,
    namespace: str = "default",
) -> ProofResult:
    """Prove a claim about a snapshot. `against` has the old objects of a change. InputError for unknown names."""
    if isinstance(proof.claim, Change):
        if against is None:
            raise ValueError("a change needs the objects to compare with")
        return _prove_change(against, snapshot, proof, proof.claim, effort, namespace)
    proving = proving_plane(proof.plane)
    if proving is None:
        return _unknown(proof, f"Tierwall cannot prove claims about the {proof.plane} plane yet")
    finding = proving.prove(snapshot, proof.region, proof.claim, proof.assume, effort)
    left_out = omissions(snapshot, proof.plane, every=True)
    return _result(proof, proving, finding, None, snapshot, namespace, left_out)


def _prove_change(
    old: Snapshot, new: Snapshot, proof: Proof, change: Change, effort: float, namespace: str
) -> ProofResult:
    """Ask each plane. One counterexample refutes the whole; otherwise what is unknown counts."""
    proved: list[str] = []
    unknown: list[str] = []
    left_out: dict[Omission, None] = {}
    for name in change.planes:
        proving = proving_plane(name)
        if proving is None:
            unknown.append(f"Tierwall cannot prove claims about the {name} plane yet")
            continue
        finding = proving.prove_change(old, new, change, proof.assume, effort)
        of_plane = (*omissions(old, name, every=True), *omissions(new, name, every=True))
        left_out.update(dict.fromkeys(of_plane))
        result = _result(proof, proving, finding, old, new, namespace, tuple(left_out))
        if result.proof is ProofStatus.REFUTED or result.is_defect:
            return result
        if result.proof is ProofStatus.UNKNOWN:
            unknown.append(result.why)
        else:
            proved.append(f"{name} plane, for {proving.scope(proof.assume)}")
    if unknown:
        known = f"; proved: {'; '.join(proved)}" if proved else ""
        return _unknown(proof, "; ".join(unknown) + known, tuple(left_out))
    sentence = f"Proved: the change {change}: {'; '.join(proved)}"
    return ProofResult(
        proof=ProofStatus.PROVED, sentence=sentence, assume=proof.assume.given, not_considered=tuple(left_out)
    )


def _result(
    proof: Proof,
    proving: ProvingPlane,
    finding: PlaneFinding,
    old: Snapshot | None,
    snapshot: Snapshot,
    namespace: str,
    left_out: tuple[Omission, ...],
) -> ProofResult:
    assume = proof.assume.given
    match finding:
        case NoCounterexample(is_vacuous):
            sentence = f"Proved: {proof.claim}, for {proving.scope(proof.assume)}"
            if is_vacuous and isinstance(proof.claim, Claim):
                sentence += "; but nothing that may come is in the region, so this says nothing"
            return ProofResult(proof=ProofStatus.PROVED, sentence=sentence, assume=assume, not_considered=left_out)
        case Unsolved(why):
            return _unknown(proof, why, left_out)
        case RefutationCandidate():
            pass
    counterexample, problem = _confirmed(proof.claim, proving, finding, old, snapshot, namespace)
    if counterexample is None and finding.hangs_on:
        return _unknown(proof, finding.hangs_on, left_out)
    if counterexample is None:
        question = {finding.question.plane: finding.question.to_dict()}
        why = (
            f"a counterexample was found that the decision does not confirm ({problem}). This is a defect of Tierwall: "
            f"please report it with the policies, the proof, {question} and {list(finding.objects)}"
        )
        return _unknown(proof, why, left_out, is_defect=True)
    return ProofResult(
        proof=ProofStatus.REFUTED,
        sentence=_refuted(proof.claim, counterexample, finding.note),
        counterexample=counterexample,
        assume=assume,
        not_considered=left_out,
    )


def _refuted(claim: Claim | Change, counterexample: Counterexample, note: str) -> str:
    ending = f" ({note})" if note else ""
    if isinstance(claim, Change):
        verb = "opens" if claim.word == "noNew" else "closes"
        return f"Refuted: the change {verb} something: {counterexample.answer.sentence}{ending}"
    return f"Refuted: {claim} does not hold: {counterexample.answer.sentence}{ending}"


def _confirmed(
    claim: Claim | Change,
    proving: ProvingPlane,
    candidate: RefutationCandidate,
    old: Snapshot | None,
    snapshot: Snapshot,
    namespace: str,
) -> tuple[Counterexample | None, str]:
    """Ask the question of the candidate; return what it refutes, or why it refutes nothing."""
    try:
        after = objects_over(snapshot, candidate.objects, namespace)
        question = proving.known_part(candidate.question, after)
        answer = plane(question.plane).ask(after, question)
        outcomes = proving.outcomes(answer)
        if isinstance(claim, Claim):
            holds = claim.refuted_by(outcomes)
            return (Counterexample(candidate.objects, question, answer), "") if holds else (None, answer.sentence)
        assert old is not None, "a change has old objects"
        old_side = objects_over(old, candidate.old_objects, namespace)
        before = plane(question.plane).ask(old_side, proving.known_part(candidate.question, old_side))
        if claim.refuted_by(proving.outcomes(before), outcomes):
            return Counterexample(candidate.objects, question, answer, before), ""
        return None, f"before: {before.sentence}; after: {answer.sentence}"
    except InputError as error:
        return None, error.summary


def engine_result(proof: Proof, result: ProofResult, answer: Answer) -> ProofResult:
    """Return a refutation that a real engine was asked about, with what the engine answered.

    A refutation that the engine does not confirm is Unknown: either the prover or the engine is wrong.
    """
    counterexample = result.counterexample
    assert counterexample is not None, "only refutations are confirmed"
    proving = proving_plane(counterexample.question.plane)
    assert proving is not None, "only planes that can be proved have refutations"
    outcomes = proving.outcomes(answer)
    if isinstance(proof.claim, Claim):
        holds = proof.claim.refuted_by(outcomes)
    else:
        holds = (Verdict.ALLOW in outcomes) == (proof.claim.word == "noNew")
    if holds:
        return replace(result, counterexample=replace(counterexample, answer=answer))
    why = (
        f"the engine does not confirm a counterexample: it answers {answer.sentence!r} where the model has "
        f"{counterexample.answer.sentence!r}. This is a defect of Tierwall: please report it with the policies and the "
        "proof"
    )
    return _unknown(proof, why, result.not_considered, is_defect=True)


def _unknown(proof: Proof, why: str, left_out: tuple[Omission, ...] = (), *, is_defect: bool = False) -> ProofResult:
    return ProofResult(
        proof=ProofStatus.UNKNOWN,
        sentence=f"Unknown: {why}",
        why=why,
        assume=proof.assume.given,
        not_considered=left_out,
        is_defect=is_defect,
    )
