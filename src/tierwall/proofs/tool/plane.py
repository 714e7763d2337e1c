"""Proofs about the tool plane: Gateway and Backend policies of one way, for every request (docs/prove.md#regions).

A change is looked at way by way: from every listener to every backend whose policies differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from tierwall.attach.acceptance import ENVIRONMENT
from tierwall.attach.place import BACKEND, GATEWAY, SERVICE
from tierwall.core.answer import Answer
from tierwall.core.diagnostics import Diagnostic, input_error
from tierwall.core.reference import Reference
from tierwall.core.verdict import Verdict
from tierwall.logic.cel.open_outcome import OpenOutcomes
from tierwall.logic.cel.open_question import find_model, is_true, settle_open
from tierwall.logic.cel.unknown import UnknownWorld
from tierwall.logic.solver import CircuitSolver
from tierwall.logic.unsupported import Unsupported
from tierwall.proofs.proof import Assumptions, Change, Claim
from tierwall.proofs.result import Candidate, NoCounterexample, PlaneFinding, Unsolved
from tierwall.proofs.tool.call import UnknownCall
from tierwall.proofs.tool.policies import PolicyCircuit
from tierwall.proofs.tool.region import ToolRegion
from tierwall.proofs.tool.region import read_region as read_region
from tierwall.resources.overlay import overlay
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.joined import BEFORE_NAME, BEFORE_URI, USES
from tierwall.tool.model import BACKENDS
from tierwall.tool.question import ToolQuestion, policies_by_name, read_question
from tierwall.tool.ways import BackendWay, GuardedWay, find_way, routed_ways, unrouted_ways

VERDICTS = (Verdict.ALLOW, Verdict.DENY)
ASSUMPTIONS: tuple[str, ...] = ()
# Conflicts of the solver in one unit of effort, about a second of CPU.
CONFLICTS = 5_000


def scope(assume: Assumptions) -> str:
    """Say what may come on this plane."""
    return "every caller, request and answer of external authorizers"


def known_part(question: ToolQuestion, snapshot: Snapshot) -> ToolQuestion:
    """Return the question without answers of authorizers that no policy of these objects asks."""
    answers = question.external_auth
    if not isinstance(answers, Mapping):
        return question
    known = policies_by_name(snapshot)
    kept = {policy: answer for policy, answer in answers.items() if policy in known}
    return replace(question, external_auth=kept or None)


def outcomes(answer: Answer) -> frozenset[Verdict]:
    """Return what an answer comes to; the question has the answers of authorizers."""
    assert answer.verdict is not None, "the tool plane has verdicts"
    return frozenset((Verdict(answer.verdict),))


def prove(snapshot: Snapshot, region: ToolRegion, claim: Claim, assume: Assumptions, effort: float) -> PlaneFinding:
    """Search for a request of the region that refutes the claim."""
    problems: list[Diagnostic] = []
    way = find_way(snapshot, region.gateway, region.listener, region.backend, problems)
    if way is None:
        raise input_error(problems)
    allow = (claim.verdict is Verdict.ALLOW) == (claim.word == "never")
    question = ToolQuestion(gateway=region.gateway, listener=region.listener, backend=region.backend)
    return _search(snapshot, (way,), region, (allow,), question, effort)


def prove_change(old: Snapshot, new: Snapshot, change: Change, assume: Assumptions, effort: float) -> PlaneFinding:
    """Search for a request that passes on some way now and did not, or the other way round."""
    places = (GATEWAY, SERVICE, BACKEND, *BACKENDS)
    old_only, new_only = (
        [resource for kind in places for resource in here.of_kind(*kind) if there.find(resource.reference) is None]
        for here, there in ((old, new), (new, old))
    )
    # What exists on one side may come on the other, too.
    before, after = overlay(old, new_only), overlay(new, old_only)
    ways = {_name(way) for side in (before, after) for way in (*unrouted_ways(side), *routed_ways(side))}
    unsolved: Unsolved | None = None
    listeners = Counter(name[:3] for name in ways)
    for *names, listener_set in sorted(ways):
        name = names[0], names[1], names[2]
        question = ToolQuestion(gateway=name[0], listener=name[1], backend=name[2])
        sides = [find_way(snapshot, *name, [], listener_set or None) for snapshot in (before, after)]
        guarded = [side for side in sides if side is not None]
        if len(guarded) < 2:
            unsolved = unsolved or Unsolved(
                f"listener `{name[1]}` of Gateway/{name[0]} is on one side of the change only"
            )
            continue
        if _same_policies(guarded[0], guarded[1]):
            continue
        wanted = (False, True) if change.word == "noNew" else (True, False)
        finding = _search(after, tuple(guarded), ToolRegion(), wanted, question, effort)
        if isinstance(finding, Candidate) and listener_set and listeners[name] > 1:
            # A question about this one of them cannot be asked.
            finding = Unsolved(
                f"there may be a change at `{name[1]}` of ListenerSet/{listener_set}, one of several so called"
            )
        if isinstance(finding, Candidate):
            return replace(
                finding,
                objects=tuple(resource.value for resource in old_only),
                old_objects=tuple(resource.value for resource in new_only),
            )
        if isinstance(finding, Unsolved):
            unsolved = unsolved or finding
    return unsolved or NoCounterexample()


def _name(way: BackendWay) -> tuple[str, str, str, str]:
    backend, gateway = way.backend, way.gateway
    kind = f"XBackend.{way.resource.group}" if backend.kind == "XBackend" else backend.kind
    names = f"{gateway.namespace}/{gateway.name}", way.listener.name, f"{kind}/{backend.namespace}/{backend.name}"
    return *names, way.listener_set or ""


def _same_policies(before: GuardedWay, after: GuardedWay) -> bool:
    sides = [[policy for tier in way.stack for policy in tier.policies] for way in (before, after)]
    return (
        before.backend == after.backend
        and len(sides[0]) == len(sides[1])
        and all(old.resource.has_same_content(new.resource) for old, new in zip(*sides, strict=True))
        and (before.listener.port if before.listener else 0) == (after.listener.port if after.listener else 0)
    )


def _search(
    snapshot: Snapshot,
    ways: tuple[GuardedWay, ...],
    region: ToolRegion,
    wanted: tuple[bool, ...],
    question: ToolQuestion,
    effort: float,
) -> PlaneFinding:
    """Search for a request that the policies of each way allow, or do not, as wanted."""
    way = ways[-1]
    port = way.listener.port if way.listener is not None else 0

    def build(
        world: UnknownWorld, opened: OpenOutcomes
    ) -> tuple[UnknownCall, Mapping[Reference, int], list[int], list[int], list[int]]:
        call = UnknownCall(world, way.backend, port, opened)
        policies = PolicyCircuit(call)
        allows = [policies.allows(side.stack) for side in ways]
        refuting = [literal if want else -literal for literal, want in zip(allows, wanted, strict=True)]
        within = call.within(region)
        return call, policies.answers, within, refuting, call.usual()

    try:
        values, opened, (call, answers, within, refuting, usual) = settle_open(build)
    except Unsupported as error:
        return Unsolved(f"{error.construct}, on the way from {way.gateway.reference} to {way.backend}")
    solver = CircuitSolver(values.world.circuit)
    literals = [*within, *refuting]
    possible = solver.possible(literals, int(effort * CONFLICTS))
    if possible is None:
        return Unsolved(f"the limit of `proofEffort: {effort:g}`")
    if not possible:
        return NoCounterexample(is_vacuous=solver.possible(within, int(effort * CONFLICTS)) is False)
    # An authorizer that allows is the likelier surprise only where the claim needs it.
    preferences = [*usual, *values.preferences(), *(-literal for literal in answers.values())]
    model = find_model(solver, literals, opened, values, preferences)
    external = {str(policy): "Allow" if solver.is_true(literal) else "Deny" for policy, literal in answers.items()}
    fields = call.question(values, solver)
    if way.backend.targets and (given := [name for name in ("tool", "uri") if fields[name] is not None]):
        # Clients name one of the servers before what policies judge.
        if fields["method"] not in USES or region.names.keys() & set(given):
            return Unsolved(f"names of joined servers, on the way from {way.gateway.reference} to {way.backend}")
        ends = {"tool": BEFORE_NAME, "uri": BEFORE_URI}
        fields |= {name: f"{way.backend.targets[0]}{ends[name]}{fields[name]}" for name in given}
    counterexample = replace(question, **fields, external_auth=external or None)
    if model.why and region.where is not None:
        _, request, _ = read_question(snapshot, counterexample)
        if not is_true(region.where, ENVIRONMENT, request.variables()):
            return Unsolved(model.why)
    return Candidate((), counterexample, hangs_on=model.why)
