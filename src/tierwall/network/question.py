"""Questions to the network plane, and their answers step by step (docs/policy-tests.md#network).

docs/semantics.md#who-decided-a-connection says which rules and policies count as deciders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import ClassVar, TypeAlias

from msgspec import field, structs

from tierwall.core.answer import Answer, Omission, Reason, Step
from tierwall.core.diagnostics import Diagnostic, input_error, near_miss
from tierwall.core.expectation import Expectation, one_of
from tierwall.core.question import Question
from tierwall.core.reference import full_name
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.core.words import as_given
from tierwall.network.decide import decide
from tierwall.network.detail import (
    NOT_APPLICABLE,
    ConnectionDecision,
    DecidingPart,
    DirectionDecision,
    NetworkDetail,
    ShadowDecision,
    single_detail,
)
from tierwall.network.ends import OUTSIDE, AskedEndpoints, EndFinder, plain_pod
from tierwall.network.model.endpoints import LAST_PORT, PROTOCOLS, Endpoint, objects_behind
from tierwall.network.model.model import NetworkModel, network_model, network_model_with_shadow
from tierwall.network.model.policies import is_shadow
from tierwall.network.model.rules import EGRESS, NetworkRule, peers_by_kind
from tierwall.network.otherwise import with_notes
from tierwall.network.pairs import decide_pairs
from tierwall.network.sentence import sentence, shadow_sentence
from tierwall.resources.foreign import omissions
from tierwall.resources.once import per_snapshot
from tierwall.resources.refused import is_plain
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import parse_address

# Finds both ends of a question among the endpoints of a model.
FindEnds: TypeAlias = Callable[[NetworkModel], tuple[AskedEndpoints, AskedEndpoints]]
_DIRECTION_WORDS = (Verdict.ALLOW, Verdict.DENY, Verdict.CONDITIONAL, StepVerdict.NOT_APPLICABLE)


class NetworkQuestion(Question, frozen=True, kw_only=True):
    """May `source` open a connection to `to`?

    An end is `namespace/pod`, a workload such as `Deployment/namespace/name`, `outside`, `{ip: …}` or `{node: …}`; `to`
    may also be `Service/namespace/name`, and `port` is then the Service's, by number or name.
    """

    plane: ClassVar[str] = "network"
    names: ClassVar[tuple[str, ...]] = ("source", "to")

    source: str | Mapping[str, str] | None = field(name="from", default=None)
    to: str | Mapping[str, str] | None = None
    protocol: str = "TCP"
    port: int | str | None = None

    @staticmethod
    def full_name(name: object, namespace: str) -> object:
        """Put a namespace into a name that has none. `outside` and addresses are not names."""
        if not isinstance(name, str) or "/" in name:
            return full_name(name, namespace)
        return name if name == OUTSIDE or parse_address(name) is not None else full_name(name, namespace)


QUESTION = NetworkQuestion
EXPECTATIONS: Mapping[str, Expectation] = {
    "egress": one_of(_DIRECTION_WORDS, lambda answer: answer.detail.egress.verdict),
    "ingress": one_of(_DIRECTION_WORDS, lambda answer: answer.detail.ingress.verdict),
}


def ask(snapshot: Snapshot, question: NetworkQuestion, problems: Iterable[Diagnostic] = ()) -> Answer:
    """Answer a question. InputError lists everything wrong with it, after the caller's `problems`."""
    network, everything = network_model(snapshot), network_model_with_shadow(snapshot)
    detail = _decide(snapshot, network, question, problems)
    if everything is not network:
        detail = structs.replace(detail, shadow=_shadow(detail, _decide(snapshot, everything, question)))
    return _considered(snapshot, detail)


def ask_between(snapshot: Snapshot, find_ends: FindEnds, protocol: str, port: int | str) -> Answer:
    """Answer a question about ends that no words name, such as the pods of a Gateway; `path` asks so.

    `find_ends` is called for each model that decides, because a model with policies in shadow mode has its own pods.
    """
    network, everything = network_model(snapshot), network_model_with_shadow(snapshot)
    detail = _decide_ends(network, *find_ends(network), protocol, port)
    if everything is not network:
        then = _decide_ends(everything, *find_ends(everything), protocol, port)
        detail = structs.replace(detail, shadow=_shadow(detail, then))
    return _considered(snapshot, detail)


def _considered(snapshot: Snapshot, detail: NetworkDetail) -> Answer:
    left_out = _left_out(snapshot, detail)
    return structs.replace(answer(detail), not_considered=left_out) if left_out else answer(detail)


def _left_out(snapshot: Snapshot, detail: NetworkDetail) -> tuple[Omission, ...]:
    """Return what was not considered about all ends; mostly nothing, which is known for each end alone."""
    decisions = detail.decisions
    for decision in decisions:
        for end in (decision.source, decision.destination):
            if _has_omissions(snapshot, end if end.kind != "address" else None):
                ends = (end for decision in decisions for end in (decision.source, decision.destination))
                return _omissions(snapshot, tuple(dict.fromkeys(ends)))
    return ()


@per_snapshot
def _has_omissions(snapshot: Snapshot, end: Endpoint | None) -> bool:
    """Whether something is left out of answers about an endpoint; None stands for any address."""
    if end is None:
        return bool(omissions(snapshot, "network", ()))
    # Mostly nothing is, which is known once for its namespace, and after a look at the pod.
    namespace = end.namespace if end.kind == "pod" else ""
    if not _has_foreign(snapshot, namespace) and all(map(is_plain, objects_behind(snapshot, end))):
        return False
    return bool(_omissions(snapshot, (end,)))


@per_snapshot
def _has_foreign(snapshot: Snapshot, namespace: str) -> bool:
    """Whether something is left out of all answers about a namespace, or about none if the name is empty."""
    return bool(omissions(snapshot, "network", {namespace} if namespace else ()))


def _omissions(snapshot: Snapshot, ends: Collection[Endpoint]) -> tuple[Omission, ...]:
    named = [resource for end in ends for resource in objects_behind(snapshot, end)]
    namespaces = {end.namespace for end in ends if end.kind == "pod"}
    # An address may be that of a pod or node that could not be read. A pod on the host network is also its node.
    addresses = not all(end.under_policy for end in ends)
    return omissions(snapshot, "network", namespaces, named=named, is_about_addresses=addresses)


def answer(detail: NetworkDetail) -> Answer:
    """Turn the decisions about a question into its answer."""
    return Answer(
        plane=NetworkQuestion.plane,
        verdict=detail.verdict,
        sentence=sentence(detail),
        decided_by=detail.decided_by,
        steps=_steps(detail),
        detail=detail,
    )


def _decide(
    snapshot: Snapshot, network: NetworkModel, question: NetworkQuestion, known: Iterable[Diagnostic] = ()
) -> NetworkDetail:
    problems = list(known)
    protocol, port = question.protocol, question.port
    here, there = plain_pod(network, question.source), plain_pod(network, question.to)
    wrong = _wrong_protocol_or_port(question)
    if here is not None and there is not None and type(port) is int and not (wrong or problems):
        return single_detail(with_notes(network, decide(network, here, there, protocol, port)))
    finder = EndFinder(snapshot, network, problems)
    source = finder.find(question.source, "from", protocol, 0)
    to = None
    if not _is_service(question.to):
        to = finder.find(question.to, "to", protocol, 0)
    elif not wrong:
        to = finder.find(question.to, "to", protocol, port or 0)
    problems += wrong
    if problems or source is None or to is None or port is None:
        raise input_error(problems)
    return _decide_ends(network, source, to, protocol, port)


def _decide_ends(
    network: NetworkModel, source: AskedEndpoints, to: AskedEndpoints, protocol: str, port: int | str
) -> NetworkDetail:
    number = port if isinstance(port, int) else 0
    if not source.several and not to.several:
        decision = decide(network, source.groups[0].members[0], to.groups[0].members[0], protocol, number)
        return single_detail(with_notes(network, decision))

    def decide_pair(here: Endpoint, there: Endpoint, at: int) -> ConnectionDecision:
        return with_notes(network, decide(network, here, there, protocol, at))

    groups = decide_pairs(source, to, number, decide_pair)
    return NetworkDetail(
        source.name,
        to.name,
        protocol,
        port,
        groups,
        several=True,
        target_ports=tuple(sorted({group.port for group in to.groups if group.port is not None})),
        notes=(*source.notes, *to.notes),
    )


def _wrong_protocol_or_port(question: NetworkQuestion) -> list[Diagnostic]:
    protocol, port, problems = question.protocol, question.port, []
    if protocol not in PROTOCOLS:
        message = f"expected one of {', '.join(PROTOCOLS)} as `protocol`, found {as_given(protocol)}"
        problems.append(Diagnostic("TW703", message, hint=near_miss(str(protocol), PROTOCOLS)))
    service = _is_service(question.to)
    if not (type(port) is int and 1 <= port <= LAST_PORT) and not (service and isinstance(port, str) and port):
        expected = f"a number from 1 to {LAST_PORT}" + (" or the name of a port" if service else "")
        problems.append(Diagnostic("TW703", f"expected {expected} as `port`, found {as_given(port, 'the string ')}"))
    return problems


def _is_service(end: object) -> bool:
    return isinstance(end, str) and end.startswith("Service/")


def _shadow(now: NetworkDetail, then: NetworkDetail) -> ShadowDecision | None:
    """Return what all policies in shadow mode together would change, or None if nothing changes."""
    if _summary(now) == _summary(then):
        return None
    policies = dict.fromkeys(
        str(part.decider.policy)
        for direction in (then.egress, then.ingress)
        for part, verdict, _ in direction.consulted
        if part is not None and verdict is not StepVerdict.NO_MATCH and is_shadow(part.resource)
    )
    return ShadowDecision(tuple(policies), then, shadow_sentence(tuple(policies), then))


def _summary(detail: NetworkDetail) -> Hashable:
    return tuple((group.sources, group.destinations, group.verdict, group.decided_by) for group in detail.ends)


def _steps(detail: NetworkDetail) -> tuple[Step, ...]:
    """Return the parts that were consulted, egress first. Parts that several connections meet alike are named once."""
    decisions = detail.decisions
    if len(decisions) == 1:
        (decision,) = decisions
        return (*_direction_steps(decision, decision.egress), *_direction_steps(decision, decision.ingress))
    egress = (step for decision in decisions for step in _direction_steps(decision, decision.egress))
    ingress = (step for decision in decisions for step in _direction_steps(decision, decision.ingress))
    return tuple({_identity(step): step for step in (*egress, *ingress)}.values())


def _identity(step: Step) -> Hashable:
    return step.direction, step.tier, step.verdict, step.reason, step.policy, step.rule, step.note


def _direction_steps(connection: ConnectionDecision, decision: DirectionDecision) -> Iterator[Step]:
    """Yield the parts that were consulted in one direction of a connection, in order."""
    direction = str(decision.direction)
    if decision.verdict is NOT_APPLICABLE.verdict:
        same = connection.source is connection.destination
        yield Step(
            direction=direction,
            tier="NotApplicable",
            verdict=decision.verdict,
            reason=Reason.SAME_POD if same else Reason.NOT_UNDER_POLICY,
            note="a pod and itself" if same else "host-network pods, nodes and plain addresses are not under policy",
        )
        return
    own_node = "Kubernetes exempts traffic between a pod and its own node" if _same_node(connection) else ""
    closing = "; ".join([*([own_node] if own_node else ()), *decision.notes]) if decision.notes else own_node
    left = len(decision.consulted)
    for part, verdict, reason in decision.consulted:
        left -= 1
        note = closing if not left else ""
        if part is None:
            yield Step(direction=direction, tier="Default", verdict=verdict, reason=reason, note=note or None)
            continue
        by_address = _by_address(part, connection, decision)
        if part.closed or by_address:
            note = "; ".join([words for words in (part.closed, by_address, note) if words])
        yield Step(
            direction=direction,
            tier=str(part.tier),
            verdict=verdict,
            reason=reason,
            policy=part.policy,
            rule=part.place,
            name=part.name or None,
            note=note or None,
            origin=part.resource,
            path=part.path,
        )


def _by_address(part: DecidingPart, connection: ConnectionDecision, decision: DirectionDecision) -> str:
    """Return a note if a pod was matched by its address, which not all implementations of NetworkPolicy do."""
    if not isinstance(part, NetworkRule) or not part.peers:
        return ""
    other = connection.destination if decision.direction is EGRESS else connection.source
    if not other.under_policy:
        return ""
    _pods, addresses, _nodes, _domains = peers_by_kind(part.peers)
    blocks = (block for peer in addresses for block in peer.blocks)
    if any(block.contains(address) for block in blocks for address in other.addresses):
        return f"{other} is matched by its address"
    return ""


def _same_node(connection: ConnectionDecision) -> bool:
    source, destination = connection.source, connection.destination
    for pod, other in ((source, destination), (destination, source)):
        if pod.under_policy and pod.node and not other.under_policy:
            return other.node == pod.node or (other.kind == "node" and other.name == pod.node)
    return False
