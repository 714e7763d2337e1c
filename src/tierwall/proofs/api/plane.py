"""Proofs about the api plane: the chain of authorizers, RBAC and conditions, for every request (docs/prove.md#regions).

A construct of CEL that has no translation makes a proof Unknown. So do requests about which nothing can be said, if the
claim depends on them: what a node may do because of its pods, and lists whose selectors may imply a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tierwall.api.authorizers.expression import parse
from tierwall.cel.errors import ParseError
from tierwall.cel.syntax.ast import Expr
from tierwall.core.answer import Answer
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.verdict import Verdict
from tierwall.logic.cel.encoder import settle
from tierwall.logic.cel.unknown import UnknownWorld
from tierwall.logic.cel.values import Values
from tierwall.logic.solver import CircuitSolver
from tierwall.logic.unsupported import Unsupported
from tierwall.proofs.api.chain import ChainCircuit, CircuitVerdict
from tierwall.proofs.api.region import ApiRegion
from tierwall.proofs.api.region import read_region as read_region
from tierwall.proofs.api.request import UnknownRequest
from tierwall.proofs.proof import Assumptions, Change, Claim
from tierwall.proofs.result import Candidate, NoCounterexample, PlaneFinding, Unsolved
from tierwall.resources.snapshot import Snapshot

VERDICTS = (Verdict.ALLOW, Verdict.DENY, Verdict.NO_OPINION)
ASSUMPTIONS = ("objects",)
# Conflicts of the solver in one unit of effort, about a second of CPU.
CONFLICTS = 5_000


def scope(assume: Assumptions) -> str:
    """Say what may come on this plane."""
    return "every user, request and object" + (f" where `{assume.objects}`" if assume.objects else "")


def outcomes(answer: Answer) -> frozenset[Verdict]:
    """Return what an answer comes to in the end; a Conditional one without data may come to anything."""
    final = answer.detail.final
    return frozenset(VERDICTS) if final is None else frozenset((final,))


def prove(snapshot: Snapshot, region: ApiRegion, claim: Claim, assume: Assumptions, effort: float) -> PlaneFinding:
    """Search for a request of the region that refutes the claim."""

    def refuting(request: UnknownRequest, verdicts: Sequence[CircuitVerdict]) -> list[int]:
        (verdict,) = verdicts
        literals = verdict.is_verdict(claim.verdict)
        return list(literals) if claim.word == "never" else [-request.circuit.all_of(literals)]

    return _search((snapshot,), region, assume, effort, refuting)


def prove_change(old: Snapshot, new: Snapshot, change: Change, assume: Assumptions, effort: float) -> PlaneFinding:
    """Search for a request that is allowed now and was not, or the other way round."""

    def refuting(request: UnknownRequest, verdicts: Sequence[CircuitVerdict]) -> list[int]:
        before, after = verdicts
        gained, kept = (after, before) if change.word == "noNew" else (before, after)
        return [gained.allows, -kept.allows]

    return _search((old, new), ApiRegion(), assume, effort, refuting)


def _search(
    snapshots: tuple[Snapshot, ...],
    region: ApiRegion,
    assume: Assumptions,
    effort: float,
    refuting: Callable[[UnknownRequest, Sequence[CircuitVerdict]], list[int]],
) -> PlaneFinding:
    assumed = _assumption(assume)

    def build(world: UnknownWorld) -> tuple[UnknownRequest, list[int], list[tuple[int, str]]]:
        request = UnknownRequest(world, snapshots)
        verdicts = [ChainCircuit(snapshot, request).verdict() for snapshot in snapshots]
        within = request.within(region)
        if assumed is not None:
            request.assume(assumed)
        request.finish()
        undecided = [reason for verdict in verdicts for reason in verdict.undecided]
        return request, [*within, *refuting(request, verdicts)], undecided

    try:
        world, (request, wanted, undecided) = settle(build)
        values = Values(world)
    except Unsupported as error:
        return Unsolved(error.construct)
    solver = CircuitSolver(world.circuit)
    budget = int(effort * CONFLICTS)
    question = [*wanted, *(-literal for literal, _ in undecided)]
    possible = solver.possible(question, budget)
    if possible:
        solver.smallest(question, [*request.preferences(), *values.preferences()])
        return Candidate((), request.question(values, solver))
    if possible is None:
        return Unsolved(f"the limit of `proofEffort: {effort:g}`")
    # What nobody can say may be so or not: a claim that holds either way is proved.
    for literal, why in undecided:
        if solver.possible([*wanted, literal], budget) is not False:
            return Unsolved(why)
    return NoCounterexample()


def _assumption(assume: Assumptions) -> Expr | None:
    if not assume.objects:
        return None
    try:
        return parse(assume.objects)
    except ParseError as error:
        raise InputError([Diagnostic("TW703", f"`assume.objects` is not a CEL expression: {error.message}")]) from None
