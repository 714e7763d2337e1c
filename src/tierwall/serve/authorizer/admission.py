"""AdmissionReview `v1`: what an API server asks admission, and the requests that an authorizer was asked about for it.

Admission does not say the verb. An UPDATE may have been an update or a patch (the API server turns PatchOptions into
UpdateOptions), a CONNECT a get or a create; then each is judged. A CREATE that was an update or a patch says so only if
its options do; it was authorized as a create as well, and is judged as that. A create in a collection had no name when
it was authorized, nor a new Namespace a namespace, though admission knows both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tierwall.api.algebra.request import Attributes, ConditionData, extra_of
from tierwall.api.wire.review import WireError

API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
_OPTIONS = {"UpdateOptions": "update", "PatchOptions": "patch"}


class ResourceName(msgspec.Struct, frozen=True):
    """A GroupVersionResource."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(msgspec.Struct, frozen=True):
    """Who asks."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """`request` of a review."""

    uid: str
    operation: str
    resource: ResourceName
    user_info: UserInfo = UserInfo()
    request_resource: ResourceName | None = None
    sub_resource: str = ""
    request_sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    object: Any = None
    old_object: Any = None
    options: Any = None

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs that this may have been authorized as."""
        kind = self.options.get("kind") if isinstance(self.options, Mapping) else None
        match self.operation:
            case "CREATE":
                other = _OPTIONS.get(kind) if isinstance(kind, str) else None
                return ("create", other) if other is not None else ("create",)
            case "UPDATE":
                return ("patch",) if kind == "PatchOptions" else ("update", "patch")
            case "DELETE":
                return ("delete",) if self.name else ("deletecollection",)
            case "CONNECT":
                return ("get", "create")
            case other_operation:
                raise WireError(f"unknown operation `{other_operation}`, expected CREATE, UPDATE, DELETE or CONNECT")

    @property
    def is_converted(self) -> bool:
        """The objects are in another version than the one that was asked for."""
        return self.request_resource is not None and self.request_resource != self.resource

    def attributes(self) -> tuple[Attributes, ...]:
        """The requests that the authorizer was, or may have been, asked about."""
        verbs = self.verbs
        asked = self.request_resource or self.resource
        subresource = self.request_sub_resource if self.request_resource is not None else self.sub_resource
        in_collection = verbs == ("create",) and not subresource
        is_new_namespace = in_collection and not asked.group and asked.resource == "namespaces"
        who = self.user_info
        return tuple(
            Attributes(
                user=who.username,
                groups=tuple(who.groups or ()),
                uid=who.uid,
                extra=extra_of(who.extra or {}),
                verb=verb,
                group=asked.group,
                version=asked.version,
                resource=asked.resource,
                subresource=subresource,
                namespace="" if is_new_namespace else self.namespace,
                name="" if in_collection else self.name,
            )
            for verb in verbs
        )

    def data(self, requester: Attributes) -> ConditionData:
        """What conditions are evaluated on. A review carries no namespace object: it is null."""
        return ConditionData(
            operation=self.operation,
            object=self.object,
            old_object=self.old_object,
            options=None if self.operation == "CONNECT" else self.options,
            requester=requester,
        )


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


_decoder = msgspec.json.Decoder(_Review)


def read_admission(body: bytes) -> AdmissionRequest:
    """The request of a review; WireError says what is wrong with it."""
    try:
        review = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as why:
        raise WireError(f"the body is no `{KIND}`: {why}") from None
    if review.kind != KIND or review.api_version != API_VERSION:
        raise WireError(f"expected an `{KIND}` of `{API_VERSION}`, found `{review.kind}` of `{review.api_version}`")
    if review.request is None or not review.request.uid:
        raise WireError("`request` with a `uid` is required")
    return review.request


def admission_request(value: Any) -> AdmissionRequest:
    """An admission request that came inside another review; WireError says what is wrong with it."""
    try:
        return msgspec.convert(value, AdmissionRequest)
    except msgspec.ValidationError as why:
        raise WireError(f"`admissionRequest`: {why}") from None


def admission_reply(uid: str, allowed: bool, message: str = "", code: int = 403) -> dict[str, Any]:
    """The review that answers."""
    response: dict[str, Any] = {"uid": uid, "allowed": allowed}
    if not allowed:
        reason = {"reason": "Forbidden"} if code == 403 else {}
        response["status"] = {"status": "Failure", "code": code, "message": message, **reason}
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}
