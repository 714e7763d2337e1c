"""What the api plane decides from: the chain of authorizers of a snapshot (docs/api.md#the-chain).

A chain is made once from a snapshot and never changes, so that a request is judged from exactly one policy store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, assert_never

from tierwall.api.authorizer import Always, Authorizer
from tierwall.api.cel_policies import CelPolicies
from tierwall.api.chain import Chain
from tierwall.api.configuration import AuthorizerType, Member, members_of
from tierwall.api.node import Node
from tierwall.api.rbac import Rbac
from tierwall.core.verdict import Verdict
from tierwall.resources.once import per_snapshot
from tierwall.resources.snapshot import Snapshot

# Makes the authorizer of one webhook; the library itself has no way to call one.
Webhooks: TypeAlias = Callable[[Member], Authorizer]


@per_snapshot
def chain_of(snapshot: Snapshot) -> Chain:
    """The chain of a snapshot; InputError if its configuration cannot be used."""
    return build(snapshot, members_of(snapshot))


def build(snapshot: Snapshot, members: tuple[Member, ...], webhooks: Webhooks | None = None) -> Chain:
    """A chain over a snapshot. Webhooks that nothing can call answer as if they could not be reached."""
    chain = Chain(_authorizer(snapshot, member, webhooks or unreachable) for member in members)
    for authorizer in chain.members():
        if isinstance(authorizer, CelPolicies):
            authorizer.check_through(chain)
    return chain


def _authorizer(snapshot: Snapshot, member: Member, webhooks: Webhooks) -> Authorizer:
    match member.type:
        case AuthorizerType.CEL:
            return CelPolicies(snapshot, member.name, member.failure_mode)
        case AuthorizerType.RBAC:
            return Rbac(snapshot, member.name)
        case AuthorizerType.NODE:
            return Node(snapshot, member.name)
        case AuthorizerType.WEBHOOK:
            return webhooks(member)
        case AuthorizerType.ALWAYS_ALLOW:
            return Always.allowing(member.name)
        case AuthorizerType.ALWAYS_DENY | AuthorizerType.ABAC:
            # Neither ever denies, so no opinion is the closed side of both.
            return Always.without_opinion(member.name, f"`{member.type}` has no opinion here")
        case _:
            assert_never(member.type)


def unreachable(member: Member) -> Authorizer:
    """A webhook that cannot be called: its failure policy decides."""
    verdict = Verdict.NO_OPINION if member.webhook.get("failurePolicy") == "NoOpinion" else Verdict.DENY
    return Always.unreachable(member.name, verdict, f"webhook `{member.name}` cannot be called from here")
