"""The record of a decision, for the decision log and as labels of the counters.

A decision knows which policy settled it (`Decision.settled_by`). A condition that came back from outside has lost its
policy, so its id names it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tierwall.api.algebra.chain import ChainDecision, Opinions
from tierwall.api.algebra.condition import ConditionalDecision
from tierwall.api.algebra.condition_words import one_line
from tierwall.api.algebra.request import Attributes
from tierwall.api.sentence import words_of

# The largest number of policies in a record.
MAX_POLICIES = 16


class DecisionRecord(msgspec.Struct, omit_defaults=True, rename="camel", gc=False):
    """One decision. `verdict` is the chain's; `answer` is what the caller was told, if that differs.

    INVARIANT: `gc=False` is safe because a record refers only to strings. Thousands are kept, and the garbage collector
    would visit them often.
    """

    phase: str
    verdict: str
    authorizer: str = ""
    policy: str = ""
    rule: str = ""
    # The id of the deciding condition, if its policy is unknown.
    condition: str = ""
    # The policies whose conditions a conditional answer holds.
    policies: tuple[str, ...] = ()
    # The same words as in `auditAnnotations`, of admission: the final decision and who decided it.
    decision: str = ""
    decided_by: str = ""
    # The conditions in words.
    conditions: str = ""
    reason: str = ""
    error: str = ""
    answer: str = ""
    user: str = ""
    groups: tuple[str, ...] = ()
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    uid: str = ""
    operation: str = ""
    revision: str = ""
    status: int = 200


def brief_record(phase: str, decision: ChainDecision, revision: str) -> DecisionRecord:
    """Return what the counters need to know about a chain's answer; used without a decision log."""
    return DecisionRecord(phase, decision.verdict.value, _authorizer(decision), error=decision.error, revision=revision)


def full_record(phase: str, decision: ChainDecision, attributes: Attributes | None, revision: str) -> DecisionRecord:
    """Return the record of a chain's answer."""
    record = brief_record(phase, decision, revision)
    record.reason = decision.reason
    step = decision.settled_by
    if decision.is_conditional:
        record.policies = tuple(dict.fromkeys(_policies(decision.opinions)))[:MAX_POLICIES]
        record.conditions = words_of(decision)
    elif step is not None:
        record.policy, record.rule = str(step.policy or ""), step.rule or ""
        record.condition = step.name or "" if step.policy is None else ""
    if attributes is not None:
        record.user, record.groups, record.verb = attributes.user, attributes.groups, attributes.verb
        record.group, record.version, record.resource = attributes.group, attributes.version, attributes.resource
        record.subresource, record.namespace = attributes.subresource, attributes.namespace
        record.name, record.path = attributes.name, attributes.path
    return record


def admission_record(
    phase: str, final: ChainDecision, first: ChainDecision | None, attributes: Attributes, revision: str
) -> DecisionRecord:
    """Return the record of what admission decided, with the conditions that the first phase had set."""
    record = full_record(phase, final, attributes, revision)
    record.decision, record.decided_by = record.verdict, "Default"
    if first is not None and first.is_conditional:
        record.conditions = words_of(first)
        names = [authorizer.name for authorizer, _ in first.opinions]
        record.decided_by = " ".join((*names, *dict.fromkeys(_policies(first.opinions))))
    if final.decided_by:
        record.decided_by = f"{final.decided_by} {record.policy or record.condition}".rstrip()
    record.decided_by = one_line(record.decided_by)
    return record


def audit_annotations(record: DecisionRecord) -> dict[str, str]:
    """Return what the API server's audit log tells about a decision of admission."""
    annotations = {"decision": record.decision, "decidedBy": record.decided_by}
    return annotations | {"conditions": record.conditions} if record.conditions else annotations


def _authorizer(decision: ChainDecision) -> str:
    """Return the authorizer that settled the answer, or the first one with a say in a conditional answer."""
    return decision.opinions[0][0].name if decision.is_conditional else decision.decided_by


def _policies(opinions: Opinions) -> Iterator[str]:
    """Yield the policies that conditions came from."""
    for _, opinion in opinions:
        if isinstance(opinion, ChainDecision):
            yield from _policies(opinion.opinions)
        elif isinstance(opinion, ConditionalDecision):
            for condition in opinion.conditions.conditions:
                if condition.source is not None:
                    yield str(condition.source.policy)
