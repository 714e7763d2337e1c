"""SubjectAccessReview, `v1` and `v1beta1`: read its spec, and write the status of a concrete decision.

A caller that supports conditions names the shape it reads: `spec.conditionalAuthorization.mode` of the KEP
(`CONDITIONS_CHAIN`) or `spec.authorizationOptions.handledDecisionTypes` (`SERIES`); one that names neither gets none
(`PLAIN`). `v1beta1` spells groups `group` and has no conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from tierwall.api.algebra.condition_words import one_line
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import Attributes, ConditionsMode, hashable_extra
from tierwall.core.labels import Requirement

V1, V1BETA1 = "authorization.k8s.io/v1", "authorization.k8s.io/v1beta1"
KIND = "SubjectAccessReview"
# Reviews for API servers only, which never pass them on: they do not say who asks, or not in full.
_OWN_REVIEWS = ("SelfSubjectAccessReview", "LocalSubjectAccessReview", "SelfSubjectRulesReview")
_FIELD_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_SERIES_MINIMUM = frozenset(("Allow", "Deny", "NoOpinion"))


class WireError(ValueError):
    """A review or a part of it is malformed."""


class WireShape(Enum):
    """The form of conditions on the wire."""

    PLAIN = "plain"
    CONDITIONS_CHAIN = "conditionsChain"
    KEP = "conditionSetChain"
    SERIES = "conditionalDecision"


# INVARIANT: `gc=False` below holds because decoded JSON is a tree without cycles.


class SelectorAttributes(msgspec.Struct, frozen=True, rename="camel"):
    """A selector; `rawSelector` is ignored, which only widens the request."""

    raw_selector: str = ""
    requirements: list[dict[str, Any]] = []


class ResourceAttributes(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """`spec.resourceAttributes`."""

    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    label_selector: SelectorAttributes | None = None
    field_selector: SelectorAttributes | None = None


_NO_RESOURCE = ResourceAttributes()
_RESOURCE_STRINGS = ("namespace", "verb", "group", "version", "resource", "subresource", "name")


class NonResourceAttributes(msgspec.Struct, frozen=True, gc=False):
    """`spec.nonResourceAttributes`."""

    path: str = ""
    verb: str = ""


class ReviewSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """`spec` of all generations together."""

    resource_attributes: ResourceAttributes | None = None
    non_resource_attributes: NonResourceAttributes | None = None
    user: str = ""
    groups: list[str] | None = None
    group: list[str] | None = None
    uid: str = ""
    extra: dict[str, list[str]] | None = None
    conditional_authorization: dict[str, Any] | None = None
    authorization_options: dict[str, Any] | None = None


class DecodedReview(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A decoded SubjectAccessReview; an object of another kind has its kind alone."""

    api_version: str = ""
    kind: str = ""
    spec: ReviewSpec | None = None


class AccessReview(msgspec.Struct, frozen=True, gc=False):
    """A SubjectAccessReview as read: the request it asks about, and how to answer."""

    api_version: str
    attributes: Attributes
    shape: WireShape = WireShape.PLAIN
    # SERIES only: the decision types the caller handles.
    handled: frozenset[str] = frozenset()


def read_access_review(review: DecodedReview) -> AccessReview:
    """Read a decoded review; WireError says what is wrong with it."""
    api_version, spec = review.api_version, review.spec
    if review.kind != KIND or api_version not in (V1, V1BETA1):
        message = f"expected a `{KIND}` of `{V1}` or `{V1BETA1}`, found `{review.kind}` of `{api_version}`"
        hint = f": an API server answers these itself, and asks webhooks with a `{KIND}`"
        raise WireError(message + hint if review.kind in _OWN_REVIEWS else message)
    if spec is None:
        raise WireError("`spec` is required")
    groups = spec.groups if api_version == V1 else spec.group
    shape, mode, handled = _support(spec) if api_version == V1 else _NO_SUPPORT
    if not spec.user and not groups:
        raise WireError("at least one of `user` or `groups` is required")
    return AccessReview(api_version, _attributes(spec, tuple(groups or ()), mode), shape, handled)


def _attributes(spec: ReviewSpec, groups: tuple[str, ...], mode: ConditionsMode) -> Attributes:
    if (spec.resource_attributes is None) is (spec.non_resource_attributes is None):
        raise WireError("exactly one of `resourceAttributes` and `nonResourceAttributes` is required")
    path = spec.non_resource_attributes
    resource = spec.resource_attributes or _NO_RESOURCE
    return Attributes(
        user=spec.user,
        groups=groups,
        uid=spec.uid,
        extra=hashable_extra(spec.extra) if spec.extra else (),
        verb=resource.verb if path is None else path.verb,
        group=resource.group,
        version=resource.version,
        resource=resource.resource,
        subresource=resource.subresource,
        namespace=resource.namespace,
        name=resource.name,
        path="" if path is None else path.path,
        is_resource_request=path is None,
        label_selector=_selector(resource.label_selector),
        field_selector=_selector(resource.field_selector),
        conditions_mode=mode,
    )


def _selector(value: SelectorAttributes | None) -> tuple[Requirement, ...] | None:
    if value is None:
        return None
    if value.raw_selector and value.requirements:
        raise WireError("expected `rawSelector` or `requirements`, found both")
    requirements = []
    for requirement in value.requirements:
        key, operator, values = requirement.get("key"), requirement.get("operator"), requirement.get("values") or []
        if not isinstance(key, str) or not isinstance(operator, str) or not isinstance(values, list):
            raise WireError("expected `key`, `operator` and a list of `values` in a selector requirement")
        # An operator of a later release is ignored, which only widens the request.
        if operator in _FIELD_OPERATORS and all(isinstance(item, str) for item in values):
            requirements.append(Requirement(key, operator, tuple(values)))
    return tuple(requirements)


_Support: TypeAlias = tuple[WireShape, ConditionsMode, frozenset[str]]
_NO_SUPPORT: _Support = (WireShape.PLAIN, ConditionsMode.NONE, frozenset())
_MODES: dict[str, _Support] = {
    str(mode): (WireShape.CONDITIONS_CHAIN, mode, frozenset())
    for mode in (ConditionsMode.HUMAN_READABLE, ConditionsMode.OPTIMIZED)
}


def _support(spec: ReviewSpec) -> _Support:
    if spec.authorization_options is not None:
        types = spec.authorization_options.get("handledDecisionTypes")
        if not isinstance(types, list) or not all(isinstance(word, str) for word in types):
            raise WireError("`spec.authorizationOptions.handledDecisionTypes` is required")
        handled = frozenset(types)
        if missing := sorted(_SERIES_MINIMUM - handled):
            raise WireError(f"`handledDecisionTypes` lacks `{missing[0]}`")
        if "ConditionsMap" not in handled:
            return WireShape.PLAIN, ConditionsMode.NONE, handled
        return WireShape.SERIES, ConditionsMode.HUMAN_READABLE, handled
    mode = spec.conditional_authorization.get("mode") if spec.conditional_authorization else None
    # Conditions are returned only to callers that are known to read them, so an unknown mode gets none.
    return _MODES.get(mode, _NO_SUPPORT) if isinstance(mode, str) else _NO_SUPPORT


def resource_attributes(attributes: Attributes) -> dict[str, Any]:
    """Return `spec.resourceAttributes`, with empty strings present."""
    out: dict[str, Any] = {key: getattr(attributes, key) for key in _RESOURCE_STRINGS}
    for key, selector in (("fieldSelector", attributes.field_selector), ("labelSelector", attributes.label_selector)):
        if selector:
            out[key] = {"requirements": [_write_requirement(requirement) for requirement in selector]}
    return out


def _write_requirement(requirement: Requirement) -> dict[str, Any]:
    values = {"values": list(requirement.values)} if requirement.values else {}
    return {"key": requirement.key, "operator": requirement.operator, **values}


def spec_of(attributes: Attributes, version: str = V1, shape: WireShape = WireShape.PLAIN) -> dict[str, Any]:
    """Return the spec that asks a webhook about a request."""
    out: dict[str, Any] = {}
    if attributes.is_resource_request:
        fields = resource_attributes(attributes).items()
        out["resourceAttributes"] = {key: value for key, value in fields if value}
    else:
        out["nonResourceAttributes"] = {"path": attributes.path, "verb": attributes.verb}
    out["user"] = attributes.user
    if attributes.groups:
        out["groups" if version == V1 else "group"] = list(attributes.groups)
    if attributes.extra:
        out["extra"] = {key: list(values) for key, values in attributes.extra}
    if attributes.uid:
        out["uid"] = attributes.uid
    if shape is not WireShape.PLAIN and attributes.conditions_mode and version == V1:
        if shape is WireShape.SERIES:
            types = ["Allow", "ConditionsMap", "Deny", "NoOpinion", "Union"]
            out["authorizationOptions"] = {"handledDecisionTypes": types}
        else:
            out["conditionalAuthorization"] = {"mode": str(attributes.conditions_mode)}
    return out


def concrete_status(decision: Decision) -> dict[str, Any]:
    """Return the status of a concrete decision, which every generation reads."""
    out: dict[str, Any] = {"allowed": decision.verdict is ALLOW}
    if decision.verdict is DENY:
        out["denied"] = True
    if decision.reason:
        out["reason"] = one_line(decision.reason)
    if decision.error:
        out["evaluationError"] = one_line(decision.error)
    return out


def read_concrete(status: Mapping[str, Any]) -> Decision:
    """Read a concrete decision from a status or a conditions response; both allowed and denied means Deny."""
    allowed, denied = status.get("allowed", False), status.get("denied", False)
    reason, error = status.get("reason") or "", status.get("evaluationError") or ""
    if not isinstance(allowed, bool) or not isinstance(denied, bool):
        raise WireError("expected true or false as `allowed` and `denied`")
    if not isinstance(reason, str) or not isinstance(error, str):
        raise WireError("expected strings as `reason` and `evaluationError`")
    if allowed and denied:
        return Decision(DENY, reason, error or "the answer is both allowed and denied")
    return Decision(ALLOW if allowed else DENY if denied else NO_OPINION, reason, error)
