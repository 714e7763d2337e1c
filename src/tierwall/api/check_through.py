"""Compound checks: the CEL variable `authorizer` asks the same chain about another request of the same user.

As in ValidatingAdmissionPolicy, a check supports no conditions: a conditional answer is folded (KEP-5681,
"ValidatingAdmissionPolicies"). A policy may so ask the chain that it stands in; how deep that goes is bounded.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tierwall.api.attributes import Attributes, ConditionsMode
from tierwall.api.decision import ALLOW
from tierwall.cel.library.authorizer import Authorizer, Decision, Question, ResourceCheck

if TYPE_CHECKING:
    from tierwall.api.chain import Chain

MAX_DEPTH = 3
_depth: ContextVar[int] = ContextVar("depth", default=0)


def authorizer_variables(chain: Chain, requester: Attributes) -> dict[str, Any]:
    """`authorizer` and `authorizer.requestResource` for one request."""

    def decide(question: Question) -> Decision:
        depth = _depth.get()
        if depth >= MAX_DEPTH:
            return Decision(False, "", f"authorization checks are nested more than {MAX_DEPTH} deep")
        token = _depth.set(depth + 1)
        try:
            answer = chain.authorize(asked(question, requester))
        finally:
            _depth.reset(token)
        return Decision(answer.verdict is ALLOW, answer.reason, answer.error)

    authorizer = Authorizer(decide)
    request_resource = ResourceCheck(
        authorizer,
        requester.group,
        requester.resource,
        requester.subresource,
        requester.namespace,
        requester.name,
    )
    return {"authorizer": authorizer, "authorizer.requestResource": request_resource}


def asked(question: Question, requester: Attributes) -> Attributes:
    """The request that a check is about; its version is any, as in the API server."""
    user, groups, uid, extra = requester.user, requester.groups, requester.uid, requester.extra
    if question.service_account is not None:
        namespace, name = question.service_account
        user, uid, extra = f"system:serviceaccount:{namespace}:{name}", "", ()
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    if question.path is not None:
        return Attributes(
            user=user,
            groups=groups,
            uid=uid,
            extra=extra,
            verb=question.verb,
            path=question.path,
            is_resource_request=False,
            conditions_mode=ConditionsMode.NONE,
        )
    return Attributes(
        user=user,
        groups=groups,
        uid=uid,
        extra=extra,
        verb=question.verb,
        group=question.group,
        version="*",
        resource=question.resource,
        subresource=question.subresource,
        namespace=question.namespace,
        name=question.name,
        conditions_mode=ConditionsMode.NONE,
    )
