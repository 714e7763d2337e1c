"""Facts about the request of a second phase, as far as its wire shape tells them.

A sealed answer holds for one request (`api.wire.seal`). The shape with an `admissionRequest` names that request. The
others carry only the operation and the objects, and those tell the version, the kind, the namespace and the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.api.resource_names import BUILT_IN
from tierwall.api.wire.seal import RequestedResource, ReviewFacts
from tierwall.serve.authorizer import bridge
from tierwall.serve.authorizer.namespace_index import NamespaceIndex


def facts_of_data(data: ConditionData) -> ReviewFacts:
    """Return the facts that operation and objects tell."""
    value = data.object if isinstance(data.object, Mapping) else data.old_object
    if not isinstance(value, Mapping) or data.operation == "CONNECT":
        return ReviewFacts(operation=data.operation, impersonates=data.impersonated_request is not None)
    metadata = value.get("metadata")
    known = metadata if isinstance(metadata, Mapping) else {}
    group_version = _group_version(value.get("apiVersion"))
    return ReviewFacts(
        operation=data.operation,
        resources=_resources(group_version, value.get("kind")),
        group_version=group_version,
        namespace=_string(known.get("namespace")),
        name=_string(known.get("name")),
        from_object=True,
        impersonates=data.impersonated_request is not None,
    )


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _group_version(api_version: Any) -> tuple[str, str] | None:
    if not isinstance(api_version, str) or not api_version:
        return None
    group, _, version = api_version.rpartition("/")
    return group, version


def _resources(group_version: tuple[str, str] | None, kind: Any) -> tuple[RequestedResource, ...] | None:
    """Return the resources of a kind of Kubernetes; only an API server knows the plurals of other kinds."""
    if group_version is None or not isinstance(kind, str):
        return None
    group, version = group_version
    plural = _plurals().get((group, kind.lower()))
    return None if plural is None else ((group, version, plural, ""), (group, version, plural, "status"))


@cache
def _plurals() -> dict[tuple[str, str], str]:
    plurals = {(served.group, name): served.plural for served in BUILT_IN for name in served.other_names}
    # The one kind that is its own plural.
    return plurals | {("", "endpoints"): "endpoints"}


def facts_of_request(
    data: ConditionData, value: Mapping[str, Any], namespaces: NamespaceIndex
) -> tuple[ConditionData, ReviewFacts]:
    """Return the data with requester and namespace, and the facts about the request; WireError if it is malformed.

    The requester, for checks through `authorizer`, is unknown if the request does not name it in full. Then
    its object tells what it is about.
    """
    request = bridge.admission_request(value)
    # Who asks, and for what, does not depend on the operation.
    attributes = (request if request.operation else replace(request, operation="CREATE")).attributes()[0]
    told = ReviewFacts(
        operation=request.operation or None,
        user=attributes if request.user_info != bridge.UserInfo() else None,
        resources=_requested(attributes),
        namespace=attributes.namespace or None,
        # Without a name it deletes a collection.
        name=request.name or ("" if request.operation == "DELETE" else None),
    )
    if told.operation is None or told.resources is None:
        facts = facts_of_data(data)
        return data, replace(facts, user=told.user, resources=facts.resources or told.resources)
    return replace(data, requester=attributes, namespace_object=namespaces.object_of(attributes)), told


def _requested(attributes: Attributes) -> tuple[RequestedResource, ...] | None:
    if not attributes.resource:
        return None
    return ((attributes.group, attributes.version, attributes.resource, attributes.subresource),)
