"""Checks of the api plane: policies that do not do what their author expects (TW501 to TW509)."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.analyze.api_witness import failing_field, matching_request, object_paths
from tierwall.api.algebra.chain import Chain
from tierwall.api.algebra.condition import MAX_CONDITION_BYTES, Effect
from tierwall.api.algebra.decision import ALLOW
from tierwall.api.algebra.request import UNKNOWN
from tierwall.api.authorizers.cel_policies import CelAuthorizer, CelPolicy, policies_of
from tierwall.api.authorizers.demands import demands
from tierwall.api.authorizers.expression import AUTHORIZER, ENVIRONMENT, Expression, ResidualExpression
from tierwall.api.model import chain_of
from tierwall.cel.check.checker import check
from tierwall.cel.environment import Environment
from tierwall.cel.errors import CheckError, Failure
from tierwall.cel.library import authorizer
from tierwall.cel.partial_evaluation import PartialError, partial
from tierwall.cel.syntax.ast import Expr
from tierwall.cel.syntax.printer import to_text
from tierwall.cel.types import BOOL, DYN, STRING, ObjectType, Type, list_of, map_of
from tierwall.core.answer import Step
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.core.source import Position, format_path
from tierwall.resources.snapshot import Snapshot

_USER = ObjectType(
    "userInfo",
    fields={
        "username": STRING,
        "groups": list_of(STRING),
        "uid": STRING,
        "extra": map_of(STRING, list_of(STRING)),
    },
)
_STRING_FIELDS = ("verb", "apiGroup", "apiVersion", "resource", "subresource", "namespace", "name", "path")
_REQUEST = ObjectType(
    "request",
    fields={
        **dict.fromkeys(_STRING_FIELDS, STRING),
        "userInfo": _USER,
        "labelSelector": list_of(DYN),
        "fieldSelector": list_of(DYN),
    },
)
_TYPED = Environment(
    variables={
        **dict.fromkeys(UNKNOWN, DYN),
        "operation": STRING,
        "request": _REQUEST,
        "authorizer": Type("kubernetes.authorization.Authorizer"),
        "authorizer.requestResource": Type("kubernetes.authorization.ResourceCheck"),
    },
    functions=authorizer.OVERLOADS,
)


def api_findings(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield every finding about authorization policies and their chain."""
    try:
        chain = chain_of(snapshot)
    except InputError as error:
        yield from error.diagnostics
        chain = None
    for policy in policies_of(snapshot):
        yield from _expression(policy)
        tree = policy.tree
        if tree is None:
            continue
        yield from _reach(policy, tree)
        yield from _never(policy, tree)
        yield from _can_fail(policy)
        yield from _versions(policy, tree)
        yield from _length(policy, tree)
        if chain is not None:
            yield from _membership(policy, chain)
            yield from _wider(policy, tree, chain)


def _finding(
    code: str,
    policy: CelPolicy,
    message: str,
    hint: str = "",
    related: tuple[tuple[str, Position | None], ...] = (),
    related_objects: tuple[str, ...] = (),
) -> Diagnostic:
    path = ("spec", "expression")
    return policy.resource.diagnostic(code, message, path, hint=hint, related=related, related_objects=related_objects)


def _expression(policy: CelPolicy) -> Iterator[Diagnostic]:
    if policy.tree is None:
        if policy.error:  # admission reports what an API server would refuse
            yield _finding("TW509", policy, policy.error)
        return
    try:
        checked = check(policy.tree, _TYPED, policy.expression)
    except CheckError as error:
        for problem in error.problems:
            place = f"line {problem.line}, column {problem.column} of the expression"
            yield _finding("TW509", policy, f"{problem.message} ({place})", problem.hint or "")
        return
    if checked.type not in (BOOL, DYN):
        yield _finding("TW509", policy, f"expected a bool, found `{checked.type}`")


def _membership(policy: CelPolicy, chain: Chain) -> Iterator[Diagnostic]:
    names = [member.name for member in chain.members() if isinstance(member, CelAuthorizer)]
    if policy.authorizer not in names:
        known = ", ".join(f"`{name}`" for name in names) or "none"
        message = f"authorizer `{policy.authorizer}` is not a CEL authorizer of the chain, which has {known}"
        yield _finding("TW508", policy, message, near_miss(policy.authorizer, names))


def _reach(policy: CelPolicy, tree: Expr) -> Iterator[Diagnostic]:
    """Find a namespaced policy that asks for other namespaces or for paths."""
    if not policy.namespace:
        return
    needed = demands(tree)
    others = sorted(needed.get("namespace", frozenset()) - {policy.namespace})
    if others:
        where = f"namespace `{others[0]}`" if others[0] else "cluster-scoped requests"
        yield _finding("TW506", policy, f"asks for {where}, but holds only in namespace `{policy.namespace}`")
    if any(needed.get("path", ())):
        yield _finding("TW506", policy, f"asks for a path, but holds only in namespace `{policy.namespace}`")


def _never(policy: CelPolicy, tree: Expr) -> Iterator[Diagnostic]:
    """Find an Allow that is false for every request and object, as far as partial evaluation can tell."""
    if policy.effect is not Effect.ALLOW:
        return
    empty = next((field for field, values in sorted(demands(tree).items()) if not values), None)
    if empty is not None:
        yield _finding("TW502", policy, f"no request can have the {empty} it asks for")
        return
    try:
        outcome = partial(tree, {}, (*UNKNOWN, AUTHORIZER, "request"), boolean=True, environment=ENVIRONMENT)
    except (Failure, PartialError):
        return
    if not outcome.can_be_true:
        word = "false" if outcome.decided else "an error" if outcome.error is not None else "false or an error"
        yield _finding("TW502", policy, f"the expression is {word} for every request and object")


def _can_fail(policy: CelPolicy) -> Iterator[Diagnostic]:
    if policy.effect is not Effect.DENY:
        return
    witness = failing_field(policy)
    if witness is not None:
        verb, path = witness
        message = f"fails on a {verb} whose {path[0]} has no `{format_path(path[1:])}`"
        guard = f"has({format_path(path)})" if all(part.isidentifier() for part in path) else f'"{path[-1]}" in …'
        yield _finding("TW503", policy, message, f"guard it with `{guard}`")


def _versions(policy: CelPolicy, tree: Expr) -> Iterator[Diagnostic]:
    if demands(tree).get("group") == frozenset(("",)):
        return  # the core group has one version
    read = sorted(path for path in object_paths(tree) if path[0] in ("object", "oldObject") and len(path) > 1)
    if any(path[1] == "apiVersion" for path in read) or "apiVersion" in policy.expression:
        return
    fields = [path for path in read if path[1] not in ("metadata", "kind")]
    if fields:
        yield _finding("TW505", policy, f"reads `{format_path(fields[0])}` whatever `request.apiVersion` is")


def _length(policy: CelPolicy, tree: Expr) -> Iterator[Diagnostic]:
    attributes = matching_request(policy)
    residual = Expression(tree).first_phase(attributes.request(), name_unknown=attributes.is_name_unknown)
    if isinstance(residual, ResidualExpression):
        size = len(to_text(residual.tree).encode("utf-8", "surrogatepass"))
        if size > MAX_CONDITION_BYTES:
            yield _finding("TW504", policy, f"leaves a condition of {size:,} bytes, more than {MAX_CONDITION_BYTES:,}")


def _wider(policy: CelPolicy, tree: Expr, chain: Chain) -> Iterator[Diagnostic]:
    """Find a conditional Allow beside a policy that allows the same request unconditionally."""
    needed = demands(tree)
    if policy.effect is not Effect.ALLOW or not ({"user", "groups"} & set(needed)) or "verb" not in needed:
        return
    for verb in sorted(needed["verb"])[:8]:
        attributes = matching_request(policy, verb)
        residual = Expression(tree).first_phase(attributes.request(), name_unknown=attributes.is_name_unknown)
        if not isinstance(residual, ResidualExpression) or not residual.can_be_true:
            continue
        for member in chain.members():
            answer = member.authorize(attributes)
            wider = answer.settled_by
            if answer.verdict is ALLOW and wider is not None and wider.policy != policy.reference:
                message = f"`{verb}` is already allowed without condition by {_named(wider)}"
                related = (("allowed here", wider.at),)
                yield _finding("TW507", policy, message, related=related, related_objects=(_named(wider),))
                return


def _named(step: Step) -> str:
    return f"{step.policy}" if step.policy is not None else f"authorizer `{step.tier}`"
