"""The chain of authorizers of a snapshot (docs/api.md#the-chain).

Its members are read from an AuthorizationConfiguration, the API server's own file; `type: CEL` and `failureMode` are
additions. Without one they are `[CEL policies, RBAC rbac]`, so the other authorizers are imported only on use. A chain
is built once from a snapshot and never changes, so exactly one policy store decides a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeAlias, assert_never

import msgspec

from tierwall.api.algebra.authorizer import Authorizer, ConstantAuthorizer
from tierwall.api.algebra.chain import Chain
from tierwall.api.algebra.condition import FailureMode, label_key_problem
from tierwall.api.authorizers.cel_policies import DEFAULT_AUTHORIZER, CelAuthorizer
from tierwall.api.authorizers.impersonation import ImpersonationChain
from tierwall.api.authorizers.rbac import RbacAuthorizer
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.core.source import Path
from tierwall.core.verdict import Verdict
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

GROUP, KIND = "apiserver.config.k8s.io", "AuthorizationConfiguration"


class AuthorizerType(StrEnum):
    """The values of `type` of an authorizer."""

    ABAC = "ABAC"
    ALWAYS_ALLOW = "AlwaysAllow"
    ALWAYS_DENY = "AlwaysDeny"
    CEL = "CEL"
    NODE = "Node"
    RBAC = "RBAC"
    WEBHOOK = "Webhook"


# Types that may be in a chain more than once.
REPEATABLE = frozenset((AuthorizerType.CEL, AuthorizerType.WEBHOOK))


class AuthorizerConfig(msgspec.Struct, frozen=True):
    """One authorizer of an AuthorizationConfiguration."""

    type: AuthorizerType
    name: str
    failure_mode: FailureMode = FailureMode.DENY
    webhook: Mapping[str, Any] = {}

    @property
    def returns_conditions(self) -> bool:
        """Whether it is a webhook that evaluates conditions."""
        keys = ("conditionsEndpointKubeConfigContext", "conditionsReview")
        return self.type is AuthorizerType.WEBHOOK and any(self.webhook.get(key) for key in keys)

    @property
    def failure_policy(self) -> Verdict:
        """The answer in place of that of a webhook that cannot be called."""
        return Verdict.NO_OPINION if self.webhook.get("failurePolicy") == "NoOpinion" else Verdict.DENY


DEFAULT_MEMBERS = (
    AuthorizerConfig(AuthorizerType.CEL, DEFAULT_AUTHORIZER),
    AuthorizerConfig(AuthorizerType.RBAC, "rbac"),
)


def configured_authorizers(snapshot: Snapshot) -> tuple[AuthorizerConfig, ...]:
    """Return the authorizers of the snapshot's AuthorizationConfiguration in order, or the default ones."""
    configurations = list(snapshot.of_kind(GROUP, KIND))
    if not configurations:
        return DEFAULT_MEMBERS
    members, problems = read_configuration(configurations[-1])
    if len(configurations) > 1:
        problems.append(Diagnostic("TW501", "more than one AuthorizationConfiguration", configurations[-1].position()))
    if problems:
        raise InputError(problems)
    return tuple(members)


def read_configuration(resource: Resource) -> tuple[list[AuthorizerConfig], list[Diagnostic]]:
    """Read the authorizers and collect every problem with them."""
    problems: list[Diagnostic] = []
    members: list[AuthorizerConfig] = []

    def problem(message: str, *path: str | int, hint: str = "") -> None:
        place: Path = ("authorizers", *path)
        problems.append(Diagnostic("TW501", message, resource.position(place), hint=hint))

    authorizers = resource.value.get("authorizers")
    if not isinstance(authorizers, list) or not authorizers:
        problem("expected at least one authorizer")
        return members, problems
    for index, authorizer in enumerate(authorizers):
        if not isinstance(authorizer, Mapping):
            problem("expected an authorizer with `type` and `name`", index)
            continue
        word = authorizer.get("type")
        if not isinstance(word, str) or word not in AuthorizerType.__members__.values():
            known = tuple(map(str, AuthorizerType))
            hint = near_miss(str(word), known)
            problem(f"expected one of {', '.join(known)} as `type`, found `{word}`", index, "type", hint=hint)
            continue
        kind = AuthorizerType(word)
        name = authorizer.get("name") or (DEFAULT_AUTHORIZER if kind is AuthorizerType.CEL else kind.lower())
        if not isinstance(name, str) or label_key_problem(f"{name}/x") is not None:
            problem(f"expected a DNS subdomain as `name`, found `{name}`", index, "name")
            continue
        mode = authorizer.get("failureMode", "Deny")
        if mode not in ("Deny", "NoOpinion"):
            problem(f"expected Deny or NoOpinion as `failureMode`, found `{mode}`", index, "failureMode")
            continue
        if kind not in REPEATABLE and any(member.type is kind for member in members):
            problem(f"authorizer type `{kind}` may be used only once", index, "type")
        if any(member.name == name for member in members):
            problem(f"authorizer name `{name}` is used twice", index, "name")
        webhook = authorizer.get("webhook")
        webhook = webhook if isinstance(webhook, Mapping) else {}
        if kind is AuthorizerType.WEBHOOK:
            from tierwall.api.authorizers.webhook import read_settings

            for path, words in read_settings(webhook)[1]:
                problem(f"webhook `{name}`: {words}", index, "webhook", *path)
        members.append(AuthorizerConfig(kind, name, FailureMode(mode), webhook))
    for index, member in enumerate(members):
        for outer in members:
            if member.name.startswith(f"{outer.name}.") and outer.returns_conditions:
                message = f"authorizer name `{member.name}` begins with that of webhook `{outer.name}`"
                problem(f"{message}, whose own authorizers are called `{outer.name}.…`", index, "name")
    return members, problems


# Builds the authorizer of one webhook; the library itself cannot call webhooks.
WebhookFactory: TypeAlias = Callable[[AuthorizerConfig], Authorizer]


@per_snapshot
def chain_of(snapshot: Snapshot) -> Chain:
    """Return the chain of a snapshot; InputError if its configuration is invalid."""
    return build_chain(snapshot, configured_authorizers(snapshot))


def build_chain(
    snapshot: Snapshot, members: tuple[AuthorizerConfig, ...], webhooks: WebhookFactory | None = None
) -> Chain:
    """Build a chain over a snapshot. Without `webhooks`, every webhook answers as if it were unreachable."""
    chain = ImpersonationChain(_authorizer(snapshot, member, webhooks or unreachable_webhook) for member in members)
    for authorizer in chain.members():
        if isinstance(authorizer, CelAuthorizer):
            authorizer.use_chain_for_checks(chain)
    return chain


def _authorizer(snapshot: Snapshot, member: AuthorizerConfig, webhooks: WebhookFactory) -> Authorizer:
    match member.type:
        case AuthorizerType.CEL:
            return CelAuthorizer(snapshot, member.name, member.failure_mode)
        case AuthorizerType.RBAC:
            return RbacAuthorizer(snapshot, member.name)
        case AuthorizerType.NODE:
            from tierwall.api.authorizers.node import NodeAuthorizer

            return NodeAuthorizer(snapshot, member.name)
        case AuthorizerType.WEBHOOK:
            return webhooks(member)
        case AuthorizerType.ALWAYS_ALLOW:
            return ConstantAuthorizer.allowing(member.name)
        case AuthorizerType.ALWAYS_DENY | AuthorizerType.ABAC:
            # Neither ever denies, so NoOpinion is how both fail closed.
            return ConstantAuthorizer.without_opinion(member.name, f"`{member.type}` has no opinion here")
        case _:
            assert_never(member.type)


def unreachable_webhook(member: AuthorizerConfig) -> Authorizer:
    """Return an authorizer for a webhook that cannot be called: its failure policy decides."""
    why = f"webhook `{member.name}` cannot be called from here"
    return ConstantAuthorizer.unreachable(member.name, member.failure_policy, why)


def chain_with_answers(snapshot: Snapshot, answers: Mapping[str, Verdict]) -> Chain:
    """Return the chain of a snapshot in which some webhooks give these answers, if they are asked."""

    def webhook(member: AuthorizerConfig) -> Authorizer:
        if member.name not in answers:
            return unreachable_webhook(member)
        from tierwall.api.authorizers.webhook import answering_webhook

        return answering_webhook(member.name, member.webhook, answers[member.name])

    return build_chain(snapshot, configured_authorizers(snapshot), webhook)
