"""Proofs about the api plane: the chain of authorizers, RBAC and conditions, for every request (docs/prove.md#regions).

A construct of CEL that has no translation makes a proof Unknown. So do requests about which nothing can be said, if the
claim depends on them: what a node may do because of its pods, and lists whose selectors may imply a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tierwall.api.algebra.request import ConditionData
from tierwall.api.authorizers.expression import ENVIRONMENT
from tierwall.api.model import configured_authorizers
from tierwall.api.question import ApiQuestion, attributes_of, data_of
from tierwall.cel.syntax.ast import Expr
from tierwall.core.answer import Answer
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.verdict import Verdict
from tierwall.logic.cel.open_outcome import OpenOutcomes
from tierwall.logic.cel.open_question import find_model, is_true, settle_open
from tierwall.logic.cel.unknown import UnknownWorld
from tierwall.logic.solver import CircuitSolver
from tierwall.logic.unsupported import Unsupported
from tierwall.proofs.api.chain import ChainCircuit
from tierwall.proofs.api.opened_reads import opened_reads, selecting_read
from tierwall.proofs.api.region import ApiRegion
from tierwall.proofs.api.region import read_region as read_region
from tierwall.proofs.api.request import UnknownRequest
from tierwall.proofs.expression import read_expression
from tierwall.proofs.proof import Assumptions, Change, Claim
from tierwall.proofs.reader import ProofReader
from tierwall.proofs.result import Candidate, NoCounterexample, PlaneFinding, Unsolved
from tierwall.resources.snapshot import Snapshot

VERDICTS = (Verdict.ALLOW, Verdict.DENY, Verdict.NO_OPINION)
ASSUMPTIONS = ("objects",)
# Conflicts of the solver in one unit of effort, about a second of CPU.
CONFLICTS = 5_000


_SELECTS = "a policy asks about objects, of which requests select a part"


class UndecidedRequest(Struct, frozen=True):
    """Literals that are all true of a request about which nobody can tell, and why; perhaps some selectors show it."""

    literals: list[int]
    why: str
    is_read: bool = False


class RefutationQuestion(Struct, frozen=True):
    """What is true of a counterexample: all of `wanted`, and nothing that is undecided as a whole.

    Without a counterexample, nobody knows whether an undecided request would be one.
    """

    wanted: list[int]
    undecided: tuple[UndecidedRequest, ...]


def scope(assume: Assumptions) -> str:
    """Say what may come on this plane."""
    return "every user, request and object" + (f" where `{assume.objects}`" if assume.objects else "")


def known_part(question: ApiQuestion, snapshot: Snapshot) -> ApiQuestion:
    """Return the question without answers of webhooks that are not in the chain of these objects."""
    chain = {member.name for member in configured_authorizers(snapshot)}
    answers = {name: answer for name, answer in (question.webhooks or {}).items() if name in chain}
    return replace(question, webhooks=answers or None)


def outcomes(answer: Answer) -> frozenset[Verdict]:
    """Return what an answer comes to in the end; a Conditional one without data may come to anything."""
    final = answer.detail.final
    return frozenset(VERDICTS) if final is None else frozenset((final,))


def prove(snapshot: Snapshot, region: ApiRegion, claim: Claim, assume: Assumptions, effort: float) -> PlaneFinding:
    """Search for a request of the region that refutes the claim."""

    def refuting(request: UnknownRequest, chains: Sequence[ChainCircuit]) -> RefutationQuestion:
        verdict = chains[0].verdict()
        literals = verdict.is_verdict(claim.verdict)
        wanted = list(literals) if claim.word == "never" else [-request.circuit.all_of(literals)]
        undecided = (*verdict.undecided, (verdict.selects, _SELECTS))
        return RefutationQuestion(
            wanted, tuple(UndecidedRequest([*wanted, literal], why) for literal, why in undecided)
        )

    return _search((snapshot,), region, assume, effort, refuting)


def prove_change(old: Snapshot, new: Snapshot, change: Change, assume: Assumptions, effort: float) -> PlaneFinding:
    """Search for a request that is allowed now and was not, or the other way round."""

    def refuting(request: UnknownRequest, chains: Sequence[ChainCircuit]) -> RefutationQuestion:
        verdicts = [chain.verdict() for chain in chains]
        order = slice(None, None, -1) if change.word == "noNew" else slice(None)
        gained, kept = verdicts[order]
        wanted = [gained.allows, -kept.allows, -gained.selects, -kept.selects]
        reasons = [reason for verdict in verdicts for reason in verdict.undecided]
        undecided = (UndecidedRequest([*wanted, literal], why) for literal, why in reasons)
        reads = (
            UndecidedRequest(literals, _SELECTS, is_read=True)
            for literals in opened_reads(request, chains[order], (gained, kept))
        )
        return RefutationQuestion(wanted, (*undecided, *reads))

    def opened(request: ApiQuestion) -> ApiQuestion | None:
        return selecting_read(request, *((new, old) if change.word == "noNew" else (old, new)))

    return _search((old, new), ApiRegion(), assume, effort, refuting, opened)


def _search(
    snapshots: tuple[Snapshot, ...],
    region: ApiRegion,
    assume: Assumptions,
    effort: float,
    refuting: Callable[[UnknownRequest, Sequence[ChainCircuit]], RefutationQuestion],
    opened_by: Callable[[ApiQuestion], ApiQuestion | None] | None = None,
) -> PlaneFinding:
    assumed = _assumption(assume)

    def build(world: UnknownWorld, opened: OpenOutcomes) -> tuple[UnknownRequest, list[int], RefutationQuestion]:
        request = UnknownRequest(world, snapshots, opened)
        refutation = refuting(request, [ChainCircuit(snapshot, request) for snapshot in snapshots])
        with opened.described(lambda error: f"{error.construct} in `where`"):
            within = request.within(region)
        if assumed is not None:
            with opened.described(lambda error: f"{error.construct} in `assume.objects`"):
                request.assume(assumed)
        request.finish()
        return request, within, refutation

    try:
        values, opened, (request, within, refutation) = settle_open(build)
    except Unsupported as error:
        return Unsolved(error.construct)
    solver = CircuitSolver(values.world.circuit)
    budget = int(effort * CONFLICTS)
    undecided = [request.circuit.all_of(case.literals) for case in refutation.undecided]
    question = [*within, *refutation.wanted, *(-literal for literal in undecided)]
    possible = solver.possible(question, budget)
    if possible:
        preferences = [*request.preferences(), *values.preferences()]
        model = find_model(solver, question, opened, values, preferences)
        asked = request.question(values, solver)
        if model.why and not _is_meant(asked, region, assumed):
            return Unsolved(model.why)
        return Candidate((), asked, hangs_on=model.why)
    if possible is None:
        return Unsolved(f"the limit of `proofEffort: {effort:g}`")
    # What nobody can say may be so or not: a claim that holds either way is proved.
    for case in refutation.undecided:
        question = [*within, *case.literals]
        possible = solver.possible(question, budget)
        if possible and case.is_read and opened_by is not None:
            find_model(solver, question, opened, values, [*request.preferences(), *values.preferences()])
            read = opened_by(request.question(values, solver))
            if read is not None:
                return Candidate((), read)
        if possible is not False:
            return Unsolved(case.why)
    return NoCounterexample(is_vacuous=solver.possible(within, budget) is False)


def _is_meant(question: ApiQuestion, region: ApiRegion, assumed: Expr | None) -> bool:
    """Whether a request is in a region, and its objects are as assumed, by the evaluator."""
    attributes = attributes_of(question, [])
    data = data_of(question, attributes, []) or ConditionData()
    request = attributes.request()
    if attributes.is_name_unknown:
        request["name"] = data.name
    variables = {**data.variables(), "request": request}
    needed = [(region.where, variables)]
    given = [value for value in (data.object, data.old_object) if value is not None]
    needed += [(assumed, {**variables, "object": value}) for value in given]
    return all(tree is None or is_true(tree, ENVIRONMENT, known) for tree, known in needed)


def _assumption(assume: Assumptions) -> Expr | None:
    problems: list[Diagnostic] = []
    tree = read_expression(assume.objects, "assume.objects", ENVIRONMENT, ProofReader(problems))
    if problems:
        raise InputError(problems)
    return tree
