"""The CEL of authorization policies: its environment, both phases of an expression, and the text of conditions.

The first phase knows only `request` (`request.UNKNOWN` and `authorizer` wait for the second phase);
`request.name` of a create without a name is unknown too. A result that is not a bool is an error
(docs/semantics.md#data-is-unknown-in-the-first-phase and the points around it).

The variable `authorizer` asks the same chain about another request of the same user. As in ValidatingAdmissionPolicy, a
check does not support conditions: a conditional answer is folded (KEP-5681, "ValidatingAdmissionPolicies"). A policy
can thus ask the chain that it is part of; the depth is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
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
    """An expression that fails, whatever the data."""

    message: str


class ResidualExpression(msgspec.Struct, frozen=True):
    """The residual of an expression."""

    tree: Expr
    can_be_true: bool
    # It needs only `authorizer`, no data.
    needs_only_authorizer: bool = False


class Expression:
    """The expression of a policy, prepared for both phases on first use. Threads may prepare it at the same time."""

    def __init__(self, tree: Expr) -> None:
        self.tree = tree
        # By whether `request.name` is unknown.
        self._specialised: dict[bool, SpecialisedExpression] = {}
        # Whether it names `authorizer`; only then do the unknowns of a residual matter.
        self._names_authorizer: bool | None = None

    @cached_property
    def demands(self) -> Mapping[str, frozenset[str]]:
        """The demands on a request (`demands`)."""
        return demands(self.tree)

    def first_phase(
        self, request: dict[str, Any], *, name_unknown: bool
    ) -> bool | FailedExpression | ResidualExpression:
        """Evaluate the first phase: true, false, an error, or a residual."""
        try:
            partial = self._specialise(name_unknown)({"request": request})
            if self._names_authorizer is None:
                self._names_authorizer = AUTHORIZER in to_text(self.tree)
            return outcome_of(partial, self._names_authorizer)
        except Exception as error:
            # Whatever evaluating one expression comes to, only its own policy is closed.
            return FailedExpression(failure_text(error))

    def warm(self, *, name_unknown: bool) -> None:
        """Prepare now what the first use would prepare."""
        with suppress(Exception):  # the first use reports it
            self._specialise(name_unknown)

    def _specialise(self, name_unknown: bool) -> SpecialisedExpression:
        specialised = self._specialised.get(name_unknown)
        if specialised is None:
            # It is never missing and has no type, so that it leaves the same residuals as any other unknown.
            types = {"request.name": DYN} if name_unknown else {}
            unknown = (*UNKNOWN, AUTHORIZER, *types)
            specialised = specialise(self.tree, unknown, boolean=True, types=types, environment=ENVIRONMENT)
            self._specialised[name_unknown] = specialised
        return specialised


def failure_text(error: Exception) -> str:
    """Return why an expression failed; an error that CEL does not know is named by its type."""
    if isinstance(error, (ConditionError, Failure, ParseError, PartialError)):
        return str(error)
    return f"{type(error).__name__}: {error}"


_shared: WeakValueDictionary[str, Expression] = WeakValueDictionary()


def shared_expression(text: str) -> Expression:
    """Return the expression of a text; ParseError if it is not CEL.

    Equal texts share one expression while it is in use, so the policies that a new snapshot does not change need no
    preparation. Two threads that ask first at the same time may get two equal expressions.
    """
    expression = _shared.get(text)
    if expression is None:
        expression = _shared[text] = Expression(parse(text))
    return expression


def outcome_of(partial: PartialResult, names_authorizer: bool = True) -> bool | FailedExpression | ResidualExpression:
    """Classify the result of a partial evaluation; `names_authorizer` is false if its policy does not."""
    if partial.error is not None:
        # A residual that can only fail still counts for a Deny or a NoOpinion, but not for an Allow.
        if partial.fails_late:
            return ResidualExpression(partial.expr, can_be_true=False)
        return FailedExpression(partial.error)
    if partial.residual is None:
        return partial.value if isinstance(partial.value, bool) else FailedExpression("the result is not a bool")
    if not partial.can_be_false and not partial.can_fail:
        return True
    return ResidualExpression(
        partial.residual, partial.can_be_true, names_authorizer and partial.unknowns == {AUTHORIZER}
    )


def parse(text: str) -> Expr:
    """Parse an expression; ParseError if the text is not CEL."""
    return ENVIRONMENT.parse(text)


def condition_is_true(condition: Condition, variables: Mapping[str, Any]) -> bool:
    """Whether a CEL condition is true; ConditionError if it fails, does not give a bool, or has an unknown type.

    The text is parsed and interpreted under a cost limit, never executed as code.
    """
    return evaluate_bool(_cached_program(condition_text(condition)), variables)


def evaluate_conditions(conditions: ConditionSet, variables: Mapping[str, Any]) -> Decision:
    """Evaluate a set of CEL conditions."""
    return conditions.evaluate(lambda condition: condition_is_true(condition, variables))


def condition_text(condition: Condition) -> str:
    """Return the CEL text of a condition; ConditionError if it has another type."""
    if condition.type == CEL_TYPE:
        return condition.text
    if condition.type != PACKED_CEL_TYPE:
        raise ConditionError(f"type `{condition.type}` is not evaluated here")
    try:
        return unpack(condition.text)
    except ValueError as error:
        raise ConditionError(str(error)) from None


def evaluate_bool(run: Callable[[Mapping[str, Any]], object], variables: Mapping[str, Any]) -> bool:
    """Run a program; ConditionError if it fails or does not give a bool."""
    try:
        value = run(variables)
    except Exception as error:
        raise ConditionError(failure_text(error)) from None
    if not isinstance(value, bool):
        raise ConditionError("the result is not a bool")
    return value


def program_of(tree: Expr) -> Callable[[Mapping[str, Any]], object]:
    """Compile a tree for evaluation with every variable known."""
    return Program(tree, ENVIRONMENT).evaluate


def _cached_program(text: str) -> Callable[[Mapping[str, Any]], object]:
    # Packed texts may be long; a cache of thousands would let users fill the memory.
    return _program(text) if len(text) <= MAX_CONDITION_BYTES else _program.__wrapped__(text)


@lru_cache(maxsize=4096)
def _program(text: str) -> Callable[[Mapping[str, Any]], object]:
    try:
        return program_of(parse(text))
    except Exception as error:
        raise ConditionError(f"not a CEL expression: {failure_text(error)}") from None


MAX_DEPTH = 3
_depth: ContextVar[int] = ContextVar("depth", default=0)


def authorizer_variables(chain: Chain, requester: Attributes) -> dict[str, Any]:
    """Return the variables `authorizer` and `authorizer.requestResource` for one request."""

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
    """Return the request that a check asks about; its version is `*`, as in the API server."""
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
