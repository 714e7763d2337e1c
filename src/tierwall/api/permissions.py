"""List what a user may do in a namespace, as far as the policies alone tell: `can-i --list`.

Listed are RBAC rules, and the policies that can apply to the user, each with the residual of its expression once the
user and the namespace are known. Deny and NoOpinion policies are listed too, because they take away what others grant;
so are policies that fail whatever the request, with the effect of their failure. What a node may do depends on its
pods, and what a webhook allows on each request, so neither can be listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from tierwall.api.algebra.authorizer import ConstantAuthorizer
from tierwall.api.algebra.condition import Effect
from tierwall.api.algebra.request import UNKNOWN, Attributes, hashable_extra
from tierwall.api.authorizers.cel_policies import CelAuthorizer, CelPolicy
from tierwall.api.authorizers.demands import FIELDS, demands
from tierwall.api.authorizers.expression import (
    AUTHORIZER,
    ENVIRONMENT,
    FailedExpression,
    ResidualExpression,
    failure_text,
    outcome_of,
)
from tierwall.api.authorizers.node import NodeAuthorizer, node_name
from tierwall.api.authorizers.rbac import RbacAuthorizer
from tierwall.api.model import chain_of
from tierwall.cel.partial_evaluation import partial
from tierwall.cel.syntax.printer import to_text
from tierwall.core.reference import Reference
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.resources.snapshot import Snapshot

Demands: TypeAlias = dict[str, frozenset[str]]
_UNKNOWN_FIELDS = ("verb", "apiGroup", "apiVersion", "resource", "subresource", "name", "path")


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """One line: the verbs and resources, the effect, the policy that says so, and the condition."""

    authorizer: str
    effect: Effect
    verbs: tuple[str, ...]
    resources: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    condition: str = ""
    # None for an authorizer that gives every request the same answer, without a policy.
    policy: Reference | None = None
    # The reason why the policy fails, whatever the request.
    error: str = ""


class Permissions(NamedTuple):
    """The permissions that can be listed, in the order of the chain, and the authorizers that may allow more."""

    listed: list[Permission]
    unlisted: tuple[str, ...]


def permissions(
    snapshot: Snapshot,
    user: str,
    groups: Sequence[str] = (),
    namespace: str = "",
    *,
    uid: str = "",
    extra: Mapping[str, Sequence[str]] | None = None,
) -> Permissions:
    """List what a user may do in a namespace; InputError if the chain's configuration is invalid."""
    requester = Attributes(
        user=user, groups=tuple(groups), namespace=namespace, uid=uid, extra=hashable_extra(extra) if extra else ()
    )
    listed: list[Permission] = []
    unlisted: list[str] = []
    for authorizer in chain_of(snapshot).members():
        match authorizer:
            case CelAuthorizer():
                for policy in authorizer.policies:
                    listed += _of_policy(authorizer, policy, requester)
            case RbacAuthorizer():
                listed += _of_rbac(authorizer, requester)
            case ConstantAuthorizer():
                listed += _of_constant(authorizer)
                if authorizer.decision.error and authorizer.decision.verdict is Verdict.NO_OPINION:
                    unlisted.append(authorizer.name)
            case NodeAuthorizer():
                if node_name(requester):
                    unlisted.append(authorizer.name)
            case _:  # a webhook, or an authorizer from outside Tierwall
                unlisted.append(authorizer.name)
    return Permissions(listed, tuple(unlisted))


def _of_constant(authorizer: ConstantAuthorizer) -> Iterator[Permission]:
    decision = authorizer.decision
    if decision.verdict is not Verdict.NO_OPINION:
        every = ("*",)
        yield Permission(
            authorizer=authorizer.name,
            effect=Effect(decision.verdict),
            verbs=every,
            resources=every,
            groups=every,
            urls=every,
            error=decision.error,
        )


def _of_rbac(authorizer: RbacAuthorizer, attributes: Attributes) -> Iterator[Permission]:
    for rule, binding in authorizer.rules_for(attributes):
        yield Permission(
            authorizer=authorizer.name,
            effect=Effect.ALLOW,
            verbs=tuple(sorted(rule.verbs)),
            resources=tuple(sorted(rule.resources)),
            groups=tuple(sorted(rule.groups)),
            names=tuple(sorted(rule.names)),
            urls=rule.urls if not binding.namespace else (),
            policy=binding.resource.reference,
        )


def _of_policy(authorizer: CelAuthorizer, policy: CelPolicy, attributes: Attributes) -> Iterator[Permission]:
    if policy.namespace and policy.namespace != attributes.namespace:
        return
    demanded = demands(policy.parsed.tree) if policy.parsed is not None else {}
    if not all(demanded.values()):
        return  # no request can meet its demands
    if policy.tree is None:
        yield from _of_failure(authorizer, policy, policy.failure, demanded)
        return
    # A demand for one value stands in a column, so the condition need not repeat it.
    fixed = {
        path[1]: min(demanded[field])
        for path, field in FIELDS.items()
        if path[1] in _UNKNOWN_FIELDS and len(demanded.get(field, ())) == 1
    }
    request = {**attributes.request(), **fixed}
    unknown = (*UNKNOWN, AUTHORIZER, *(f"request.{key}" for key in _UNKNOWN_FIELDS if key not in fixed))
    try:
        result = outcome_of(partial(policy.tree, {"request": request}, unknown, boolean=True, environment=ENVIRONMENT))
    except Exception as error:
        result = FailedExpression(failure_text(error))
    if isinstance(result, FailedExpression):
        yield from _of_failure(authorizer, policy, result.message, demanded)
    elif result is True or (
        isinstance(result, ResidualExpression) and (result.can_be_true or policy.effect is not Effect.ALLOW)
    ):
        condition = to_text(result.tree) if isinstance(result, ResidualExpression) else ""
        yield _line(authorizer, policy, policy.effect, demanded, condition=condition)


def _of_failure(authorizer: CelAuthorizer, policy: CelPolicy, why: str, demanded: Demands) -> Iterator[Permission]:
    verdict = policy.effect.if_failed(authorizer.failure_mode)
    if verdict is not StepVerdict.NO_MATCH:  # an Allow that fails allows nothing
        yield _line(authorizer, policy, Effect(verdict), demanded, error=why)


def _line(
    authorizer: CelAuthorizer,
    policy: CelPolicy,
    effect: Effect,
    demanded: Demands,
    *,
    condition: str = "",
    error: str = "",
) -> Permission:
    return Permission(
        authorizer=authorizer.name,
        effect=effect,
        verbs=tuple(sorted(demanded.get("verb", ("*",)))),
        resources=tuple(sorted(demanded.get("resource", ("*",)))),
        groups=tuple(sorted(demanded.get("group", ("*",)))),
        urls=tuple(sorted(demanded.get("path", ()))),
        condition=condition,
        policy=policy.reference,
        error=error,
    )
