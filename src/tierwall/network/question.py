"""Questions to the network plane, and their answers step by step (docs/policy-tests.md#network).

Who decided a connection: docs/semantics.md#who-decided-a-connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from msgspec import field, structs

from tierwall.core.answer import Answer, Reason, Step
from tierwall.core.diagnostics import Diagnostic, input_error, near_miss, unknown_name_diagnostic
from tierwall.core.expectation import Expectation, one_of
from tierwall.core.question import Question
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.network.decide import decide
from tierwall.network.detail import NOT_APPLICABLE, DecidingPart, DirectionDecision, NetworkDetail, ShadowDecision
from tierwall.network.model.endpoints import LAST_PORT, PROTOCOLS, Endpoint, address_endpoint
from tierwall.network.model.model import NetworkModel, network_model, network_model_with_shadow
from tierwall.network.model.policies import is_shadow
from tierwall.network.model.rules import EGRESS, NetworkRule, peers_by_kind
from tierwall.network.sentence import sentence, shadow_sentence
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import parse_address

_DIRECTION_WORDS = (Verdict.ALLOW, Verdict.DENY, Verdict.CONDITIONAL, StepVerdict.NOT_APPLICABLE)


class NetworkQuestion(Question, frozen=True, kw_only=True):
    """May `source` open a connection to `to`? An end is `namespace/pod`, `{ip: …}` or `{node: …}`."""

    plane: ClassVar[str] = "network"

    source: str | Mapping[str, str] | None = field(name="from", default=None)
    to: str | Mapping[str, str] | None = None
    protocol: str = "TCP"
    port: int | None = None


QUESTION = NetworkQuestion
EXPECTATIONS: Mapping[str, Expectation] = {
    "egress": one_of(_DIRECTION_WORDS, lambda answer: answer.detail.egress.verdict),
    "ingress": one_of(_DIRECTION_WORDS, lambda answer: answer.detail.ingress.verdict),
}


def ask(snapshot: Snapshot, question: NetworkQuestion, problems: Iterable[Diagnostic] = ()) -> Answer:
    """Answer a question. InputError names everything wrong with it, after `problems` that the caller found."""
    network, everything = network_model(snapshot), network_model_with_shadow(snapshot)
    detail = _decided(network, question, problems)
    if everything is not network:
        detail = structs.replace(detail, shadow=_shadow(detail, _decided(everything, question)))
    return answer(detail)


def answer(detail: NetworkDetail) -> Answer:
    """A decision as an answer."""
    steps = (*_steps(detail, detail.egress), *_steps(detail, detail.ingress))
    return Answer(
        plane=NetworkQuestion.plane,
        verdict=detail.verdict,
        sentence=sentence(detail),
        decided_by=detail.decided_by,
        steps=steps,
        detail=detail,
    )


def _decided(network: NetworkModel, question: NetworkQuestion, found: Iterable[Diagnostic] = ()) -> NetworkDetail:
    problems = list(found)
    source, destination = (
        _endpoint(network, question.source, "from", problems),
        _endpoint(network, question.to, "to", problems),
    )
    protocol, port = question.protocol, question.port
    if protocol not in PROTOCOLS:
        words = f"expected one of {', '.join(PROTOCOLS)} as `protocol`, found `{protocol}`"
        problems.append(Diagnostic("TW703", words, hint=near_miss(str(protocol), PROTOCOLS)))
    if type(port) is not int or not 1 <= port <= LAST_PORT:
        words = f"expected a number from 1 to {LAST_PORT} as `port`, found {_given(port)}"
        problems.append(Diagnostic("TW703", words))
    if problems or source is None or destination is None or type(port) is not int:
        raise input_error(problems)
    return decide(network, source, destination, protocol, port)


def _given(value: object) -> str:
    if value is None:
        return "nothing"
    return f"the text `{value}`" if isinstance(value, str) else f"`{value}`"


def _endpoint(network: NetworkModel, value: object, key: str, problems: list[Diagnostic]) -> Endpoint | None:
    """The end that `from` or `to` names, or None with a problem that says what is wrong."""
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
    words = f"expected `namespace/pod`, {{ip: …}} or {{node: …}} as `{key}`, found {given}"
    problems.append(Diagnostic("TW703", words))
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
    """What the policies in shadow mode would change, all of them together; None if nothing."""
    if now.verdict is then.verdict and now.decided_by == then.decided_by:
        return None
    policies = dict.fromkeys(
        str(settler.decider.policy)
        for judgement in (then.egress, then.ingress)
        for settler, verdict, _ in judgement.looked
        if settler is not None and verdict is not StepVerdict.NO_MATCH and is_shadow(settler.resource)
    )
    return ShadowDecision(tuple(policies), then, shadow_sentence(tuple(policies), then))


def _steps(detail: NetworkDetail, judgement: DirectionDecision) -> Iterator[Step]:
    """What was looked at in one direction, in order."""
    direction = str(judgement.direction)
    if judgement.verdict is NOT_APPLICABLE.verdict:
        same = detail.source is detail.destination
        yield Step(
            direction=direction,
            tier="NotApplicable",
            verdict=judgement.verdict,
            reason=Reason.SAME_POD if same else Reason.NOT_UNDER_POLICY,
            note="a pod and itself" if same else "host-network pods, nodes and plain addresses are not under policy",
        )
        return
    own_node = "Kubernetes exempts traffic between a pod and its own node" if _same_node(detail) else ""
    for number, (settler, verdict, reason) in enumerate(judgement.looked, 1):
        last = own_node if number == len(judgement.looked) else ""
        if settler is None:
            yield Step(direction=direction, tier="Default", verdict=verdict, reason=reason, note=last or None)
            continue
        notes = [note for note in (settler.closed, _by_address(settler, detail, judgement), last) if note]
        yield Step(
            direction=direction,
            tier=str(settler.tier),
            verdict=verdict,
            reason=reason,
            policy=settler.policy,
            rule=settler.place,
            name=settler.name or None,
            note="; ".join(notes) if notes else None,
            origin=settler.resource,
            path=settler.path,
        )


def _by_address(settler: DecidingPart, detail: NetworkDetail, judgement: DirectionDecision) -> str:
    """A word where a pod was matched by its address, which implementations of NetworkPolicy do not all do."""
    if not isinstance(settler, NetworkRule) or not settler.peers:
        return ""
    other = detail.destination if judgement.direction is EGRESS else detail.source
    if not other.under_policy:
        return ""
    _pods, addresses, _nodes, _domains = peers_by_kind(settler.peers)
    blocks = (block for peer in addresses for block in peer.blocks)
    if any(block.contains(address) for block in blocks for address in other.addresses):
        return f"{other} is matched by its address"
    return ""


def _same_node(detail: NetworkDetail) -> bool:
    ends = detail.source, detail.destination
    for pod, other in (ends, ends[::-1]):
        if pod.under_policy and pod.node and not other.under_policy:
            return other.node == pod.node or (other.kind == "node" and other.name == pod.node)
    return False
