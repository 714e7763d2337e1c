"""The Webhook authorizer: asks another server, caches its answers, and has it evaluate its own conditions.

KEP-5681, "Supporting webhooks through the AuthorizationConditionsReview API". A `ReviewClient` sends the reviews; this
module gives the answers their meaning. The failure policy of an unreachable webhook decides. CEL conditions are
evaluated in this process; if that fails, and for all other types, the webhook is called back with all the sets that it
returned. A cache entry holds the whole answer, so the policies that decided a request first also decide it from the
cache.

The settings are the `webhook` part of an AuthorizationConfiguration. Conditions are supported only where an endpoint
for them is configured: `conditionsEndpointKubeConfigContext` in the KEP's words, `conditionsReview` in the words of the
API server's commit series.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

import msgspec

from tierwall.api.algebra.chain import ChainDecision, ChainEntry, Opinions, OuterAuthorizer, chain_entries
from tierwall.api.algebra.condition import CEL_TYPE, Condition, ConditionalDecision, ConditionError, ConditionSet
from tierwall.api.algebra.decision import ALLOW, NO_OPINION, Decision, fail_closed, no_opinion, settled_by_step
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.api.authorizers.expression import condition_is_true, evaluate_bool, parse, program_of
from tierwall.api.wire.answer import conditions_request, read_conditions_reply, read_status
from tierwall.api.wire.review import KIND, WireError, WireShape, resource_attributes, spec_of
from tierwall.cel.errors import ParseError
from tierwall.core.answer import Reason, Step
from tierwall.core.source import Path
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.values.time import parse_seconds

MAX_MATCH_CONDITIONS = 64


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a webhook: how to ask it, and how long to cache its answers."""

    version: str = "v1"
    failure_policy: Verdict = Verdict.DENY
    timeout: float = 30.0
    authorized_ttl: float = 300.0
    unauthorized_ttl: float = 30.0
    match_conditions: tuple[str, ...] = ()
    # The shape of its conditions; PLAIN where it is not asked for any.
    shape: WireShape = WireShape.PLAIN


def read_settings(value: Mapping[str, Any]) -> tuple[WebhookSettings, list[tuple[Path, str]]]:
    """Read the settings, and collect every problem with its path."""
    problems: list[tuple[Path, str]] = []

    def problem(message: str, *path: str | int) -> None:
        problems.append((path, message))

    def seconds(key: str, default: float) -> float:
        if key not in value:
            return default
        duration = parse_seconds(value[key])
        if duration is None:
            problem(f"expected a duration such as `30s` as `{key}`, found `{value[key]}`", key)
        return default if duration is None else duration

    version = value.get("subjectAccessReviewVersion", "v1")
    if version not in ("v1", "v1beta1"):
        key = "subjectAccessReviewVersion"
        problem(f"expected v1 or v1beta1 as `{key}`, found `{version}`", key)
    policy = value.get("failurePolicy", "Deny")
    if policy not in ("Deny", "NoOpinion"):
        problem(f"expected Deny or NoOpinion as `failurePolicy`, found `{policy}`", "failurePolicy")
    timeout = seconds("timeout", 30.0)
    if not 0 < timeout <= 30:
        problem(f"expected more than 0 and at most 30s as `timeout`, found `{value['timeout']}`", "timeout")
    conditions = value.get("matchConditions") or []
    if not isinstance(conditions, list):
        problem(f"expected a list as `matchConditions`, found `{conditions}`", "matchConditions")
        conditions = []
    expressions = [condition.get("expression") if isinstance(condition, Mapping) else None for condition in conditions]
    if len(expressions) > MAX_MATCH_CONDITIONS:
        message = f"expected at most {MAX_MATCH_CONDITIONS} match conditions, found {len(expressions)}"
        problem(message, "matchConditions")
    for number, expression in enumerate(expressions[:MAX_MATCH_CONDITIONS]):
        if not isinstance(expression, str) or not expression:
            given = f"`{expression}`" if expression else "nothing"
            problem(f"expected a CEL expression as `expression`, found {given}", "matchConditions", number)
            continue
        try:
            parse(expression)
        except ParseError as error:
            message = f"expected a CEL expression as `expression`, found `{expression}`: {error}"
            problem(message, "matchConditions", number, "expression")
    shape = WireShape.CONDITIONS_CHAIN if value.get("conditionsEndpointKubeConfigContext") else WireShape.PLAIN
    if isinstance(value.get("conditionsReview"), Mapping):
        shape = WireShape.SERIES
    settings = WebhookSettings(
        version=version if isinstance(version, str) else "v1",
        failure_policy=Verdict.NO_OPINION if policy == "NoOpinion" else Verdict.DENY,
        timeout=timeout,
        authorized_ttl=seconds("authorizedTTL", 300.0) if value.get("cacheAuthorizedRequests", True) else 0.0,
        unauthorized_ttl=seconds("unauthorizedTTL", 30.0) if value.get("cacheUnauthorizedRequests", True) else 0.0,
        match_conditions=tuple(expression for expression in expressions if isinstance(expression, str)),
        shape=shape,
    )
    return settings, problems


_REASONS = {
    Verdict.ALLOW: Reason.AUTHORIZER_ALLOWED,
    Verdict.DENY: Reason.AUTHORIZER_DENIED,
    Verdict.NO_OPINION: Reason.AUTHORIZER_SILENT,
}
CACHE_ENTRIES = 8192
# Longer requests are not cached, because a few users could fill the memory with them.
MAX_CACHED_BYTES = 10_000


class WebhookError(Exception):
    """The webhook could not be asked, or its answer cannot be used."""


class ReviewClient(Protocol):
    """Sends a review and returns the review that answers it; WebhookError if none does."""

    def access(self, review: dict[str, Any]) -> Mapping[str, Any]:
        """Send a SubjectAccessReview."""

    def conditions(self, review: dict[str, Any]) -> Mapping[str, Any]:
        """Send an AuthorizationConditionsReview."""


class WebhookDecision(ChainDecision, frozen=True, kw_only=True):
    """The conditional decision of a webhook: the sets of its own chain, evaluated as a whole."""

    webhook: WebhookAuthorizer

    @property
    def entries(self) -> tuple[ChainEntry, ...]:
        """The opinions of the webhook's own chain, up to the first Allow or Deny."""
        return chain_entries(self.opinions)

    def evaluate(self, data: ConditionData) -> ChainDecision:
        """Evaluate in this process if every condition is CEL, else by calling the webhook."""
        result = self.webhook.evaluate_decision(self, data)
        return ChainDecision(
            verdict=result.verdict,
            reason=result.reason,
            error=result.error,
            steps=(*self.steps, *result.steps),
            settled_by=result.settled_by,
            asked=self.asked,
            decided_by=self.webhook.name,
        )


class WebhookAuthorizer(OuterAuthorizer):
    """One webhook of the chain. Its answers are evaluated as a whole (`WebhookDecision`), never set by set.

    `consultations` counts how often it was consulted, from its cache or not.

    `clock` counts seconds. Threads may share a webhook if they may share its client.
    """

    def __init__(self, name: str, client: ReviewClient, settings: WebhookSettings, clock: Callable[[], float]) -> None:
        self.name = name
        self._client = client
        self._settings = settings
        self._clock = clock
        self._match_programs = [program_of(parse(text)) for text in settings.match_conditions]
        self._cache: OrderedDict[bytes, tuple[float, Decision]] = OrderedDict()
        self._cache_lock = Lock()
        self.condition_types = frozenset((CEL_TYPE,))
        self.consultations = 0

    def authorize(self, attributes: Attributes) -> Decision:
        """Decide the first phase."""
        settings = self._settings
        self.consultations += 1
        skipped = self._skip(attributes)
        if skipped is not None:
            return skipped
        version = f"authorization.k8s.io/{settings.version}"
        spec = spec_of(attributes, version, settings.shape)
        key = msgspec.json.encode(spec)
        if (known := self._cached(key)) is not None:
            return known
        try:
            reply = self._client.access({"apiVersion": version, "kind": KIND, "spec": spec})
            decision = self._read(reply)
        except (WebhookError, WireError) as error:
            return self._apply_failure_policy(str(error))
        self._remember(key, decision)
        return decision

    def evaluate_decision(self, decision: WebhookDecision, data: ConditionData) -> Decision:
        """Evaluate what this webhook returned; fail closed if the conditions cannot have the result."""
        sets = [opinion.conditions for _, opinion in decision.entries if isinstance(opinion, ConditionalDecision)]
        if all(condition.type == CEL_TYPE for conditions in sets for condition in conditions.conditions):
            result = ChainDecision.evaluate(decision, data)
            if not result.error:
                return result
        try:
            answer = self._call_back(decision, data)
        except (WebhookError, WireError) as failure:
            return fail_closed(self.name, decision.failure, f"webhook `{self.name}`: {failure}")
        if answer.verdict not in decision.possible:
            error = f"webhook `{self.name}` evaluated its conditions to `{answer.verdict}`, which they cannot give"
            return fail_closed(self.name, decision.failure, error)
        return answer

    def _call_back(self, decision: WebhookDecision, data: ConditionData) -> Decision:
        if self._settings.shape is WireShape.PLAIN:
            raise WebhookError("no endpoint for conditions is configured")
        shape = self._settings.shape
        reply = self._client.conditions(conditions_request(shape, decision.entries, data))
        return self._with_step(read_conditions_reply(shape, reply))

    def _read(self, reply: Mapping[str, Any]) -> Decision:
        status = reply.get("status")
        if not isinstance(status, Mapping):
            raise WireError("the reply has no status")
        answer = read_status(self._settings.shape, status)
        if isinstance(answer, Decision):
            return self._with_step(answer)
        if any(decision.is_conditional for _, decision in answer):
            return self.recall(answer)
        # Sets without conditions, or whose conditions fell to their failure mode, leave nothing to evaluate.
        opinions = (decision for _, decision in answer if decision.verdict is not NO_OPINION)
        return self._with_step(next(opinions, Decision(NO_OPINION)))

    def recall(self, entries: Sequence[tuple[str, Decision]]) -> WebhookDecision:
        """Rebuild the conditional decision of this webhook from the entries that it returned."""
        opinions: Opinions = tuple((_LocalEvaluator(name), decision) for name, decision in entries)
        step = Step(tier=self.name, verdict=StepVerdict.CONDITIONAL, reason=Reason.NEEDS_OBJECT)
        return WebhookDecision(
            verdict=Verdict.CONDITIONAL, opinions=opinions, steps=(step,), asked=(self.name,), webhook=self
        )

    def _with_step(self, answer: Decision) -> Decision:
        """Add the step of this webhook to a concrete decision."""
        step = self._step(answer.verdict, _REASONS[answer.verdict], answer.error or answer.reason)
        return msgspec.structs.replace(answer, steps=(step,), settled_by=step)

    def _skip(self, attributes: Attributes) -> Decision | None:
        """Return the decision if no call is necessary, or None if the webhook must be asked."""
        variables = {"request": match_request(attributes)}
        errors: list[str] = []
        for run in self._match_programs:
            try:
                if not evaluate_bool(run, variables):
                    reason = "a match condition is false"
                    return no_opinion(self._step(Verdict.NO_OPINION, Reason.NOT_SELECTED, reason), reason)
            except ConditionError as error:
                errors.append(str(error))
        return self._apply_failure_policy(f"a match condition failed: {errors[0]}") if errors else None

    def _apply_failure_policy(self, why: str) -> Decision:
        verdict, error = self._settings.failure_policy, f"webhook `{self.name}`: {why}"
        return settled_by_step(self._step(verdict, Reason.AUTHORIZER_UNREACHABLE, error), "failure policy", error)

    def _step(self, verdict: Verdict, reason: Reason, note: str) -> Step:
        return Step(tier=self.name, verdict=StepVerdict(verdict), reason=reason, note=note or None)

    def _cached(self, key: bytes) -> Decision | None:
        with self._cache_lock:
            expires, decision = self._cache.get(key, (0.0, None))
            if decision is None:
                return None
            if expires <= self._clock():
                del self._cache[key]
                return None
            self._cache.move_to_end(key)
            return decision

    def _remember(self, key: bytes, decision: Decision) -> None:
        # A conditional decision counts as not allowed.
        is_allowed = decision.verdict is ALLOW
        lifetime = self._settings.authorized_ttl if is_allowed else self._settings.unauthorized_ttl
        if lifetime <= 0 or len(key) >= MAX_CACHED_BYTES:
            return
        with self._cache_lock:
            self._cache[key] = (self._clock() + lifetime, decision)
            while len(self._cache) > CACHE_ENTRIES:
                self._cache.popitem(last=False)


class _GivenAnswer:
    """A client that knows what the webhook answers."""

    def __init__(self, verdict: Verdict) -> None:
        self._status = {"allowed": verdict is Verdict.ALLOW, "denied": verdict is Verdict.DENY}

    def access(self, review: dict[str, Any]) -> Mapping[str, Any]:
        return {**review, "status": self._status}

    def conditions(self, review: dict[str, Any]) -> Mapping[str, Any]:
        raise WebhookError("an answer that is given has no conditions")


def answering_webhook(name: str, webhook: Mapping[str, Any], verdict: Verdict) -> WebhookAuthorizer:
    """Return a webhook that gives this answer wherever its match conditions let it be asked."""
    settings, _ = read_settings(webhook)
    return WebhookAuthorizer(name, _GivenAnswer(verdict), settings, lambda: 0.0)


class _LocalEvaluator:
    """Evaluates the CEL conditions of a webhook in this process.

    It reports every failure, even one that would not matter: the webhook may know a function that is unknown here.
    """

    condition_types = frozenset((CEL_TYPE,))

    def __init__(self, name: str) -> None:
        self.name = name

    def authorize(self, attributes: Attributes) -> Decision:
        return Decision(Verdict.NO_OPINION)

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        variables = data.variables()
        failures: list[str] = []

        def test(condition: Condition) -> bool:
            try:
                return condition_is_true(condition, variables)
            except ConditionError as error:
                failures.append(str(error))
                raise

        result = conditions.evaluate(test)
        return msgspec.structs.replace(result, error=failures[0]) if failures and not result.error else result


def match_request(attributes: Attributes) -> dict[str, Any]:
    """Return the variable `request` of match conditions: the review's spec, with empty strings present."""
    out: dict[str, Any] = {
        "user": attributes.user,
        "groups": list(attributes.groups),
        "uid": attributes.uid,
        "extra": {key: list(values) for key, values in attributes.extra},
    }
    if not attributes.is_resource_request:
        return out | {"nonResourceAttributes": {"path": attributes.path, "verb": attributes.verb}}
    return out | {"resourceAttributes": resource_attributes(attributes)}
