"""The status of a policy as plain text: one line a condition, by ancestor."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.attach.status import PolicyStatus


def lines(status: PolicyStatus) -> Iterator[str]:
    """The policy, each ancestor, and what is said with respect to it."""
    yield str(status.policy.reference)
    for ancestor in status.ancestors:
        ref = ancestor.ref
        yield f"  {ref.kind}/{ref.namespace}/{ref.name}" if ref.namespace else f"  {ref.name}"
        for condition in ancestor.conditions:
            first, *rest = condition.message.split("\n")
            yield f"    {condition.type:<13} {condition.status!s:<6} {condition.reason:<23} {first}"
            yield from (f"{'':<49}{line}" for line in rest)
    if not status.ancestors:
        yield "  no target that could be read"
