"""The one form of all rules: action, peers, ports, and where the rule was written.

The readers apply fail-closed (docs/semantics.md#a-rule-that-cannot-be-read-fails-closed), so that decisions need no
special cases: a rule that cannot be understood becomes one that matches nobody (Allow) or denies everybody (Deny,
Pass), with the reason in `closed`.

To add a kind of peer, port, relation or action, add it to its union or enum here. Code that depends on the kind uses
`match`, or `if` over constants in hot loops, and ends in `assert_never`; mypy then reports every place that does not
handle the new kind yet. Never test for one kind and assume that "else" is the only other one.
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

AnyEndpoint = TypeVar("AnyEndpoint")

# Looking up an enum member takes longer than comparing with it, and every decision does so many times. So members are
# bound to constants, here and below each enum.
_UNION: Final = CombiningRule.UNION_WITH_ISOLATION
_CLAIMS_ALLOW, _CLAIMS_DENY, _CLAIMS_PASS = StepVerdict.ALLOW, StepVerdict.DENY, StepVerdict.PASS


class TierName(StrEnum):
    """The tiers of the network plane."""

    ADMIN = "Admin"
    NAMESPACE = "Namespace"
    BASELINE = "Baseline"


_NAMESPACE: Final = TierName.NAMESPACE

# The tiers in order of precedence, and how each combines its policies. A new tier is a new line here.
TIERS = {
    TierName.ADMIN: CombiningRule.FIRST_MATCH,
    TierName.NAMESPACE: CombiningRule.UNION_WITH_ISOLATION,
    TierName.BASELINE: CombiningRule.FIRST_MATCH,
}


class RuleAction(StrEnum):
    """The action of a rule on matching traffic; Pass leaves the decision to the next tier."""

    ALLOW = "Allow"
    DENY = "Deny"
    PASS = "Pass"


_ALLOW: Final = RuleAction.ALLOW
_DENY: Final = RuleAction.DENY
_PASS: Final = RuleAction.PASS


def action_verdict(action: RuleAction) -> StepVerdict:
    """Return the verdict that a rule with this action claims."""
    if action is _ALLOW:
        return _CLAIMS_ALLOW
    if action is _DENY:
        return _CLAIMS_DENY
    if action is _PASS:
        return _CLAIMS_PASS
    assert_never(action)


class Direction(StrEnum):
    """A direction of a connection. Egress is decided for the source, ingress for the destination."""

    EGRESS = "egress"
    INGRESS = "ingress"

    @property
    def peers_key(self) -> str:
        """The key of the peers in a rule of this direction."""
        return "to" if self is EGRESS else "from"

    def connection(self, subject: AnyEndpoint, other: AnyEndpoint) -> tuple[AnyEndpoint, AnyEndpoint]:
        """Return source and destination of a connection that is decided for `subject` in this direction."""
        return (subject, other) if self is EGRESS else (other, subject)


EGRESS: Final = Direction.EGRESS
INGRESS: Final = Direction.INGRESS


class Relation(StrEnum):
    """A relation of a peer's namespace to the subject's namespace."""

    SELF = "Self"
    NOT_SELF = "NotSelf"
    SAME_LABELS = "sameLabels"
    NOT_SAME_LABELS = "notSameLabels"

    @property
    def compares_names(self) -> bool:
        """Whether the relation compares the names of namespaces rather than their labels."""
        return self in (Relation.SELF, Relation.NOT_SELF)


class Related(Struct, frozen=True):
    """Namespaces with a relation to the subject's namespace; `keys` are the labels that it compares, if any."""

    relation: Relation
    keys: tuple[str, ...] = ()


class PodPeer(Struct, frozen=True):
    """Pods by namespace and labels; matches only pods that are under policy."""

    namespaces: Selector | Related
    pods: Selector = EVERYTHING


class AddressPeer(Struct, frozen=True):
    """`networks` and `ipBlock`: any endpoint with an address in one of the blocks, including pods of the cluster."""

    blocks: tuple[Block, ...]


class NodePeer(Struct, frozen=True):
    """`nodes`: any endpoint with an address of a selected node."""

    nodes: Selector


class DomainPeer(Struct, frozen=True):
    """`domainNames`: any endpoint with an address may match, because the addresses are unknown until DNS answers."""

    names: tuple[str, ...]


Peer: TypeAlias = PodPeer | AddressPeer | NodePeer | DomainPeer


# Peers by kind. Always unpack the whole tuple, so that mypy reports every place when a kind is added.
PeersByKind: TypeAlias = tuple[
    tuple[PodPeer, ...], tuple[AddressPeer, ...], tuple[NodePeer, ...], tuple[DomainPeer, ...]
]


def peers_by_kind(peers: Iterable[Peer] | None) -> PeersByKind:
    """Return the peers of a rule by kind, each kind in order; None (everybody) gives no peers."""
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
    """A range of ports of one protocol, including both bounds."""

    protocol: str
    first: int
    last: int


class NamedPort(NamedTuple):
    """The name of a container port of the destination pod; in a NetworkPolicy the protocol must match too."""

    name: str
    protocol: str = ""


Port: TypeAlias = PortRange | NamedPort


class NetworkRule(Struct, frozen=True, eq=False, gc=False):
    """One rule of a policy. If `peers` is None it matches everybody; if `ports` is None, every port and protocol."""

    tier: TierName
    policy: Reference
    resource: Resource
    direction: Direction
    index: int
    action: RuleAction
    peers: tuple[Peer, ...] | None
    ports: tuple[Port, ...] | None
    name: str = ""
    # The reason why the rule fails closed, or an empty string.
    closed: str = ""

    @property
    def place(self) -> str:
        """The rule's place in its policy, such as `ingress[0]`."""
        return f"{self.direction}[{self.index}]"

    @property
    def path(self) -> tuple[str | int, ...]:
        """The path of the rule in its object."""
        return "spec", str(self.direction), self.index

    @property
    def decider(self) -> Decider:
        """The rule as answers name it."""
        return Decider(self.policy, self.place, self.name or None)

    def __str__(self) -> str:
        return format_decider(self.policy, self.place, self.name)


class TieredPolicy(Struct, frozen=True, eq=False, gc=False):
    """One policy: its tier, its subject, and its rules by direction (None if it does not apply in that direction).

    In each direction that it applies to, a policy of the Namespace tier isolates its subjects, even without rules.
    """

    tier: TierName
    reference: Reference
    resource: Resource
    namespaces: Selector
    pods: Selector
    ingress: tuple[NetworkRule, ...] | None
    egress: tuple[NetworkRule, ...] | None
    priority: int = 0
    # The reason why the policy fails closed, or an empty string.
    closed: str = ""

    # A policy that decides as a whole is named by the same attributes as a rule.
    name: ClassVar[str] = ""
    place: ClassVar[str] = "spec"
    path: ClassVar[tuple[str | int, ...]] = ("spec",)

    @property
    def policy(self) -> Reference:
        """The reference of the policy."""
        return self.reference

    @property
    def decider(self) -> Decider:
        """The policy as answers name it if it decides as a whole."""
        return Decider(self.reference, self.place)

    def __str__(self) -> str:
        return str(self.reference)

    @property
    def has_priority(self) -> bool:
        """Whether the policy has its place by priority; the BaselineAdminNetworkPolicy always comes last."""
        return self.tier is not _NAMESPACE and self.resource.kind != "BaselineAdminNetworkPolicy"

    @property
    def all_rules(self) -> tuple[NetworkRule, ...]:
        """The rules of both directions, egress first."""
        return (*(self.egress or ()), *(self.ingress or ()))

    def rules(self, direction: Direction) -> tuple[NetworkRule, ...] | None:
        """Return the rules of one direction."""
        return self.egress if direction is EGRESS else self.ingress


def tier_isolates(tier: Tier[TieredPolicy]) -> bool:
    """Whether a tier passes no connection on to the tiers below it."""
    return tier.combining is _UNION
