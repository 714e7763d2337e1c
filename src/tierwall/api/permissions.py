"""Everything a user may do in a namespace, as far as the policies say it outright: `can-i --list`.

RBAC rules and the policies that the user can meet, each with what is left of its expression once only the user and
the namespace are known. Deny and NoOpinion policies are listed too, since they take away from what the others give;
so do those that fail whatever is asked, with the effect that their failure has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from tierwall.api.attributes import Attributes
from tierwall.api.cel_policies import CelPolicies
from tierwall.api.chain import Chain
from tierwall.api.condition import Effect
from tierwall.api.data import UNKNOWN
from tierwall.api.expression import AUTHORIZER, ENVIRONMENT, Failed, Left, outcome
from tierwall.api.policy import Policy
from tierwall.api.policy_constraints import FIELDS, demands
from tierwall.api.rbac import Rbac
from tierwall.cel.failure import Failure
from tierwall.cel.partial_evaluation import PartialError, partial
from tierwall.cel.printer import to_text

Demands: TypeAlias = dict[str, frozenset[str]]
_OPEN = ("verb", "apiGroup", "apiVersion", "resource", "subresource", "name", "path")


class Permission(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: what may be done to what, by whom it is said, and under which condition."""

    authorizer: str
    effect: str
    verbs: list[str]
    resources: list[str] = []
    groups: list[str] = []
    names: list[str] = []
    urls: list[str] = []
    condition: str = ""
    policy: str = ""
    # Why the policy fails, whatever the request.
    error: str = ""


def permissions(chain: Chain, attributes: Attributes) -> Iterator[Permission]:
    """The lines for one user and namespace, in the order of the chain."""
    for authorizer in chain.members():
        if isinstance(authorizer, CelPolicies):
            for policy in authorizer.policies:
                yield from _of_policy(authorizer, policy, attributes)
        elif isinstance(authorizer, Rbac):
            yield from _of_rbac(authorizer, attributes)


def _of_rbac(authorizer: Rbac, attributes: Attributes) -> Iterator[Permission]:
    for rule, binding in authorizer.rules_for(attributes):
        yield Permission(
            authorizer.name,
            "Allow",
            sorted(rule.verbs),
            sorted(rule.resources),
            sorted(rule.groups),
            sorted(rule.names),
            list(rule.urls) if not binding.namespace else [],
            policy=str(binding.resource.reference),
        )


def _of_policy(authorizer: CelPolicies, policy: Policy, attributes: Attributes) -> Iterator[Permission]:
    if policy.namespace and policy.namespace != attributes.namespace:
        return
    if policy.tree is None:
        yield from _of_failure(authorizer, policy, policy.error, {})
        return
    needed = demands(policy.tree)
    if not all(needed.values()):
        return  # no request has what it asks for
    # What is demanded outright stands in the columns and need not be said again in the condition.
    fixed = {key: min(needed[field]) for (_, *rest), field in FIELDS.items() for key in rest if _is_one(needed, field)}
    request = {**attributes.request(), **{key: value for key, value in fixed.items() if key in _OPEN}}
    unknown = (*UNKNOWN, AUTHORIZER, *(f"request.{key}" for key in _OPEN if key not in fixed))
    try:
        found = outcome(partial(policy.tree, {"request": request}, unknown, boolean=True, environment=ENVIRONMENT))
    except (Failure, PartialError) as why:
        found = Failed(str(why))
    if isinstance(found, Failed):
        yield from _of_failure(authorizer, policy, found.message, needed)
    elif found is True or (isinstance(found, Left) and (found.can_be_true or policy.effect is not Effect.ALLOW)):
        condition = to_text(found.tree) if isinstance(found, Left) else ""
        yield _line(authorizer, policy, str(policy.effect), needed, condition=condition)


def _of_failure(authorizer: CelPolicies, policy: Policy, why: str, needed: Demands) -> Iterator[Permission]:
    if policy.effect is not Effect.ALLOW:
        effect = authorizer.failure_mode if policy.effect is Effect.DENY else policy.effect
        yield _line(authorizer, policy, str(effect), needed, error=why)


def _line(
    authorizer: CelPolicies, policy: Policy, effect: str, needed: Demands, *, condition: str = "", error: str = ""
) -> Permission:
    return Permission(
        authorizer.name,
        effect,
        sorted(needed.get("verb", ("*",))),
        sorted(needed.get("resource", ("*",))),
        sorted(needed.get("group", ("*",))),
        urls=sorted(needed.get("path", ())),
        condition=condition,
        policy=str(policy.reference),
        error=error,
    )


def _is_one(needed: Demands, field: str) -> bool:
    return len(needed.get(field, ())) == 1
