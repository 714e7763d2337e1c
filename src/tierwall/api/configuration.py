"""AuthorizationConfiguration: the API server's own file, as a chain of authorizers (docs/api.md#the-chain).

`type: CEL` and `failureMode` are ours. Without a configuration the chain is `[CEL policies, RBAC rbac]`. The chain is
made once from a snapshot and never changes, so that a request is judged from exactly one policy store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tierwall.api.authorizer import Always, Authorizer
from tierwall.api.cel_policies import CelPolicies
from tierwall.api.chain import Chain
from tierwall.api.condition import FailureMode, label_key_problem
from tierwall.api.decision import ALLOW, NO_OPINION
from tierwall.api.node import Node
from tierwall.api.policy import DEFAULT_AUTHORIZER
from tierwall.api.rbac import Rbac
from tierwall.api.webhook_settings import read_settings
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.core.source import Path
from tierwall.core.verdict import Verdict
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

GROUP, KIND = "apiserver.config.k8s.io", "AuthorizationConfiguration"
# Types that may be in a chain more than once.
REPEATABLE = frozenset(("CEL", "Webhook"))
_DEFAULT_NAMES = {"CEL": DEFAULT_AUTHORIZER, "RBAC": "rbac", "Node": "node"}


class Member(msgspec.Struct, frozen=True):
    """One authorizer of a configuration."""

    type: str
    name: str
    failure_mode: FailureMode = FailureMode.DENY
    webhook: Mapping[str, Any] = {}


DEFAULT_MEMBERS = (Member("CEL", DEFAULT_AUTHORIZER), Member("RBAC", "rbac"))

# Makes the authorizer of one webhook; the library itself has no way to call one.
Webhooks = Callable[[Member], Authorizer]


@per_snapshot
def chain_of(snapshot: Snapshot) -> Chain:
    """The chain of a snapshot; InputError if its configuration cannot be used."""
    return build(snapshot, members_of(snapshot))


def build(snapshot: Snapshot, members: tuple[Member, ...], webhooks: Webhooks | None = None) -> Chain:
    """A chain over a snapshot. Webhooks that nothing can call answer as if they could not be reached."""
    chain = Chain(_authorizer(snapshot, one, webhooks or unreachable) for one in members)
    for one in chain.members():
        if isinstance(one, CelPolicies):
            one.check_through(chain)
    return chain


def _authorizer(snapshot: Snapshot, member: Member, webhooks: Webhooks) -> Authorizer:
    match member.type:
        case "CEL":
            return CelPolicies(snapshot, member.name, member.failure_mode)
        case "RBAC":
            return Rbac(snapshot, member.name)
        case "Node":
            return Node(snapshot, member.name)
        case "Webhook":
            return webhooks(member)
        case "AlwaysAllow":
            return Always(member.name, ALLOW, "always allowed")
        case kind:  # AlwaysDeny and ABAC, which never denies: no opinion is the closed side of both
            return Always(member.name, NO_OPINION, f"`{kind}` has no opinion here")


def unreachable(member: Member) -> Authorizer:
    """A webhook that cannot be called: its failure policy decides."""
    verdict = Verdict.NO_OPINION if member.webhook.get("failurePolicy") == "NoOpinion" else Verdict.DENY
    return Always(member.name, verdict, "failure policy", f"webhook `{member.name}` cannot be called from here")


def members_of(snapshot: Snapshot) -> tuple[Member, ...]:
    """The authorizers of the snapshot's configuration, in order, or the default ones."""
    configurations = list(snapshot.of_kind(GROUP, KIND))
    if not configurations:
        return DEFAULT_MEMBERS
    members, problems = read_configuration(configurations[-1])
    if len(configurations) > 1:
        problems.append(Diagnostic("TW501", "more than one AuthorizationConfiguration", configurations[-1].position()))
    if problems:
        raise InputError(problems)
    return tuple(members)


TYPES = ("ABAC", "AlwaysAllow", "AlwaysDeny", "CEL", "Node", "RBAC", "Webhook")


def read_configuration(resource: Resource) -> tuple[list[Member], list[Diagnostic]]:
    """The authorizers, and everything that is wrong with them."""
    problems: list[Diagnostic] = []
    members: list[Member] = []

    def problem(message: str, *path: str | int, hint: str = "") -> None:
        place: Path = ("authorizers", *path)
        problems.append(Diagnostic("TW501", message, resource.position(place), hint=hint))

    listed = resource.value.get("authorizers")
    if not isinstance(listed, list) or not listed:
        problem("expected at least one authorizer")
        return members, problems
    for index, value in enumerate(listed):
        if not isinstance(value, Mapping):
            problem("expected an authorizer with `type` and `name`", index)
            continue
        kind = value.get("type")
        if kind not in TYPES:
            hint = near_miss(str(kind), TYPES)
            problem(f"unknown authorizer type `{kind}`, expected one of {', '.join(TYPES)}", index, "type", hint=hint)
            continue
        name = value.get("name") or _DEFAULT_NAMES.get(kind, kind.lower())
        if not isinstance(name, str) or label_key_problem(f"{name}/x") is not None:
            problem(f"authorizer name `{name}` is no DNS subdomain", index, "name")
            continue
        mode = value.get("failureMode", "Deny")
        if mode not in ("Deny", "NoOpinion"):
            problem(f"unknown failure mode `{mode}`, expected Deny or NoOpinion", index, "failureMode")
            continue
        if kind not in REPEATABLE and any(one.type == kind for one in members):
            problem(f"authorizer type `{kind}` may be used only once", index, "type")
        if any(one.name == name for one in members):
            problem(f"authorizer name `{name}` is used twice", index, "name")
        webhook = value.get("webhook")
        webhook = webhook if isinstance(webhook, Mapping) else {}
        for path, words in read_settings(webhook)[1] if kind == "Webhook" else ():
            problem(f"webhook `{name}`: {words}", index, "webhook", *path)
        members.append(Member(kind, name, FailureMode(mode), webhook))
    return members, problems
