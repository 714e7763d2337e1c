"""Authorization checks from within an expression (apiserver pkg/cel/library/authz.go).

The host gives a variable of type `AuthorizerValue` whose `decide` answers requests; nothing here reaches out by
itself. A check costs 350,000, so at most two fit the limit of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library.table import Overload, member_overloads
from tierwall.cel.types import BOOL, STRING, Type
from tierwall.cel.values import OpaqueValue, size_of
from tierwall.values.names import dns_label, dns_subdomain

_CHECK_COST = 350_000


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request to check. `service_account` is `(namespace, name)`, or None for the user of the request."""

    verb: str = ""
    service_account: tuple[str, str] | None = None
    path: str | None = None
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""


class DecisionValue(OpaqueValue, msgspec.Struct, frozen=True):
    """The answer."""

    cel_type: ClassVar[str] = "kubernetes.authorization.Decision"
    allowed: bool
    reason: str = ""
    error: str = ""


class AuthorizerValue(OpaqueValue, msgspec.Struct, frozen=True):
    """The variable `authorizer`."""

    cel_type: ClassVar[str] = "kubernetes.authorization.Authorizer"
    decide: Callable[[CheckRequest], DecisionValue]
    service_account: tuple[str, str] | None = None


class AuthorizationCheck(OpaqueValue, msgspec.Struct, frozen=True):
    """A request as far as the expression has built it; the verb comes last."""

    authorizer: AuthorizerValue
    request: CheckRequest


class PathCheck(AuthorizationCheck, frozen=True):
    """`authorizer.path(p)`: of a path that is not a resource."""

    cel_type: ClassVar[str] = "kubernetes.authorization.PathCheck"


class GroupCheck(AuthorizationCheck, frozen=True):
    """`authorizer.group(g)`."""

    cel_type: ClassVar[str] = "kubernetes.authorization.GroupCheck"


class ResourceCheck(AuthorizationCheck, frozen=True):
    """`authorizer.group(g).resource(r)` and what is added to it; also the variable `authorizer.requestResource`."""

    cel_type: ClassVar[str] = "kubernetes.authorization.ResourceCheck"


AUTHORIZER, PATH_CHECK, GROUP_CHECK, RESOURCE_CHECK, DECISION = (
    Type(kind.cel_type) for kind in (AuthorizerValue, PathCheck, GroupCheck, ResourceCheck, DecisionValue)
)


def service_account(authorizer: AuthorizerValue, namespace: str, name: str) -> AuthorizerValue:
    """Return the same authorizer asked about a service account."""
    if dns_subdomain(name):
        raise EvaluationError("Invalid service account name")
    if dns_label(namespace):
        raise EvaluationError("Invalid service account namespace")
    return AuthorizerValue(authorizer.decide, (namespace, name))


def check(check: AuthorizationCheck, verb: str) -> DecisionValue:
    """Return the decision on a path or a resource."""
    service_account = check.authorizer.service_account
    return check.authorizer.decide(replace(check.request, verb=verb, service_account=service_account))


def _setter(
    field: str, kind: type[AuthorizationCheck], required: bool = False
) -> Callable[[AuthorizerValue | AuthorizationCheck, str], AuthorizationCheck]:
    """Return a function that adds a field to a request; an authorizer begins a new one."""

    def add(target: AuthorizerValue | AuthorizationCheck, text: str) -> AuthorizationCheck:
        if required and not text.strip():
            raise EvaluationError(f"{field} must not be empty")
        if isinstance(target, AuthorizerValue):
            return kind(target, replace(CheckRequest(), **{field: text}))
        return kind(target.authorizer, replace(target.request, **{field: text}))

    return add


def _selector_cost(_: object, text: object) -> int:
    size = size_of(text)
    requirements = -(-size // 2)
    return 10 + -(-size // 10) + requirements * 50


_of_authorizer, _of_decision = member_overloads(AUTHORIZER, since=27), member_overloads(DECISION, since=27)
_of_resource = member_overloads(RESOURCE_CHECK, since=27)
_S = (STRING,)
_SELECTOR = {"cost": _selector_cost, "since": 31}

OVERLOADS: tuple[Overload, ...] = (
    _of_authorizer("path", _S, PATH_CHECK, _setter("path", PathCheck, required=True)),
    _of_authorizer("group", _S, GROUP_CHECK, _setter("group", GroupCheck)),
    _of_authorizer("serviceAccount", (STRING, STRING), AUTHORIZER, service_account),
    member_overloads(GROUP_CHECK, since=27)(
        "resource", _S, RESOURCE_CHECK, _setter("resource", ResourceCheck, required=True)
    ),
    _of_resource("subresource", _S, RESOURCE_CHECK, _setter("subresource", ResourceCheck)),
    _of_resource("namespace", _S, RESOURCE_CHECK, _setter("namespace", ResourceCheck)),
    _of_resource("name", _S, RESOURCE_CHECK, _setter("name", ResourceCheck)),
    _of_resource("fieldSelector", _S, RESOURCE_CHECK, _setter("field_selector", ResourceCheck), **_SELECTOR),
    _of_resource("labelSelector", _S, RESOURCE_CHECK, _setter("label_selector", ResourceCheck), **_SELECTOR),
    member_overloads(PATH_CHECK, since=27)("check", _S, DECISION, check, cost=lambda *_: _CHECK_COST),
    _of_resource("check", _S, DECISION, check, cost=lambda *_: _CHECK_COST),
    _of_decision("errored", (), BOOL, lambda decision: bool(decision.error)),
    _of_decision("error", (), STRING, lambda decision: decision.error),
    _of_decision("allowed", (), BOOL, lambda decision: decision.allowed),
    _of_decision("reason", (), STRING, lambda decision: decision.reason),
)
