"""Whether network policies are in force in the kernel of every node, from the reports of all agents.

docs/controller.md#nodes. A node holds a policy if the digest of its part is over policies that the controller knows,
this state of the policy among them: the policies as they are now, as they were a moment ago, or as they are now except
for those that the report says are behind. Equal digests are over equal policies, so nothing else has to be believed;
where `behind` is cut, whatever it leaves out makes digests differ.

A digest that is over none of these says nothing about the policies of its part. It is waited for a few seconds, because
a node may be ahead of the controller; then the node counts as one that does not hold them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from tierwall.attach.status import bounded_message
from tierwall.core.reference import Reference
from tierwall.core.words import join_names
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.serve.controller.desired import CONDITION_PREFIX, WantedCondition
from tierwall.serve.controller.node_heartbeats import NodeStanding
from tierwall.serve.generations import (
    DIGEST_LENGTH,
    PARTS,
    GenerationIndex,
    PolicyVersion,
    part_digest,
    part_of,
)
from tierwall.serve.node_report import NodeReport

# So many earlier states of a part are remembered.
_STATES = 16
# How long a digest that is over unknown policies is waited for, in seconds.
GRACE_S = 10.0
_MAX_NAMES = 3
PROGRAMMED, RECONCILING, NODES_MISSING = "Programmed", "Reconciling", "NodesMissing"
_EVERY_NODE = WantedCondition("Programmed", "True", PROGRAMMED, "Every node holds this policy")
_NO_NODES = WantedCondition("Programmed", "False", RECONCILING, "The cluster has no node that could hold this policy")

# The policies that a node holds in one part; None if that is not known.
_Held = frozenset[PolicyVersion] | None


class NodeFacts(NamedTuple):
    """A node, its newest report if that is about this Node object, and what is known about its agent."""

    name: str
    report: NodeReport | None
    standing: NodeStanding


class _PartState(NamedTuple):
    """The nodes of one part, by what they hold; those that are not known yet are waited for."""

    held: tuple[tuple[frozenset[PolicyVersion], tuple[str, ...]], ...]
    unknown: tuple[str, ...]
    awaited: tuple[str, ...]


class NodesState:
    """Whether policies are in force on every node, at one moment. Equal states say the same about every policy."""

    def __init__(
        self,
        facts: Mapping[str, NodeStanding],
        parts: tuple[_PartState, ...],
        reasons: Mapping[tuple[str, str], str],
        timeout: float,
    ) -> None:
        """`reasons` have an agent's words about a policy, by node and reference."""
        self._absent = tuple(sorted(name for name, standing in facts.items() if standing in _ABSENT))
        self._unconfirmed = any(standing is NodeStanding.UNCONFIRMED for standing in facts.values())
        self._has_nodes = bool(facts)
        self._parts, self._reasons, self._timeout = parts, reasons, timeout
        self.counts = Counter(facts.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodesState) and self._content == other._content

    __hash__ = None  # type: ignore[assignment]

    @property
    def _content(self) -> tuple[object, ...]:
        return self._absent, self._unconfirmed, self._has_nodes, self._parts, self._reasons, self.counts

    @property
    def is_certain(self) -> bool:
        """Whether every agent was heard from, or not for so long that it counts as silent."""
        return not self._unconfirmed

    def programmed(self, policy: Resource, version: PolicyVersion) -> WantedCondition:
        """Return `Programmed` of a policy as it is now.

        As long as something is not known for certain, the policy keeps what its status says about this generation,
        unless it is worse for certain.
        """
        if not self._has_nodes:
            return _NO_NODES
        part = self._parts[part_of(version.uid)]
        behind = sorted((*part.unknown, *(name for held, names in part.held if version not in held for name in names)))
        is_known = not (self._unconfirmed or part.awaited)
        said = None if is_known else _said(policy, version.generation)
        if said is not None and (said.status != "True" or not (self._absent or behind)):
            return said
        if self._absent:
            return _condition(NODES_MISSING, self._silence)
        if behind:
            return _condition(RECONCILING, self._lag(behind, policy.reference))
        if not is_known:
            return _condition(RECONCILING, "Some nodes have not confirmed yet that they hold this policy")
        return _EVERY_NODE

    @property
    def _silence(self) -> str:
        names, has = join_names(self._absent, _MAX_NAMES), "has" if len(self._absent) == 1 else "have"
        return f"{names} {has} no report of an agent that was heard from in the last {self._timeout:g} s"

    def _lag(self, behind: list[str], reference: Reference) -> str:
        words = f"Not in force yet on {join_names(behind, _MAX_NAMES)}"
        reason = next((text for name in behind if (text := self._reasons.get((name, str(reference))))), "")
        # Whoever has the agent of one node chooses its words.
        return bounded_message((f"{words}: {reason}" if reason else words,))


_ABSENT = (NodeStanding.SILENT, NodeStanding.WITHOUT_AGENT)


def _condition(reason: str, message: str) -> WantedCondition:
    return WantedCondition("Programmed", "False", reason, message)


def _said(policy: Resource, generation: int) -> WantedCondition | None:
    """Return what the status of a policy says about this generation."""
    for condition in list_of_maps(nested_map(policy.value, "status").get("conditions")):
        if condition.get("type") == f"{CONDITION_PREFIX}Programmed":
            if condition.get("observedGeneration") != generation:
                return None
            values = (str(condition.get(key, "")) for key in ("status", "reason", "message"))
            return WantedCondition("Programmed", *values)
    return None


class NodesView:
    """Remembers from one look to the next which policies there were, and what nodes hold."""

    def __init__(self, timeout: float) -> None:
        """`timeout` is told to users: after so many seconds an agent is silent."""
        self._timeout = timeout
        self._versions: Mapping[Reference, PolicyVersion] = {}
        self._index = GenerationIndex({})
        self._by_name: dict[str, Reference] = {}
        # The policies of each part by their digest, the newest last.
        self._states: list[dict[str, frozenset[PolicyVersion]]] = [{} for _ in range(PARTS)]
        # What each node holds, by its report; and since when that is not known of a part.
        self._held: dict[str, tuple[NodeReport, tuple[_Held, ...]]] = {}
        self._unknown_since: dict[tuple[str, int], float] = {}

    def state(self, versions: Mapping[Reference, PolicyVersion], nodes: Iterable[NodeFacts], now: float) -> NodesState:
        """Return what is in force. `versions` are the policies as they are now."""
        if versions != self._versions:
            self._take(versions)
        facts: dict[str, NodeStanding] = {}
        held: dict[str, tuple[_Held, ...]] = {}
        reasons: dict[tuple[str, str], str] = {}
        known, self._held = self._held, {}
        for node in nodes:
            facts[node.name] = node.standing if node.report is not None else NodeStanding.WITHOUT_AGENT
            if node.report is None or facts[node.name] in _ABSENT:
                continue
            before = known.get(node.name)
            if before is None or before[0] is not node.report:
                before = node.report, self._holdings(node.report)
            self._held[node.name], held[node.name] = before, before[1]
            reasons |= {(node.name, each.policy): each.message for each in node.report.behind if each.message}
        parts = tuple(self._part(number, held, now) for number in range(PARTS))
        self._unknown_since = {
            (name, number): self._unknown_since.get((name, number), now)
            for name, parts_held in held.items()
            for number, each in enumerate(parts_held)
            if each is None
        }
        return NodesState(facts, parts, reasons, self._timeout)

    def _part(self, number: int, held: Mapping[str, tuple[_Held, ...]], now: float) -> _PartState:
        groups: dict[frozenset[PolicyVersion], list[str]] = {}
        unknown: list[str] = []
        awaited: list[str] = []
        for name, parts in held.items():
            if (policies := parts[number]) is not None:
                groups.setdefault(policies, []).append(name)
            elif now - self._unknown_since.get((name, number), now) < GRACE_S:
                awaited.append(name)
            else:
                unknown.append(name)
        return _PartState(tuple((each, tuple(names)) for each, names in groups.items()), tuple(unknown), tuple(awaited))

    def _take(self, versions: Mapping[Reference, PolicyVersion]) -> None:
        """Remember the policies as they are now."""
        self._versions, self._index = versions, GenerationIndex(versions)
        self._by_name = {str(reference): reference for reference in versions}
        for number, states in enumerate(self._states):
            policies = frozenset(self._index.policies_of(number).values())
            digest = part_digest(policies)
            # The newest is the last: one that comes back must not be forgotten next.
            states[digest] = states.pop(digest, policies)
            while len(states) > _STATES:
                del states[next(iter(states))]
        self._held = {}

    def _holdings(self, report: NodeReport) -> tuple[_Held, ...]:
        """Return what a node holds in each part."""
        if report.table is None:
            return (frozenset(),) * PARTS
        digests = report.digests
        others = self._behind(report)
        parts_behind: dict[int, set[PolicyVersion]] = {}
        for reference in others:
            version = self._versions[reference]
            parts_behind.setdefault(part_of(version.uid), set()).add(version)
        differing = self._index.differing_parts(digests, others) if others else frozenset[int]()
        holdings: list[_Held] = []
        for number, states in enumerate(self._states):
            digest = digests[number * DIGEST_LENGTH : (number + 1) * DIGEST_LENGTH]
            policies = states.get(digest)
            if policies is None and number in parts_behind and number not in differing:
                now = frozenset(self._index.policies_of(number).values())
                policies = now - parts_behind[number]
            holdings.append(policies)
        return tuple(holdings)

    def _behind(self, report: NodeReport) -> dict[Reference, PolicyVersion | None]:
        """Return the policies that a node has in another state, as far as its report names them."""
        others: dict[Reference, PolicyVersion | None] = {}
        for each in report.behind:
            reference = self._by_name.get(each.policy)
            if reference is None:
                continue
            version = self._versions[reference]
            if each.in_force is None:
                others[reference] = None
            else:
                # With the same generation, only shadow mode can differ.
                is_shadow = version.is_shadow is not (each.in_force == version.generation)
                others[reference] = PolicyVersion(version.uid, each.in_force, is_shadow)
        return others


@per_resource
def report_of(resource: Resource) -> NodeReport | None:
    """Return the report in a NodeReport object; None if it is of another form."""
    try:
        return msgspec.convert(resource.value.get("status"), NodeReport)
    except msgspec.ValidationError:
        return None


def owner_uid(resource: Resource) -> str:
    """Return the uid of the Node that a NodeReport belongs to."""
    owners = list_of_maps(resource.metadata.get("ownerReferences"))
    return next((str(owner.get("uid", "")) for owner in owners if owner.get("kind") == "Node"), "")
