"""Conditional authorization on API servers without it: an authorizer and an admission webhook work together.

The first phase answers the authorizer. It allows a request that conditions can allow, provided that admission will see
the object. It leaves a request that conditions can only deny to the authorizers that follow. Admission then judges both
phases anew on the object, from one set of policies:
    Allow, or no opinion                        let pass: it was decided in the first phase
    Deny                                        refused
    conditional, comes to Allow                 let pass
    conditional, comes to Deny                  refused
    conditional, no opinion, could have allowed refused: the first phase had let it through (if admission sees it)
    conditional, no opinion, could only deny    let pass: another authorizer allowed it

If the current policies have no opinion, a superseded set may have let the request through, and the API server may have
cached that answer. Then the conditions of the superseded set must come to Allow. In the scope of a set that was
forgotten early (`superseded`), nobody knows its conditions, and the request is refused.

An AdmissionReview (`admission.k8s.io/v1`) does not name the verb. An UPDATE may have been an update or a patch (the API
server turns PatchOptions into UpdateOptions), and a CONNECT a get or a create. Each possible verb is judged. A CREATE
that was an update or a patch shows it only in its options, or by the question that preceded it (`upsert_index`); it was
authorized as a create as well, and is judged as one.
When a create in a collection was authorized it had no name, and a new Namespace no namespace. Admission knows both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from tierwall.api.algebra.chain import ChainDecision, CompleteDecision, ask_the_rest
from tierwall.api.algebra.condition_words import one_line
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import (
    Attributes,
    ConditionData,
    ConditionsMode,
    hashable_extra,
)
from tierwall.api.decide import enforce_conditions
from tierwall.api.sentence import words_of
from tierwall.api.wire.review import WireError
from tierwall.serve.authorizer.admission_state import ASSUMED, AdmissionState
from tierwall.serve.authorizer.namespace_index import NO_NAMESPACES, NamespaceIndex
from tierwall.serve.authorizer.policies import PolicySet
from tierwall.serve.authorizer.superseded import ChangeScope

# The API server lets this group through before it asks any authorizer, so our conditions had no part in it.
PRIVILEGED = "system:masters"


class AdmissionJudgement(msgspec.Struct, frozen=True):
    """The answer to admission, and the decision it is based on."""

    allowed: bool
    message: str
    decision: ChainDecision
    attributes: Attributes
    revision: str
    # The decision before the object was known: its conditions.
    first: ChainDecision | None = None


def first_answer(
    policies: PolicySet, attributes: Attributes, grants: bool = True, admission: AdmissionState = ASSUMED
) -> tuple[Decision, ChainDecision]:
    """Return the concrete answer to the authorizer, and the chain's answer behind it.

    Without `grants` no condition lets a request through (while replicas may still have other policies). While admission
    is not proved live, conditions fold as for a caller that does not know them.
    """
    asked = replace(attributes, conditions_mode=ConditionsMode.HUMAN_READABLE)
    decision = policies.chain.authorize(asked)
    if not decision.is_conditional:
        return decision, decision
    if not admission.enforces(attributes):
        return _unproved_answer(policies, attributes, decision, admission), decision
    if not policies.admitted.covers(attributes):
        return failed_answer(ask_the_rest(decision), "admission does not see this request"), decision
    if attributes.label_selector is not None or attributes.field_selector is not None:
        # Admission does not see selectors. It must come to the same result without them.
        decision = complete = ask_the_rest(decision)
        later = policies.chain.authorize(replace(asked, label_selector=None, field_selector=None))
        if not later.is_conditional or ask_the_rest(later).entries != complete.entries:
            return failed_answer(complete, "admission does not see the selectors"), decision
    if not decision.can_become_allowed:
        return Decision(NO_OPINION, _reason(decision, "admission decides"), decision.error), decision
    if not grants:
        return failed_answer(ask_the_rest(decision), "policies are still being rolled out"), decision
    return Decision(ALLOW, _reason(decision, "admission decides"), decision.error), decision


def _reason(decision: ChainDecision, who_decides: str) -> str:
    """Tell the conditions of an answer, and what becomes of them."""
    return f"conditional: {words_of(decision)}; {who_decides}"


def _unproved_answer(
    policies: PolicySet, attributes: Attributes, decision: ChainDecision, admission: AdmissionState
) -> Decision:
    """Return the answer while nobody is known to enforce conditions on the request of this user."""
    if admission.is_probe(attributes):
        return Decision(NO_OPINION, "left to other authorizers: the proof that admission is live depends on it")
    folded = policies.chain.authorize(replace(attributes, conditions_mode=ConditionsMode.NONE))
    if folded.verdict is ALLOW:
        return folded
    # The reason is for operators: users see this answer.
    why = "admission leaves out a group of the user" if admission.is_live else "admission is not live"
    return Decision(folded.verdict, _reason(decision, why), folded.error)


def failed_answer(decision: CompleteDecision, reason: str) -> Decision:
    """Return the answer for conditions that cannot be enforced."""
    return Decision(decision.failure, _reason(decision, reason), decision.error)


def judge(
    policies: PolicySet,
    retained: Sequence[PolicySet],
    request: AdmissionRequest,
    forgotten: Sequence[ChangeScope] = (),
) -> AdmissionJudgement:
    """Judge an admission request: every verb it may have been, up to the first refusal."""
    judgement: AdmissionJudgement | None = None
    for attributes in request.attributes():
        judgement = _judge_as(policies, retained, request, attributes, forgotten)
        if not judgement.allowed:
            break
    assert judgement is not None
    return judgement


def judge_head(
    policies: PolicySet,
    retained: Sequence[PolicySet],
    request: AdmissionRequest,
    forgotten: Sequence[ChangeScope] = (),
) -> AdmissionJudgement | None:
    """Judge an admission request without its objects and options; None if a condition is about it.

    Without options, a create may have been an update or a patch. That makes a difference only to conditions: the first
    phase has enforced everything else.
    """
    attributes = request.attributes()
    if PRIVILEGED not in attributes[0].groups:
        possible = attributes
        if request.operation == "CREATE":
            verbs = ("create", "update", "patch")
            possible += tuple(replace(attributes[0], verb=verb, name=request.name) for verb in verbs)
        for each in possible:
            first = policies.chain.authorize(each)
            if first.is_conditional:
                return None
            if first.verdict is NO_OPINION and any(older.chain.authorize(each).is_conditional for older in retained):
                return None
    return judge(policies, retained, request, forgotten)


def _judge_as(
    policies: PolicySet,
    retained: Sequence[PolicySet],
    request: AdmissionRequest,
    attributes: Attributes,
    forgotten: Sequence[ChangeScope],
) -> AdmissionJudgement:
    if PRIVILEGED in attributes.groups:
        passed = ChainDecision(verdict=NO_OPINION, reason=f"group `{PRIVILEGED}` is not subject to authorizers")
        return AdmissionJudgement(True, "", passed, attributes, policies.revision)
    first = policies.chain.authorize(attributes)
    final = _evaluate(first, request, attributes, policies.namespaces)
    if final.verdict is DENY:
        return _refusal(final, attributes, policies, first)
    if final.verdict is NO_OPINION:
        if first.is_conditional and first.can_become_allowed and policies.admitted.covers(attributes):
            return _refusal(final, attributes, policies, first)
        for older in retained:
            earlier = older.chain.authorize(attributes)
            if earlier.is_conditional and earlier.can_become_allowed and older.admitted.covers(attributes):
                then = _evaluate(earlier, request, attributes, policies.namespaces)
                if then.verdict is not ALLOW:
                    return _refusal(then, attributes, older, earlier)
        if any(scope.covers(attributes) for scope in forgotten):
            error = "policies changed so often that the conditions of earlier grants are no longer known"
            unknown = ChainDecision(verdict=DENY, reason="failed closed", error=error, asked=final.asked)
            return _refusal(unknown, attributes, policies, first)
    return AdmissionJudgement(True, "", final, attributes, policies.revision, first)


def _evaluate(
    first: ChainDecision, request: AdmissionRequest, attributes: Attributes, namespaces: NamespaceIndex
) -> ChainDecision:
    if not first.is_conditional:
        return first
    if request.is_converted:
        error = f"the object is in `{request.resource.version}`, the request in `{attributes.version}`"
        return ChainDecision(verdict=DENY, reason="failed closed", error=error, asked=first.asked)
    final = enforce_conditions(first, request.data(attributes, namespaces))
    if isinstance(final, ChainDecision):
        return final
    return ChainDecision(verdict=final.verdict, reason=final.reason, error=final.error, asked=first.asked)


def _refusal(
    final: ChainDecision, attributes: Attributes, policies: PolicySet, first: ChainDecision
) -> AdmissionJudgement:
    message = f"{attributes.sentence('may not')}: {final.reason}" + (f" ({final.error})" if final.error else "")
    return AdmissionJudgement(False, message, final, attributes, policies.revision, first)


API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
_OPTIONS = {"UpdateOptions": "update", "PatchOptions": "patch"}


class GroupVersionResource(msgspec.Struct, frozen=True):
    """A GroupVersionResource."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(msgspec.Struct, frozen=True):
    """The user who makes the request."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """`request` of a review."""

    uid: str
    operation: str
    resource: GroupVersionResource
    user_info: UserInfo = UserInfo()
    request_resource: GroupVersionResource | None = None
    sub_resource: str = ""
    request_sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    object: Any = None
    old_object: Any = None
    options: Any = None
    # Whether a create may have been an update or a patch; no API server sends it.
    is_upsert: bool = msgspec.field(default=False, name="tierwall.io/upsert")

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs that this request may have been authorized as."""
        kind = self.options.get("kind") if isinstance(self.options, Mapping) else None
        match self.operation:
            case "CREATE" if self.is_upsert:
                return ("create", "update", "patch")
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
                raise WireError(f"expected CREATE, UPDATE, DELETE or CONNECT as `operation`, found `{other_operation}`")

    @property
    def is_converted(self) -> bool:
        """Whether the objects are in another version than the request."""
        return self.request_resource is not None and self.request_resource != self.resource

    def attributes(self) -> tuple[Attributes, ...]:
        """Return the requests that the authorizer was, or may have been, asked about."""
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
                extra=hashable_extra(who.extra or {}),
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

    def data(self, requester: Attributes, namespaces: NamespaceIndex = NO_NAMESPACES) -> ConditionData:
        """Return the data for conditions. A review does not carry the namespace, so it comes from the followed ones."""
        return ConditionData(
            operation=self.operation,
            object=self.object,
            old_object=self.old_object,
            options=None if self.operation == "CONNECT" else self.options,
            namespace_object=namespaces.object_of(requester),
            requester=requester,
        )


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


class NestingError(WireError):
    """A review is nested more deeply than can be read."""


_decode_review = msgspec.json.Decoder(_Review).decode
Decoded = TypeVar("Decoded")


def decoded(decode: Callable[[bytes], Decoded], body: bytes, what: str) -> Decoded:
    """Decode a body; WireError if it is not `what`."""
    try:
        return decode(body)
    except RecursionError:
        raise NestingError("the body is nested too deeply to be read") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise WireError(f"the body is not {what}: {error}") from None


def read_admission(body: bytes) -> AdmissionRequest:
    """Return the request of a review; WireError says what is wrong with it."""
    review = decoded(_decode_review, body, f"an `{KIND}`")
    if review.kind != KIND or review.api_version != API_VERSION:
        raise WireError(f"expected an `{KIND}` of `{API_VERSION}`, found `{review.kind}` of `{review.api_version}`")
    if review.request is None or not review.request.uid:
        raise WireError("`request` with a `uid` is required")
    return review.request


def admission_request(value: Mapping[str, Any]) -> AdmissionRequest:
    """Return an admission request from inside another review; WireError says what is wrong with it.

    Its operation and its resource may be missing.
    """
    try:
        return msgspec.convert({"resource": {}, **value, "operation": value.get("operation") or ""}, AdmissionRequest)
    except msgspec.ValidationError as error:
        raise WireError(f"`admissionRequest`: {error}") from None


def admission_reply(
    uid: str,
    allowed: bool,
    message: str = "",
    code: int = 403,
    annotations: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the review that answers; `annotations` go to the audit log of the API server, `warnings` to the user."""
    response: dict[str, Any] = {"uid": uid, "allowed": allowed}
    if warnings:
        response["warnings"] = list(warnings)
    if annotations:
        response["auditAnnotations"] = annotations
    if not allowed:
        reason = {"reason": "Forbidden"} if code == 403 else {}
        response["status"] = {"status": "Failure", "code": code, "message": one_line(message), **reason}
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}
