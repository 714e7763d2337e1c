"""What is remembered of a decision: for the decision log, and as labels of the counters.

The deciding policy is the step of the deciding authorizer whose outcome is the verdict; a condition that came back from
outside has lost its policy, and is named by its id.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tierwall.api.attributes import Attributes
from tierwall.api.chain import ChainDecision
from tierwall.core.verdict import Verdict

# At most so many policies are named in a record.
MOST_POLICIES = 16


class Record(msgspec.Struct, omit_defaults=True, rename="camel", gc=False):
    """One decision. `verdict` is what the chain came to; `answer` what the caller was told, where that differs.

    INVARIANT: `gc=False` holds because a record refers to texts alone; thousands are kept, and would be walked often.
    """

    phase: str
    verdict: str
    authorizer: str = ""
    policy: str = ""
    rule: str = ""
    # The policies whose conditions a conditional answer holds.
    policies: tuple[str, ...] = ()
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

    def document(self) -> dict[str, Any]:
        """This record as the decision log shows it; what is empty is left out."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def brief(phase: str, decision: ChainDecision, revision: str) -> Record:
    """What the counters need of a chain's answer, where nobody keeps a log."""
    settled = decision.answers[0].authorizer.name if decision.is_conditional else decision.decided_by
    return Record(phase, decision.verdict.value, settled, error=decision.error, revision=revision)


def of_decision(phase: str, decision: ChainDecision, attributes: Attributes | None, revision: str) -> Record:
    """The record of a chain's answer."""
    record = Record(
        phase,
        decision.verdict.value,
        decision.decided_by,
        reason=decision.reason,
        error=decision.error,
        revision=revision,
    )
    if decision.is_conditional:
        record.authorizer = decision.answers[0].authorizer.name
        named = dict.fromkeys(str(one.policy) for one in decision.steps if one.policy is not None)
        record.policies = tuple(named)[:MOST_POLICIES]
    elif decision.verdict is not Verdict.NO_OPINION:
        for step in reversed(decision.steps):
            if step.tier == decision.decided_by and step.outcome == decision.verdict:
                record.policy, record.rule = str(step.policy or ""), step.rule
                break
    if attributes is not None:
        describe(record, attributes)
    return record


def describe(record: Record, attributes: Attributes) -> None:
    """Say what was asked."""
    record.user, record.groups, record.verb = attributes.user, attributes.groups, attributes.verb
    record.group, record.version, record.resource = attributes.group, attributes.version, attributes.resource
    record.subresource, record.namespace = attributes.subresource, attributes.namespace
    record.name, record.path = attributes.name, attributes.path
