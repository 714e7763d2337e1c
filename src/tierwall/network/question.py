"""Questions to the network plane and their answers as documents.

docs/policy-tests.md#network, docs/semantics.md#who-decided-a-connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tierwall.core.diagnostics import Diagnostic, InputError, near_miss, unknown_keys
from tierwall.core.trace import DEFAULT, Step
from tierwall.core.verdict import Verdict
from tierwall.network.decide import Decision, Judgement, decide
from tierwall.network.model.addresses import parse_address
from tierwall.network.model.ends import LAST_PORT, PROTOCOLS, End, address_end
from tierwall.network.model.model import Model, model, model_with_shadow
from tierwall.network.model.rules import AddressPeer, Rule
from tierwall.network.outcome import Decider, settled
from tierwall.network.sentence import sentence, walk
from tierwall.network.would import Would, would
from tierwall.resources.snapshot import Snapshot

KEYS = ("from", "to", "protocol", "port")
EXPECTED = ("verdict", "egress", "ingress", "decidedBy")


def ask(snapshot: Snapshot, question: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The decision document; InputError lists all that is wrong with the question."""
    decision = answer(snapshot, question)
    return document(decision, with_shadow(snapshot, question, decision))


def with_shadow(snapshot: Snapshot, question: Mapping[str, Any], decision: Decision) -> Would | None:
    """What the policies in shadow mode would change about a decision; None if nothing."""
    this = model_with_shadow(snapshot)
    return would(decision, _answer(this, question)) if this is not model(snapshot) else None


def answer(snapshot: Snapshot, question: Mapping[str, Any]) -> Decision:
    """The decision itself; InputError lists all that is wrong with the question."""
    return _answer(model(snapshot), question)


def _answer(this: Model, question: Mapping[str, Any]) -> Decision:
    problems = unknown_keys("TW703", question, KEYS, "a network question")
    source, destination = (end(this, question.get(key), key, problems) for key in ("from", "to"))
    protocol, port = question.get("protocol", "TCP"), question.get("port")
    if protocol not in PROTOCOLS:
        hint = near_miss(str(protocol), PROTOCOLS)
        problems.append(_problem(f"expected one of {', '.join(PROTOCOLS)} as `protocol`, found `{protocol}`", hint))
    if type(port) is not int or not 1 <= port <= LAST_PORT:
        found = "nothing" if port is None else f"the text `{port}`" if isinstance(port, str) else f"`{port}`"
        problems.append(_problem(f"expected a number from 1 to {LAST_PORT} as `port`, found {found}"))
    if problems or source is None or destination is None or type(port) is not int:
        raise InputError(problems)
    return decide(this, source, destination, protocol, port)


def end(this: Model, value: object, key: str, problems: list[Diagnostic]) -> End | None:
    """The end that `from` or `to` names, or None with a problem that says what is wrong."""
    if isinstance(value, str) and value.count("/") == 1 and all(value.split("/")):
        namespace, _, name = value.partition("/")
        found = this.pod(namespace, name)
        if found is None:
            problems.append(_unknown_pod(this, namespace, name))
        return found
    if isinstance(value, Mapping) and len(value) == 1 and ("ip" in value or "node" in value):
        if "node" in value:
            found = this.node(value["node"]) if isinstance(value["node"], str) else None
            if found is None:
                hint = near_miss(str(value["node"]), (one.name for one in this.nodes))
                problems.append(_problem(f"there is no node `{value['node']}`", hint))
            return found
        address = parse_address(value["ip"])
        if address is not None:
            return this.at(address) or address_end(address)
        problems.append(_problem(f"expected an IP address in `{key}`, found `{value['ip']}`"))
        return None
    found_text = "nothing" if value is None else f"`{value}`"
    problems.append(_problem(f"expected `namespace/pod`, {{ip: …}} or {{node: …}} as `{key}`, found {found_text}"))
    return None


def document(decision: Decision, shadow: Would | None = None) -> dict[str, Any]:
    """A decision as `tierwall test` and `tierwall explain` print it."""
    entries = dict.fromkeys((*decision.egress.outcome.settled, *decision.ingress.outcome.settled))
    out: dict[str, Any] = {
        "sentence": sentence(decision),
        "verdict": str(decision.verdict),
        "decidedBy": [one.document() for one in entries or (DEFAULT,)],
        "egress": _direction(decision.egress),
        "ingress": _direction(decision.ingress),
        "connection": {
            "from": str(decision.source),
            "to": str(decision.destination),
            "protocol": decision.protocol,
            "port": decision.port,
        },
        "trace": [
            {"direction": str(judgement.direction), **step.document()}
            for judgement in (decision.egress, decision.ingress)
            for step in steps(decision, judgement)
        ],
    }
    if names := sorted({*decision.egress.outcome.domains, *decision.ingress.outcome.domains}):
        out["domains"] = names
    if shadow is not None:
        out["shadow"] = shadow.document()
    return out


def _direction(judgement: Judgement) -> dict[str, Any]:
    outcome = judgement.outcome
    out: dict[str, Any] = {"verdict": str(outcome.verdict)}
    if outcome.tier is not None:
        out["tier"] = str(outcome.tier)
    return out | {"decidedBy": [one.document() for one in outcome.settled], "walk": walk(judgement)}


def steps(decision: Decision, judgement: Judgement) -> Iterator[Step]:
    """What was looked at in one direction, in order."""
    if judgement.outcome.verdict is Verdict.NOT_APPLICABLE:
        itself = decision.source is decision.destination
        note = "a pod and itself" if itself else "host-network pods, nodes and plain addresses are not under policy"
        yield Step("NotApplicable", "not under policy", note=note)
        return
    own_node = "Kubernetes exempts traffic between a pod and its own node" if _same_node(decision) else ""
    for number, (decider, word) in enumerate(judgement.looked, 1):
        last = own_node if number == len(judgement.looked) else ""
        if decider is None:
            yield Step("Default", word, note=last)
            continue
        entry = settled(decider)
        path = decider.path if isinstance(decider, Rule) else ("spec",)
        notes = "; ".join(note for note in (decider.note, _by_address(decider, decision, judgement), last) if note)
        reference = decider.policy if isinstance(decider, Rule) else decider.reference
        yield Step(str(decider.tier), word, reference, entry.rule, notes, decider.resource, path)


def _by_address(decider: Decider, decision: Decision, judgement: Judgement) -> str:
    """A word where a pod was matched by its address, which implementations of NetworkPolicy do not all do."""
    other = decision.destination if judgement.direction == "egress" else decision.source
    if not isinstance(decider, Rule) or not other.under_policy:
        return ""
    blocks = (block for peer in decider.peers or () if isinstance(peer, AddressPeer) for block in peer.blocks)
    if any(block.holds(address) for block in blocks for address in other.addresses):
        return f"{other} is matched by its address"
    return ""


def _same_node(decision: Decision) -> bool:
    ends = decision.source, decision.destination
    for pod, other in (ends, ends[::-1]):
        if pod.under_policy and pod.node and not other.under_policy:
            return other.node == pod.node or (other.kind == "node" and other.name == pod.node)
    return False


def mismatches(expect: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """What of an expectation does not hold; InputError when the expectation itself is malformed."""
    problems = unknown_keys("TW701", expect, EXPECTED, "`expect` of a network case")
    out: list[str] = []
    for key in ("verdict", "egress", "ingress"):
        if key not in expect:
            continue
        verdicts = [str(one) for one in Verdict if key != "verdict" or one is not Verdict.NOT_APPLICABLE]
        if expect[key] not in verdicts:
            words = f"expected one of {', '.join(verdicts)} as `{key}`, found `{expect[key]}`"
            problems.append(Diagnostic("TW701", words, hint=near_miss(str(expect[key]), verdicts)))
        found = got[key] if key == "verdict" else got[key]["verdict"]
        if found != expect[key]:
            out.append(f"{key}: expected {expect[key]}, got {found}")
    if "decidedBy" in expect:
        wanted = expect["decidedBy"] if isinstance(expect["decidedBy"], list) else [expect["decidedBy"]]
        for one in wanted:
            if not isinstance(one, str) or not one:
                problems.append(Diagnostic("TW701", f"expected a reference in `decidedBy`, found `{one}`"))
            elif not any(_named(one, entry) for entry in got["decidedBy"]):
                entries = ", ".join(" ".join(entry.values()) for entry in got["decidedBy"])
                out.append(f"decidedBy: expected {one}, got {entries}")
    if problems:
        raise InputError(problems)
    return out


def _named(wanted: str, entry: Mapping[str, str]) -> bool:
    """Whether an entry is the wanted one; the rule of an isolating NetworkPolicy is not looked at."""
    policy, _, rule = wanted.partition(" ")
    return policy == entry["policy"] and (not rule or entry.get("rule") in (rule, "spec"))


def _unknown_pod(this: Model, namespace: str, name: str) -> Diagnostic:
    siblings = [one.name for one in this.pods if one.namespace == namespace]
    if siblings:
        hint = near_miss(name, siblings)
        return _problem(f"there is no pod `{name}` in namespace `{namespace}`", hint)
    populated = {one.namespace for one in this.pods}
    return _problem(f"there is no pod in namespace `{namespace}`", near_miss(namespace, populated))


def _problem(message: str, hint: str = "") -> Diagnostic:
    return Diagnostic("TW703", message, hint=hint)
