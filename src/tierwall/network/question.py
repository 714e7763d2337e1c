"""Questions to the network plane, and their answers step by step (docs/policy-tests.md#network).

docs/semantics.md#who-decided-a-connection says which rules and policies count as deciders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from msgspec import field, structs

from tierwall.core.answer import Answer, Reason, Step
from tierwall.core.diagnostics import Diagnostic, input_error, near_miss, unknown_name_diagnostic
from tierwall.core.expectation import Expectation, one_of
from tierwall.core.question import Question
from tierwall.core.reference import full_name
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.network.decide import decide
from tierwall.network.detail import NOT_APPLICABLE, DecidingPart, DirectionDecision, NetworkDetail, ShadowDecision
from tierwall.network.model.endpoints import LAST_PORT, PROTOCOLS, Endpoint, address_endpoint
from tierwall.network.model.model import NetworkModel, network_model, network_model_with_shadow
from tierwall.network.model.policies import is_shadow
from tierwall.network.model.rules import EGRESS, NetworkRule, peers_by_kind
from tierwall.network.sentence import sentence, shadow_sentence
from tierwall.resources.foreign import omissions
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import parse_address

OUTSIDE = "outside"
_DIRECTION_WORDS = (Verdict.ALLOW, Verdict.DENY, Verdict.CONDITIONAL, StepVerdict.NOT_APPLICABLE)


class NetworkQuestion(Question, frozen=True, kw_only=True):
    """May `source` open a connection to `to`? An endpoint is `namespace/pod`, `{ip: …}` or `{node: …}`."""

    plane: ClassVar[str] = "network"
    names: ClassVar[tuple[str, ...]] = ("source", "to")

    source: str | Mapping[str, str] | None = field(name="from", default=None)
    to: str | Mapping[str, str] | None = None
    protocol: str = "TCP"
    port: int | None = None

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
    detail = _decide(network, question, problems)
    if everything is not network:
        detail = structs.replace(detail, shadow=_shadow(detail, _decide(everything, question)))
    namespaces = {end.namespace for end in (detail.source, detail.destination) if end.kind == "pod"}
    left_out = omissions(snapshot, "network", namespaces)
    return structs.replace(answer(detail), not_considered=left_out) if left_out else answer(detail)


def answer(detail: NetworkDetail) -> Answer:
    """Turn a decision into an answer."""
    steps = (*_steps(detail, detail.egress), *_steps(detail, detail.ingress))
    return Answer(
        plane=NetworkQuestion.plane,
        verdict=detail.verdict,
        sentence=sentence(detail),
        decided_by=detail.decided_by,
        steps=steps,
        detail=detail,
    )


def _decide(network: NetworkModel, question: NetworkQuestion, known: Iterable[Diagnostic] = ()) -> NetworkDetail:
    problems = list(known)
    source = _endpoint(network, question.source, "from", problems)
    destination = _endpoint(network, question.to, "to", problems)
    protocol, port = question.protocol, question.port
    if protocol not in PROTOCOLS:
        message = f"expected one of {', '.join(PROTOCOLS)} as `protocol`, found `{protocol}`"
        problems.append(Diagnostic("TW703", message, hint=near_miss(str(protocol), PROTOCOLS)))
    if type(port) is not int or not 1 <= port <= LAST_PORT:
        message = f"expected a number from 1 to {LAST_PORT} as `port`, found {_shown(port)}"
        problems.append(Diagnostic("TW703", message))
    if problems or source is None or destination is None or type(port) is not int:
        raise input_error(problems)
    return decide(network, source, destination, protocol, port)


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return f"the string `{value}`" if isinstance(value, str) else f"`{value}`"


def _endpoint(network: NetworkModel, value: object, key: str, problems: list[Diagnostic]) -> Endpoint | None:
    """Return the endpoint that `from` or `to` names, or None after adding what is wrong to `problems`."""
    if isinstance(value, str) and value.count("/") == 1 and all(value.split("/")):
        namespace, _, name = value.partition("/")
        pod = network.pod(namespace, name)
        if pod is None:
            problems.append(_unknown_pod(network, namespace, name))
        return pod
    if isinstance(value, Mapping) and len(value) == 1 and ("ip" in value or "node" in value):
        if "node" in value:
            node = network.node(value["node"]) if isinstance(value["node"], str) else None
            if node is None:
                hint = near_miss(str(value["node"]), (node.name for node in network.nodes))
                problems.append(unknown_name_diagnostic(f"there is no node `{value['node']}`", hint))
            return node
        address = parse_address(value["ip"])
        if address is not None:
            return network.pod_at(address) or address_endpoint(address)
        problems.append(Diagnostic("TW703", f"expected an IP address in `{key}`, found `{value['ip']}`"))
        return None
    given = "nothing" if value is None else f"`{value}`"
    message = f"expected `namespace/pod`, {{ip: …}} or {{node: …}} as `{key}`, found {given}"
    problems.append(Diagnostic("TW703", message))
    return None


def _unknown_pod(network: NetworkModel, namespace: str, name: str) -> Diagnostic:
    siblings = [pod.name for pod in network.pods if pod.namespace == namespace]
    if siblings:
        return unknown_name_diagnostic(
            f"there is no pod `{name}` in namespace `{namespace}`", near_miss(name, siblings)
        )
    populated = {pod.namespace for pod in network.pods}
    return unknown_name_diagnostic(f"there is no pod in namespace `{namespace}`", near_miss(namespace, populated))


def _shadow(now: NetworkDetail, then: NetworkDetail) -> ShadowDecision | None:
    """Return what all policies in shadow mode together would change, or None if nothing changes."""
    if now.verdict is then.verdict and now.decided_by == then.decided_by:
        return None
    policies = dict.fromkeys(
        str(part.decider.policy)
        for direction in (then.egress, then.ingress)
        for part, verdict, _ in direction.consulted
        if part is not None and verdict is not StepVerdict.NO_MATCH and is_shadow(part.resource)
    )
    return ShadowDecision(tuple(policies), then, shadow_sentence(tuple(policies), then))


def _steps(detail: NetworkDetail, decision: DirectionDecision) -> Iterator[Step]:
    """Yield the parts that were consulted in one direction, in order."""
    direction = str(decision.direction)
    if decision.verdict is NOT_APPLICABLE.verdict:
        same = detail.source is detail.destination
        yield Step(
            direction=direction,
            tier="NotApplicable",
            verdict=decision.verdict,
            reason=Reason.SAME_POD if same else Reason.NOT_UNDER_POLICY,
            note="a pod and itself" if same else "host-network pods, nodes and plain addresses are not under policy",
        )
        return
    own_node = "Kubernetes exempts traffic between a pod and its own node" if _same_node(detail) else ""
    for number, (part, verdict, reason) in enumerate(decision.consulted, 1):
        last = own_node if number == len(decision.consulted) else ""
        if part is None:
            yield Step(direction=direction, tier="Default", verdict=verdict, reason=reason, note=last or None)
            continue
        notes = [note for note in (part.closed, _by_address(part, detail, decision), last) if note]
        yield Step(
            direction=direction,
            tier=str(part.tier),
            verdict=verdict,
            reason=reason,
            policy=part.policy,
            rule=part.place,
            name=part.name or None,
            note="; ".join(notes) if notes else None,
            origin=part.resource,
            path=part.path,
        )


def _by_address(part: DecidingPart, detail: NetworkDetail, decision: DirectionDecision) -> str:
    """Return a note if a pod was matched by its address, which not all implementations of NetworkPolicy do."""
    if not isinstance(part, NetworkRule) or not part.peers:
        return ""
    other = detail.destination if decision.direction is EGRESS else detail.source
    if not other.under_policy:
        return ""
    _pods, addresses, _nodes, _domains = peers_by_kind(part.peers)
    blocks = (block for peer in addresses for block in peer.blocks)
    if any(block.contains(address) for block in blocks for address in other.addresses):
        return f"{other} is matched by its address"
    return ""


def _same_node(detail: NetworkDetail) -> bool:
    source, destination = detail.source, detail.destination
    for pod, other in ((source, destination), (destination, source)):
        if pod.under_policy and pod.node and not other.under_policy:
            return other.node == pod.node or (other.kind == "node" and other.name == pod.node)
    return False
