"""The CEL of authorization policies: its environment, both phases of one expression, and reading a condition's text.

The first phase knows `request` and nothing else (`request.UNKNOWN`, and `authorizer`, wait for the second);
`request.name` of a create that names nothing is unknown too. A result that is not a bool is an error
(docs/semantics.md#data-is-unknown-in-the-first-phase and the points around it).

The variable `authorizer` asks the same chain about another request of the same user. As in ValidatingAdmissionPolicy, a
check supports no conditions: a conditional answer is folded (KEP-5681, "ValidatingAdmissionPolicies"). A policy may so
ask the chain that it stands in; how deep that goes is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from tierwall.api.algebra.chain import Chain
from tierwall.api.algebra.condition import (
    CEL_TYPE,
    MAX_CONDITION_BYTES,
    PACKED_CEL_TYPE,
    Condition,
    ConditionError,
    ConditionSet,
)
from tierwall.api.algebra.condition_fit import unpack
from tierwall.api.algebra.decision import ALLOW, Decision
from tierwall.api.algebra.request import UNKNOWN, Attributes, ConditionsMode
from tierwall.api.authorizers.demands import demands
from tierwall.cel.environment import Environment
from tierwall.cel.errors import Failure, ParseError
from tierwall.cel.evaluate.program import Program
from tierwall.cel.library import authorizer as checks
from tierwall.cel.partial_evaluation import PartialError, PartialResult, SpecialisedExpression, specialise
from tierwall.cel.syntax.ast import Expr
from tierwall.cel.syntax.printer import to_text
from tierwall.cel.types import DYN

AUTHORIZER = "authorizer"
_VARIABLES = dict.fromkeys(("request", *UNKNOWN, AUTHORIZER, "authorizer.requestResource"), DYN)
ENVIRONMENT = Environment(variables=_VARIABLES, functions=checks.OVERLOADS)


class FailedExpression(msgspec.Struct, frozen=True):
    """The expression is an error, whatever the data will be."""

    message: str


class ResidualExpression(msgspec.Struct, frozen=True):
    """What is left of the expression."""

    tree: Expr
    can_be_true: bool
    # Only `authorizer` is needed for an answer, no data.
    needs_only_authorizer: bool = False


class Expression:
    """One policy's expression, made ready for both phases on first use; threads that do so make the same."""

    def __init__(self, tree: Expr) -> None:
        self.tree = tree
        # By whether `request.name` is unknown.
        self._specialised: dict[bool, SpecialisedExpression] = {}
        # Which unknowns a residual names is asked only where the answer could be `authorizer`.
        self._may_ask: bool | None = None

    @cached_property
    def demands(self) -> Mapping[str, frozenset[str]]:
        """What it demands of a request (`demands`)."""
        return demands(self.tree)

    def first(self, request: dict[str, Any], *, name_unknown: bool) -> bool | FailedExpression | ResidualExpression:
        """What is known in the first phase: true, false, an error, or a residual."""
        try:
            partial = self._specialise(name_unknown)({"request": request})
        except (Failure, PartialError, RecursionError) as why:
            return FailedExpression(str(why))
        if self._may_ask is None:
            self._may_ask = AUTHORIZER in to_text(self.tree)
        return outcome_of(partial, self._may_ask)

    def warm(self, *, name_unknown: bool) -> None:
        """Do now what the first use would do."""
        try:
            self._specialise(name_unknown)
        except (Failure, PartialError, RecursionError):
            pass  # the first use says so

    def _specialise(self, name_unknown: bool) -> SpecialisedExpression:
        specialised = self._specialised.get(name_unknown)
        if specialised is None:
            # Always there, and of no type, so that it leaves the same residuals as any other unknown.
            types = {"request.name": DYN} if name_unknown else {}
            unknown = (*UNKNOWN, AUTHORIZER, *types)
            specialised = specialise(self.tree, unknown, boolean=True, types=types, environment=ENVIRONMENT)
            self._specialised[name_unknown] = specialised
        return specialised


_made: WeakValueDictionary[str, Expression] = WeakValueDictionary()


def shared_expression(text: str) -> Expression:
    """A policy's expression; ParseError if the text is not CEL.

    The same text gives the same one for as long as anybody has it, so that policies that did not change are not made
    ready again for the next snapshot. Threads that come first at the same time may get two that say the same.
    """
    expression = _made.get(text)
    if expression is None:
        expression = _made[text] = Expression(parse(text))
    return expression


def outcome_of(partial: PartialResult, may_ask: bool = True) -> bool | FailedExpression | ResidualExpression:
    """What a partial evaluation says of a policy; `may_ask` is false where the policy does not name `authorizer`."""
    if partial.error is not None:
        # A residual that can only fail is still one: as a Deny or a NoOpinion it is kept, as an Allow it is not.
        return (
            ResidualExpression(partial.expr, can_be_true=False)
            if partial.fails_late
            else FailedExpression(partial.error)
        )
    if partial.residual is None:
        return partial.value if isinstance(partial.value, bool) else FailedExpression("the result is not a bool")
    if not partial.can_be_false and not partial.can_fail:
        return True
    return ResidualExpression(partial.residual, partial.can_be_true, may_ask and partial.unknowns == {AUTHORIZER})


def parse(text: str) -> Expr:
    """The tree of a policy's expression; ParseError if the text is not CEL."""
    return ENVIRONMENT.parse(text)


def condition_is_true(condition: Condition, variables: Mapping[str, Any]) -> bool:
    """Whether a CEL condition is true; ConditionError if it fails, is not a bool, or is not one of ours.

    The text is parsed and interpreted under a cost limit; it is never code.
    """
    return evaluate_bool(_ready(condition_text(condition)), variables)


def evaluate_conditions(conditions: ConditionSet, variables: Mapping[str, Any]) -> Decision:
    """The concrete answer of a set of CEL conditions."""
    return conditions.evaluate(lambda condition: condition_is_true(condition, variables))


def condition_text(condition: Condition) -> str:
    """The CEL text of a condition; ConditionError if it is of another type."""
    if condition.type == CEL_TYPE:
        return condition.text
    if condition.type != PACKED_CEL_TYPE:
        raise ConditionError(f"type `{condition.type}` is not evaluated here")
    try:
        return unpack(condition.text)
    except ValueError as why:
        raise ConditionError(str(why)) from None


def evaluate_bool(run: Callable[[Mapping[str, Any]], object], variables: Mapping[str, Any]) -> bool:
    """The bool that a program gives; ConditionError if it fails or gives something else."""
    try:
        value = run(variables)
    except (Failure, RecursionError) as why:
        raise ConditionError(str(why)) from None
    if not isinstance(value, bool):
        raise ConditionError("the result is not a bool")
    return value


def program_of(tree: Expr) -> Callable[[Mapping[str, Any]], object]:
    """A tree ready to be evaluated with every variable known."""
    return Program(tree, ENVIRONMENT).evaluate


def _ready(text: str) -> Callable[[Mapping[str, Any]], object]:
    # Texts that were packed may be long; keeping thousands of them would be a way to fill the memory.
    return _program(text) if len(text) <= MAX_CONDITION_BYTES else _program.__wrapped__(text)


@lru_cache(maxsize=4096)
def _program(text: str) -> Callable[[Mapping[str, Any]], object]:
    try:
        return program_of(parse(text))
    except ParseError as why:
        raise ConditionError(f"not a CEL expression: {why}") from None


MAX_DEPTH = 3
_depth: ContextVar[int] = ContextVar("depth", default=0)


def authorizer_variables(chain: Chain, requester: Attributes) -> dict[str, Any]:
    """`authorizer` and `authorizer.requestResource` for one request."""

    def decide(question: checks.CheckRequest) -> checks.DecisionValue:
        depth = _depth.get()
        if depth >= MAX_DEPTH:
            return checks.DecisionValue(False, "", f"authorization checks are nested more than {MAX_DEPTH} deep")
        token = _depth.set(depth + 1)
        try:
            answer = chain.authorize(check_attributes(question, requester))
        finally:
            _depth.reset(token)
        return checks.DecisionValue(answer.verdict is ALLOW, answer.reason, answer.error)

    authorizer = checks.AuthorizerValue(decide)
    about_request = checks.CheckRequest(
        group=requester.group,
        resource=requester.resource,
        subresource=requester.subresource,
        namespace=requester.namespace,
        name=requester.name,
    )
    request_resource = checks.ResourceCheck(authorizer, about_request)
    return {"authorizer": authorizer, "authorizer.requestResource": request_resource}


def check_attributes(question: checks.CheckRequest, requester: Attributes) -> Attributes:
    """The request that a check is about; its version is any, as in the API server."""
    user, groups, uid, extra = requester.user, requester.groups, requester.uid, requester.extra
    if question.service_account is not None:
        namespace, name = question.service_account
        user, uid, extra = f"system:serviceaccount:{namespace}:{name}", "", ()
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    path = question.path
    return Attributes(
        user=user,
        groups=groups,
        uid=uid,
        extra=extra,
        verb=question.verb,
        group=question.group,
        version="*" if path is None else "",
        resource=question.resource,
        subresource=question.subresource,
        namespace=question.namespace,
        name=question.name,
        path=path or "",
        is_resource_request=path is None,
        conditions_mode=ConditionsMode.NONE,
    )
