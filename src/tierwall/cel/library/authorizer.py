"""Authorization checks from within an expression (apiserver pkg/cel/library/authz.go).

The host gives a variable of type `Authorizer` whose `decide` answers questions; nothing here reaches out by itself.
A check costs 350,000, so at most two fit the limit of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library.table import Overload, members
from tierwall.cel.types import BOOL, STRING, Type
from tierwall.cel.values import Opaque, size_of
from tierwall.values.names import dns_label, dns_subdomain

_CHECK_COST = 350_000


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. `service_account` is `(namespace, name)`, or None for the user of the request."""

    verb: str
    service_account: tuple[str, str] | None = None
    path: str | None = None
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""


class Decision(Opaque, msgspec.Struct, frozen=True):
    """The answer."""

    cel_type: ClassVar[str] = "kubernetes.authorization.Decision"
    allowed: bool
    reason: str = ""
    error: str = ""


class Authorizer(Opaque, msgspec.Struct, frozen=True):
    """The variable `authorizer`."""

    cel_type: ClassVar[str] = "kubernetes.authorization.Authorizer"
    decide: Callable[[Question], Decision]
    service_account: tuple[str, str] | None = None


class PathCheck(Opaque, msgspec.Struct, frozen=True):
    """`authorizer.path(p)`."""

    cel_type: ClassVar[str] = "kubernetes.authorization.PathCheck"
    authorizer: Authorizer
    path: str


class GroupCheck(Opaque, msgspec.Struct, frozen=True):
    """`authorizer.group(g)`."""

    cel_type: ClassVar[str] = "kubernetes.authorization.GroupCheck"
    authorizer: Authorizer
    group: str


class ResourceCheck(Opaque, msgspec.Struct, frozen=True):
    """`authorizer.group(g).resource(r)` and what is added to it; also the variable `authorizer.requestResource`."""

    cel_type: ClassVar[str] = "kubernetes.authorization.ResourceCheck"
    authorizer: Authorizer
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""


AUTHORIZER, PATH_CHECK, GROUP_CHECK, RESOURCE_CHECK, DECISION = (
    Type(kind.cel_type) for kind in (Authorizer, PathCheck, GroupCheck, ResourceCheck, Decision)
)


def service_account(authorizer: Authorizer, namespace: str, name: str) -> Authorizer:
    """The same authorizer asked about a service account."""
    if dns_subdomain(name):
        raise EvaluationError("Invalid service account name")
    if dns_label(namespace):
        raise EvaluationError("Invalid service account namespace")
    return Authorizer(authorizer.decide, (namespace, name))


def path(authorizer: Authorizer, text: str) -> PathCheck:
    """A check of a path that is no resource."""
    if not text.strip():
        raise EvaluationError("path must not be empty")
    return PathCheck(authorizer, text)


def resource(group: GroupCheck, text: str) -> ResourceCheck:
    """A check of a resource."""
    if not text.strip():
        raise EvaluationError("resource must not be empty")
    return ResourceCheck(group.authorizer, group.group, text)


def check_path(check: PathCheck, verb: str) -> Decision:
    """The decision on a path."""
    return check.authorizer.decide(
        Question(verb=verb, service_account=check.authorizer.service_account, path=check.path)
    )


def check_resource(check: ResourceCheck, verb: str) -> Decision:
    """The decision on a resource."""
    fields = {name: getattr(check, name) for name in ResourceCheck.__struct_fields__ if name != "authorizer"}
    return check.authorizer.decide(Question(verb=verb, service_account=check.authorizer.service_account, **fields))


def _with(field: str) -> Callable[[ResourceCheck, str], ResourceCheck]:
    return lambda check, text: msgspec.structs.replace(check, **{field: text})


def _selector_cost(_: object, text: object) -> int:
    size = size_of(text)
    requirements = -(-size // 2)
    return 10 + -(-size // 10) + requirements * 50


def _check_cost(*_: object) -> int:
    return _CHECK_COST


_of_authorizer, _of_decision = members(AUTHORIZER, since=27), members(DECISION, since=27)
_of_resource = members(RESOURCE_CHECK, since=27)
_S = (STRING,)
_SELECTOR = {"cost": _selector_cost, "since": 31}

OVERLOADS: tuple[Overload, ...] = (
    _of_authorizer("path", _S, PATH_CHECK, path),
    _of_authorizer("group", _S, GROUP_CHECK, GroupCheck),
    _of_authorizer("serviceAccount", (STRING, STRING), AUTHORIZER, service_account),
    members(GROUP_CHECK, since=27)("resource", _S, RESOURCE_CHECK, resource),
    _of_resource("subresource", _S, RESOURCE_CHECK, _with("subresource")),
    _of_resource("namespace", _S, RESOURCE_CHECK, _with("namespace")),
    _of_resource("name", _S, RESOURCE_CHECK, _with("name")),
    _of_resource("fieldSelector", _S, RESOURCE_CHECK, _with("field_selector"), **_SELECTOR),
    _of_resource("labelSelector", _S, RESOURCE_CHECK, _with("label_selector"), **_SELECTOR),
    members(PATH_CHECK, since=27)("check", _S, DECISION, check_path, cost=_check_cost),
    _of_resource("check", _S, DECISION, check_resource, cost=_check_cost),
    _of_decision("errored", (), BOOL, lambda decision: bool(decision.error)),
    _of_decision("error", (), STRING, lambda decision: decision.error),
    _of_decision("allowed", (), BOOL, lambda decision: decision.allowed),
    _of_decision("reason", (), STRING, lambda decision: decision.reason),
)
