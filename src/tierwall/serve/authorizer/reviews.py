"""Answers to reviews: from bytes to a status, bytes and a record. Pure, apart from the policies in force.

A malformed review gets an answer that fails closed and says why: `denied`, or `allowed: false` from admission, with an
HTTP status that makes the API server apply its failure policy.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from tierwall.api.algebra.chain import ChainDecision, ask_the_rest
from tierwall.api.algebra.decision import DENY, Decision
from tierwall.api.algebra.request import Attributes
from tierwall.api.authorizers.impersonation import narrowed
from tierwall.api.decide import judge_collection
from tierwall.api.wire import condition_sets
from tierwall.api.wire.answer import ConditionsReview, ReceivedConditionsReview
from tierwall.api.wire.answer import reply as access_reply
from tierwall.api.wire.review import KIND, V1, DecodedReview, WireError, WireShape, concrete_status, read_access_review
from tierwall.api.wire.seal import SealError
from tierwall.serve.authorizer import bridge
from tierwall.serve.authorizer.admission_state import ASSUMED, AdmissionState
from tierwall.serve.authorizer.canary import CanarySealer
from tierwall.serve.authorizer.issuer import Issuer
from tierwall.serve.authorizer.policies import PolicyFollower, PolicySet
from tierwall.serve.authorizer.record import (
    DecisionRecord,
    admission_record,
    audit_annotations,
    brief_record,
    full_record,
)
from tierwall.serve.authorizer.review_facts import facts_of_data, facts_of_request
from tierwall.serve.authorizer.review_head import review_head
from tierwall.serve.authorizer.upsert_index import UpsertIndex, has_other_conditions, is_upsert

AUTHORIZE, CONDITIONS, ADMIT = "authorize", "conditions", "admit"
# Our own object, by which we prove that admission asks us. It is counted, and not logged.
CANARY = "canary"
# The number of encoded answers to keep.
MAX_ENCODED = 1024
# Longer bodies are refused unread.
MAX_BYTES = {AUTHORIZE: 1 << 20, CONDITIONS: 8 << 20, ADMIT: 8 << 20}


class ReviewReply(NamedTuple):
    """The reply to a review, and the record of its decision."""

    status: int
    body: bytes
    record: DecisionRecord
    # Until when it answers others who ask the same; seconds since 1970.
    fresh_until: float = inf


class Reviews:
    """Answers reviews from the policies in force.

    `bridged`: callers without conditional authorization are API servers whose admission asks here, too. `shape`: how
    conditions are written for callers that ask for them by `conditionalAuthorization`. `settle`: policies grant on
    conditions only after so many seconds in force, so that every replica's admission has them by then. `logged`:
    records of access reviews say what was asked. `admission`: whether admission is proved live, asked for each review.
    """

    def __init__(
        self,
        follower: PolicyFollower,
        issuer: Issuer,
        *,
        bridged: bool = False,
        shape: WireShape = WireShape.CONDITIONS_CHAIN,
        settle: float = 0.0,
        logged: bool = True,
        admission: Callable[[], AdmissionState] = lambda: ASSUMED,
    ) -> None:
        self._follower = follower
        self._issuer = issuer
        self.bridged = bridged
        self._shape = shape
        self._settle = settle
        self._logged = logged
        self.admission = admission
        self.canaries = CanarySealer(lambda: issuer.keys)
        self._upserts = UpsertIndex(follower.grace)
        self._cache: AnswerCache[ReviewReply] = AnswerCache()
        self._encoded: dict[tuple[str, str, str, str], bytes] = {}
        self._encode = msgspec.json.Encoder().encode
        self._decode_conditions = msgspec.json.Decoder(ReceivedConditionsReview).decode
        self._decode_review = msgspec.json.Decoder(DecodedReview).decode
        self._phases: dict[str, Callable[[bytes], ReviewReply]] = {
            AUTHORIZE: self._authorize,
            CONDITIONS: self._conditions,
            ADMIT: self._admit,
        }

    def answer(self, phase: str, body: bytes) -> ReviewReply:
        """Answer a review that arrived at the endpoint of a phase; never raises."""
        try:
            return self._phases[phase](body)
        except WireError as error:
            return self.refusal(phase, 400, str(error))
        except Exception as error:
            return self.refusal(phase, 500, f"internal error: {type(error).__name__}: {error}")

    def refusal(self, phase: str, status: int, reason: str, uid: str = "") -> ReviewReply:
        """Return an answer that fails closed, to a body that is not a review."""
        closed = Decision(DENY, "failed closed", reason)
        if phase == ADMIT:
            document = bridge.admission_reply(uid, False, reason, status)
        elif phase == CONDITIONS:
            document = condition_sets.write_response(closed)
        else:
            document = {"apiVersion": V1, "kind": KIND, "status": concrete_status(closed)}
        record = DecisionRecord(phase, "Deny", error=reason, status=status, revision=self._follower.current.revision)
        return ReviewReply(status, self._encode(document), record)

    def answer_head(self, head: bytes) -> ReviewReply:
        """Answer a review of admission that is too long, from its first bytes; never raises."""
        try:
            return self._admit_head(head, 413, too_long(ADMIT))
        except WireError as error:
            return self.refusal(ADMIT, 400, str(error))
        except Exception as error:
            return self.refusal(ADMIT, 500, f"internal error: {type(error).__name__}: {error}")

    def _authorize(self, body: bytes) -> ReviewReply:
        grants = not self._settle or self._follower.age >= self._settle
        admission = self.admission()
        policies = self._follower.current
        state = (policies.revision, self._issuer.generation, grants, admission)
        reply = self._cache.get(state, body)
        if reply is None or reply.fresh_until <= self._issuer.clock():
            consultations = policies.consultations if policies.webhooks else 0
            reply = self._decide_access(body, grants, admission)
            # Another server's answer holds as long as its own settings say. Its failure is not kept.
            is_own = not policies.webhooks or policies.consultations == consultations
            if is_own and reply.status == 200 and reply.record.phase == AUTHORIZE:
                self._cache.put(state, body, reply)
        return reply

    def _decide_access(self, body: bytes, grants: bool, admission: AdmissionState) -> ReviewReply:
        received = bridge.decoded(self._decode_review, body, f"a `{KIND}`")
        if received.kind == condition_sets.KIND:
            # The caller has one address for both kinds of review.
            return self._conditions(body)
        if len(body) > MAX_BYTES[AUTHORIZE]:
            return self.refusal(AUTHORIZE, 413, too_long(AUTHORIZE))
        review = read_access_review(received)
        policies = self._follower.current
        attributes = review.attributes
        if attributes.is_about_a_collection:
            judged = judge_collection(policies.chain, attributes, policies.selectable)
            if judged is not None:
                record = self._record(judged.first, attributes, policies.revision)
                return ReviewReply(200, self._encode_concrete(review.api_version, judged.first), record)
        if self.bridged and review.shape is WireShape.PLAIN and not _knows_conditions(received):
            answer, decision = bridge.first_answer(policies, attributes, grants, admission)
            fresh_until = inf
            if is_upsert(attributes) and answer.verdict is not DENY and policies.admitted.covers(attributes):
                # Admission must hear of each of them, so no answer is kept.
                answer, fresh_until = self._upsert_answer(policies, attributes, answer), 0.0
            record = self._record(decision, attributes, policies.revision)
            if answer is not decision:
                record.answer, record.reason = answer.verdict.value, answer.reason
            return ReviewReply(200, self._encode_concrete(review.api_version, answer), record, fresh_until)
        decision = policies.chain.authorize(attributes)
        record = self._record(decision, attributes, policies.revision)
        if not decision.is_conditional:
            return ReviewReply(200, self._encode_concrete(review.api_version, decision), record)
        if review.shape is WireShape.CONDITIONS_CHAIN and self._shape is not WireShape.CONDITIONS_CHAIN:
            review = replace(review, shape=self._shape)
        complete = ask_the_rest(decision)
        if review.shape is WireShape.PLAIN:
            return ReviewReply(200, self._encode(access_reply(review, complete)), record)
        issued = self._issuer.issue(complete, attributes, review.shape, policies.revision)
        return ReviewReply(
            200, self._encode(access_reply(review, complete, issued.entries)), record, issued.fresh_until
        )

    def _upsert_answer(self, policies: PolicySet, attributes: Attributes, answer: Decision) -> Decision:
        """Return the answer to a create by update or patch: their conditions must be enforced, too."""
        if not has_other_conditions(policies, attributes):
            return answer
        has_replicas = bool(self._settle) or self.canaries.has_replicas
        if not has_replicas and self._upserts.remember(attributes):
            return answer
        return Decision(DENY, "update and patch have other conditions than create, and nobody would enforce both")

    def _record(self, decision: ChainDecision, attributes: Attributes, revision: str) -> DecisionRecord:
        if self._logged:
            return full_record(AUTHORIZE, decision, attributes, revision)
        return brief_record(AUTHORIZE, decision, revision)

    def _encode_concrete(self, api_version: str, decision: Decision) -> bytes:
        """Return a concrete answer as it is sent. There are few, so nearly all were encoded before."""
        key = api_version, decision.verdict, decision.reason, decision.error
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = self._encode({"apiVersion": api_version, "kind": KIND, "status": concrete_status(decision)})
            # Errors may hold what users make up, so they may be many and long.
            if not decision.error:
                if len(self._encoded) >= MAX_ENCODED:
                    self._encoded.clear()
                self._encoded[key] = encoded
        return encoded

    def _conditions(self, body: bytes) -> ReviewReply:
        try:
            received = bridge.decoded(self._decode_conditions, body, f"an `{condition_sets.KIND}`")
            review = ConditionsReview(received)
            policies, revision = self._follower.current, ""
            data, facts = review.data, facts_of_data(review.data)
            if review.shape is WireShape.SERIES:
                data, facts = facts_of_request(data, review.admission_request, policies.namespaces)
        except WireError as error:
            return self.refusal(CONDITIONS, 400, str(error))
        try:
            taken_back, revision = self._issuer.take_back(policies.chain, review, facts)
            if review.can_be_narrowed:
                left = narrowed(taken_back, data.requester or Attributes(), data.impersonated_request)
                if left.is_conditional:
                    record = full_record(CONDITIONS, left, data.requester, revision)
                    issued = self._issuer.reissue(left.entries, review.entries, review.shape)
                    return ReviewReply(200, self._encode(review.narrowed_reply(issued.entries)), record)
            decision = taken_back.evaluate(data)
        except SealError as error:
            decision = ChainDecision(verdict=DENY, reason="failed closed", error=str(error))
        except WireError as error:
            return self.refusal(CONDITIONS, 400, str(error))
        revision = revision or policies.revision
        if not self._logged:
            record = brief_record(CONDITIONS, decision, revision)
            return ReviewReply(200, self._encode(review.reply(decision)), record)
        record = full_record(CONDITIONS, decision, data.requester, revision)
        record.operation, record.uid = data.operation or "", review.uid
        return ReviewReply(200, self._encode(review.reply(decision)), record)

    def _admit(self, body: bytes) -> ReviewReply:
        try:
            return self._judge(bridge.read_admission(body), bridge.judge)
        except bridge.NestingError as error:
            # API servers take deeper objects than can be read here.
            return self._admit_head(body, 400, str(error))

    def _admit_head(self, start: bytes, status: int, why: str) -> ReviewReply:
        """Judge a review by its head; `why` says why it is not read as a whole."""
        head = review_head(start)
        request = None if head is None else bridge.read_admission(head)
        # Without a user, the objects do not come last, and the head is not all that is to know.
        if request is None or not request.user_info.username:
            return self.refusal(ADMIT, status, why)
        return self._judge(request, bridge.judge_head, status, why)

    def _judge(
        self,
        request: bridge.AdmissionRequest,
        judge: Callable[..., bridge.AdmissionJudgement | None],
        unread_status: int = 413,
        unread: str = "",
    ) -> ReviewReply:
        if not self.bridged:
            return self.refusal(ADMIT, 404, "the bridge is off: start with --bridge", request.uid)
        if (message := self.canaries.refusal(request)) is not None:
            record = DecisionRecord(CANARY, "Deny", reason=message, revision=self._follower.current.revision)
            return ReviewReply(200, self._encode(bridge.admission_reply(request.uid, False, message)), record)
        resource = request.request_resource or request.resource
        if request.operation == "CREATE" and self._upserts.knows(
            request.user_info.username, resource.group, resource.resource, request.namespace, request.name
        ):
            request = replace(request, is_upsert=True)
        try:
            superseded = self._follower.superseded
            judgement = judge(self._follower.current, superseded.retained(), request, superseded.forgotten())
        except WireError as error:
            return self.refusal(ADMIT, 400, str(error), request.uid)
        if judgement is None:
            reason = f"conditions are about this request, and {unread}"
            reply = self.refusal(ADMIT, unread_status, reason, request.uid)
            # Only an answer with status 200 tells the user why.
            return reply._replace(status=200)
        record = admission_record(ADMIT, judgement.decision, judgement.first, judgement.attributes, judgement.revision)
        record.answer = "Allow" if judgement.allowed else "Deny"
        record.operation, record.uid = request.operation, request.uid
        if request.name and not record.name:
            record.name = request.name
        annotations = audit_annotations(record)
        document = bridge.admission_reply(request.uid, judgement.allowed, judgement.message, annotations=annotations)
        return ReviewReply(200, self._encode(document), record)


def too_long(phase: str) -> str:
    """Return the message for a body over the limit."""
    return f"the body is longer than {MAX_BYTES[phase]:,} bytes"


def _knows_conditions(review: DecodedReview) -> bool:
    """Whether the caller knows conditions but does not want them here, so it will not enforce any either."""
    spec = review.spec
    return spec is not None and (spec.conditional_authorization is not None or spec.authorization_options is not None)


Answer = TypeVar("Answer")

MAX_ENTRIES = 4096
# A user can inflate a request. Long requests are not kept, or a few users could fill the memory.
MAX_REQUEST_BYTES = 2048


class _Generations(NamedTuple, Generic[Answer]):
    """The answers of one state, in two generations."""

    state: object
    young: dict[bytes, Answer]
    old: dict[bytes, Answer]


class AnswerCache(Generic[Answer]):
    """Answers by request, for one state at a time.

    An access review is a pure function of its bytes, the policies and the sealing key. The API server is told not to
    cache answers, so that a change of policies counts at once. Here they are kept for exactly as long as the policies
    and the key are in force. Two generations bound the memory: when the younger is full, it becomes the older, and
    answers that were not asked for again are forgotten. An answer that needed another server is not such a function.

    INVARIANT: a state and its answers are replaced together, so that no thread puts an answer of one state among those
    of another.
    """

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._limit = limit
        self._generations: _Generations[Answer] = _Generations(None, {}, {})

    def get(self, state: object, request: bytes) -> Answer | None:
        """Return the answer given in this state; a new state forgets all answers."""
        generations = self._generations
        if state != generations.state:
            self._generations = _Generations(state, {}, {})
            return None
        answer = generations.young.get(request)
        if answer is None and (answer := generations.old.get(request)) is not None:
            self.put(state, request, answer)
        return answer

    def put(self, state: object, request: bytes, answer: Answer) -> None:
        """Keep an answer given in this state."""
        generations = self._generations
        if state != generations.state or len(request) > MAX_REQUEST_BYTES:
            return
        if len(generations.young) >= self._limit:
            generations = self._generations = _Generations(state, {}, generations.young)
        generations.young[request] = answer
