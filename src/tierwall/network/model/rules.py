"""The one rule form of all dialects: who it is about, which action, which peers, which ports, and where it was written.

Reading settles everything that fails closed (docs/semantics.md#a-rule-that-cannot-be-read-fails-closed), so that
deciding needs no special cases: a rule that cannot be understood becomes one that matches nobody (Allow) or denies
everybody (Deny, Pass), and says why.

Adding a kind of peer, port, relation or action: add it to its union or enum here. Whoever tells the kinds apart does so
with `match`, or `if` over constants in hot loops, and ends in `assert_never`; mypy then lists every place that does not
yet know the new kind. Never test for one kind and take "all else" for granted.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple, TypeAlias, TypeVar, assert_never

from msgspec import Struct

from tierwall.core.answer import Decider, format_decider
from tierwall.core.labels import EVERYTHING, Selector
from tierwall.core.reference import Reference
from tierwall.core.stack import CombiningRule, Tier
from tierwall.core.verdict import StepVerdict
from tierwall.resources.resource import Resource
from tierwall.values.addresses import Block

E = TypeVar("E")

# Looking up a member of an enum takes longer than comparing with it, and every decision does so many times: here and
# below each enum.
_UNION: Final = CombiningRule.UNION_WITH_ISOLATION
_CLAIMS_ALLOW, _CLAIMS_DENY, _CLAIMS_PASS = StepVerdict.ALLOW, StepVerdict.DENY, StepVerdict.PASS


class TierName(StrEnum):
    """The tiers of the network plane."""

    ADMIN = "Admin"
    NAMESPACE = "Namespace"
    BASELINE = "Baseline"


# The tiers in the order a direction falls through them, and how each combines its policies. A new tier is a line here.
TIERS = {
    TierName.ADMIN: CombiningRule.FIRST_MATCH,
    TierName.NAMESPACE: CombiningRule.UNION_WITH_ISOLATION,
    TierName.BASELINE: CombiningRule.FIRST_MATCH,
}


class RuleAction(StrEnum):
    """What a rule does with traffic that matches it; Pass leaves the tier."""

    ALLOW = "Allow"
    DENY = "Deny"
    PASS = "Pass"


_ALLOW: Final = RuleAction.ALLOW
_DENY: Final = RuleAction.DENY
_PASS: Final = RuleAction.PASS


def claimed_verdict(action: RuleAction) -> StepVerdict:
    """What a rule with this action claims in the walk through the tiers."""
    if action is _ALLOW:
        return _CLAIMS_ALLOW
    if action is _DENY:
        return _CLAIMS_DENY
    if action is _PASS:
        return _CLAIMS_PASS
    assert_never(action)


class Direction(StrEnum):
    """Egress is judged for the source, ingress for the destination."""

    EGRESS = "egress"
    INGRESS = "ingress"

    @property
    def peers_key(self) -> str:
        """The key under which a rule of this direction has its peers."""
        return "to" if self is EGRESS else "from"

    def connection(self, subject: E, other: E) -> tuple[E, E]:
        """Source and destination of a connection that is judged for `subject` in this direction."""
        return (subject, other) if self is EGRESS else (other, subject)


EGRESS: Final = Direction.EGRESS
INGRESS: Final = Direction.INGRESS


class Relation(StrEnum):
    """How a peer's namespace relates to the subject's."""

    SELF = "Self"
    NOT_SELF = "NotSelf"
    SAME_LABELS = "sameLabels"
    NOT_SAME_LABELS = "notSameLabels"

    @property
    def compares_names(self) -> bool:
        """Whether the relation asks which namespace it is, rather than what labels it has."""
        return self in (Relation.SELF, Relation.NOT_SELF)


class Related(Struct, frozen=True):
    """Namespaces chosen by their relation to the subject's; `keys` for the two label relations."""

    relation: Relation
    keys: tuple[str, ...] = ()


class PodPeer(Struct, frozen=True):
    """Pods by namespace and labels; never matches what is not under policy."""

    namespaces: Selector | Related
    pods: Selector = EVERYTHING


class AddressPeer(Struct, frozen=True):
    """`networks` and `ipBlock`: any end with an address in one of the blocks, in-cluster pods included."""

    blocks: tuple[Block, ...]


class NodePeer(Struct, frozen=True):
    """`nodes`: any end that has an address of a selected node."""

    nodes: Selector


class DomainPeer(Struct, frozen=True):
    """`domainNames`: nobody knows before DNS answers, so any end with an address may match."""

    names: tuple[str, ...]


Peer: TypeAlias = PodPeer | AddressPeer | NodePeer | DomainPeer


# Peers by kind. Take it apart whole: a new kind then shows wherever peers are told apart.
PeersByKind: TypeAlias = tuple[
    tuple[PodPeer, ...], tuple[AddressPeer, ...], tuple[NodePeer, ...], tuple[DomainPeer, ...]
]


def peers_by_kind(peers: Iterable[Peer] | None) -> PeersByKind:
    """The peers of a rule by kind, each kind in order; everybody has no peers."""
    pods: list[PodPeer] = []
    addresses: list[AddressPeer] = []
    nodes: list[NodePeer] = []
    domains: list[DomainPeer] = []
    for peer in peers or ():
        match peer:
            case PodPeer():
                pods.append(peer)
            case AddressPeer():
                addresses.append(peer)
            case NodePeer():
                nodes.append(peer)
            case DomainPeer():
                domains.append(peer)
            case _:
                assert_never(peer)
    return tuple(pods), tuple(addresses), tuple(nodes), tuple(domains)


class PortRange(NamedTuple):
    """Ports of one protocol, both bounds included."""

    protocol: str
    first: int
    last: int


class NamedPort(NamedTuple):
    """A container port's name, looked up on the destination pod; NetworkPolicy also demands a protocol."""

    name: str
    protocol: str = ""


Port: TypeAlias = PortRange | NamedPort


class NetworkRule(Struct, frozen=True, eq=False, gc=False):
    """One rule of one policy. `peers` None is everybody, `ports` None every port of every protocol."""

    tier: TierName
    policy: Reference
    resource: Resource
    direction: Direction
    index: int
    action: RuleAction
    peers: tuple[Peer, ...] | None
    ports: tuple[Port, ...] | None
    name: str = ""
    # Why the rule fails closed, if it does.
    closed: str = ""

    @property
    def place(self) -> str:
        """The rule's place in its policy: `ingress[0]`."""
        return f"{self.direction}[{self.index}]"

    @property
    def path(self) -> tuple[str | int, ...]:
        """Where the rule stands in its object."""
        return "spec", str(self.direction), self.index

    @property
    def decider(self) -> Decider:
        """This rule as answers name it."""
        return Decider(self.policy, self.place, self.name or None)

    def __str__(self) -> str:
        return format_decider(self.policy, self.place, self.name)


class TieredPolicy(Struct, frozen=True, eq=False, gc=False):
    """One policy: its tier, its subject, and its rules by direction. None: it has no say in that direction.

    A policy of the Namespace tier that has a say isolates its subjects even with no rule at all.
    """

    tier: TierName
    reference: Reference
    resource: Resource
    namespaces: Selector
    pods: Selector
    ingress: tuple[NetworkRule, ...] | None
    egress: tuple[NetworkRule, ...] | None
    priority: int = 0
    # Why the policy fails closed, if it does.
    closed: str = ""

    # A policy that settles something as a whole is named as a rule is, by these.
    name: ClassVar[str] = ""
    place: ClassVar[str] = "spec"
    path: ClassVar[tuple[str | int, ...]] = ("spec",)

    @property
    def policy(self) -> Reference:
        """This policy."""
        return self.reference

    @property
    def decider(self) -> Decider:
        """This policy as answers name it, where it settles something as a whole."""
        return Decider(self.reference, self.place)

    def __str__(self) -> str:
        return str(self.reference)

    @property
    def all_rules(self) -> tuple[NetworkRule, ...]:
        """The rules of both directions, egress first."""
        return (*(self.egress or ()), *(self.ingress or ()))

    def rules(self, direction: Direction) -> tuple[NetworkRule, ...] | None:
        """The rules of one direction."""
        return self.egress if direction is EGRESS else self.ingress


def tier_isolates(tier: Tier[TieredPolicy]) -> bool:
    """Whether a tier that has a policy lets nothing through to the tiers below it."""
    return tier.combining is _UNION
