"""What is in force in the kernel of a node, as values: `status` of a NodeReport (docs/enforce-network.md#reports).

An agent makes it of the load in force and the newest one; a controller decodes it. Nothing here sends or reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from tierwall.core.reference import Reference
from tierwall.serve.generations import PolicyVersion, generations_digest, part_digests

# So many policies that are behind are named; the others are counted.
MAX_BEHIND = 100
_MAX_MESSAGE, _MAX_REASON = 1024, 200


class KernelTable(Struct, frozen=True):
    """The table in a kernel: a digest over its rules, and when the kernel accepted it for these policies.

    `policies` are those of its load. Those of `not_enforced` are closed, or enforced only in part, for a reason.
    """

    hash: str
    loaded_at: str
    pods: int
    policies: Mapping[Reference, PolicyVersion]
    not_enforced: Mapping[Reference, str] = {}

    @property
    def in_force(self) -> dict[Reference, PolicyVersion]:
        """The policies that are enforced as they are written."""
        if not self.not_enforced:
            return dict(self.policies)
        return {name: version for name, version in self.policies.items() if name not in self.not_enforced}


class BehindPolicy(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A policy whose newest generation is not in force; `in_force` is the generation that is, if any."""

    policy: str
    generation: int
    in_force: int | None = None
    message: str = ""


class TableReport(Struct, frozen=True, rename="camel"):
    """`status.table` of a NodeReport."""

    hash: str = ""
    loaded_at: str = ""
    pods: int = 0
    policies: int = 0


class NodeReport(Struct, frozen=True, rename="camel", omit_defaults=True):
    """`status` of a NodeReport."""

    node: str = ""
    table: TableReport | None = None
    generations: str = ""
    digests: str = ""
    behind: tuple[BehindPolicy, ...] = ()
    more_behind: int = 0
    message: str = ""


def node_report(
    node: str, table: KernelTable, newest: Mapping[Reference, PolicyVersion], message: str = ""
) -> NodeReport:
    """Return the report on a table. `newest` are the policies as they were last read, in force or not."""
    in_force = table.in_force
    behind = [
        _behind(reference, version, in_force.get(reference), table.not_enforced.get(reference, ""))
        for reference, version in newest.items()
        if in_force.get(reference) != version
    ]
    behind.sort(key=lambda policy: policy.policy)
    return NodeReport(
        node,
        TableReport(table.hash, table.loaded_at, table.pods, len(in_force)),
        generations_digest(in_force.values()),
        part_digests(in_force.values()),
        tuple(behind[:MAX_BEHIND]),
        max(0, len(behind) - MAX_BEHIND),
        _cut(message, _MAX_MESSAGE),
    )


def empty_report(node: str, message: str) -> NodeReport:
    """Return the report on a kernel without a table."""
    return NodeReport(node, message=_cut(message, _MAX_MESSAGE))


def _behind(reference: Reference, version: PolicyVersion, in_force: PolicyVersion | None, reason: str) -> BehindPolicy:
    generation = in_force.generation if in_force is not None and in_force.uid == version.uid else None
    return BehindPolicy(str(reference), version.generation, generation, _cut(reason, _MAX_REASON))


def _cut(text: str, length: int) -> str:
    """Return a text in one line, with at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
