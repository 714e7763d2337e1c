"""Conditions: pure functions from the data of the second phase to a bool, and how a set of them gives an answer.

KEP-5681, "Condition and ConditionSet data model". Ids and types are label keys, the text is at most 1,024 bytes. A
condition that breaks a rule is never dropped: the whole set falls to its failure mode and is never conditional.

"Computing a concrete decision from a ConditionSet":

    some Deny true         Deny
    some Deny fails        the failure mode, with the error
    some NoOpinion true    NoOpinion
    some NoOpinion fails   NoOpinion, with the error
    some Allow true        Allow (Allows that fail are ignored)
    else                   NoOpinion

The order of conditions does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import ClassVar, TypeAlias, assert_never

import msgspec

from tierwall.api.algebra.decision import ALLOW, CONCRETE, DENY, NO_OPINION, VERDICTS, Decision, fail_closed
from tierwall.core.answer import Reason, Step
from tierwall.core.reference import Reference
from tierwall.core.source import Origin, Path
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.values import names

MAX_CONDITIONS = 128
MAX_CONDITION_BYTES = 1024

# The CEL environment of ValidatingAdmissionPolicy plus `authorizer`; the API server evaluates it itself where it can.
CEL_TYPE = "k8s.io/authorization-cel"
# The same language, deflated and in base 85, for texts over the limit. Only the authorizer that wrote it can read it.
PACKED_CEL_TYPE = "tierwall.io/authorization-cel-packed"
CEL_TYPES = frozenset((CEL_TYPE, PACKED_CEL_TYPE))
NODE_TYPE = "k8s.io/node-authorizer"

# The path of a policy's expression.
EXPRESSION: Path = ("spec", "expression")

# The types under the reserved prefix that Kubernetes has defined so far; later CEL types carry a version.
_KUBERNETES_TYPE = re.compile(r"k8s\.io/(?:(?:authorization-)?cel(?:-v[0-9]+)?|node-authorizer)", re.ASCII)


class Effect(StrEnum):
    """The effect of a condition that is true; each effect beats those listed after it."""

    DENY = "Deny"
    NO_OPINION = "NoOpinion"
    ALLOW = "Allow"

    @property
    def if_true(self) -> StepVerdict:
        """The verdict of a condition of this effect that is true."""
        return _IF_TRUE[self]

    def if_failed(self, failure_mode: FailureMode) -> StepVerdict:
        """Return the verdict of a condition of this effect that fails; an Allow that fails is ignored."""
        match self:
            case Effect.DENY:
                return StepVerdict(failure_mode)
            case Effect.NO_OPINION:
                return StepVerdict.NO_OPINION
            case Effect.ALLOW:
                return StepVerdict.NO_MATCH
            case _:
                assert_never(self)


_IF_TRUE = {effect: StepVerdict(effect) for effect in Effect}


class FailureMode(StrEnum):
    """The answer of an authorizer if a Deny condition fails or its set breaks a rule."""

    DENY = "Deny"
    NO_OPINION = "NoOpinion"

    @property
    def verdict(self) -> Verdict:
        """The verdict of this mode."""
        return Verdict(self)


# INVARIANT: `gc=False` here and on policies is safe because none of these takes part in a reference cycle.
class ConditionSource(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The policy that a condition comes from. It is never sent and does not matter for evaluation."""

    policy: Reference
    origin: Origin | None = None


class Condition(msgspec.Struct, frozen=True, gc=False):
    """A condition as an authorizer returns it. `type` says how to read `text`, which is never executed."""

    id: str
    effect: Effect
    text: str
    type: str = CEL_TYPE
    description: str = ""
    source: ConditionSource | None = None

    def step(self, authorizer: str, verdict: StepVerdict, reason: Reason, note: str = "") -> Step:
        """Return the step of this condition; without a policy it is named by its id."""
        note_or_none = note or None
        if self.source is None:
            return Step(tier=authorizer, verdict=verdict, reason=reason, name=self.id, note=note_or_none)
        return Step(
            tier=authorizer,
            verdict=verdict,
            reason=reason,
            policy=self.source.policy,
            rule="spec",
            note=note_or_none,
            origin=self.source.origin,
            path=EXPRESSION,
        )

    def problems(self) -> Iterator[str]:
        """Yield every rule that this condition breaks."""
        if (why := label_key_problem(self.id)) is not None:
            yield f"condition id `{_short(self.id)}` {why}"
        elif self.id.startswith("k8s.io/"):
            yield f"condition id `{self.id}` uses the reserved prefix `k8s.io/`"
        if self.type in CEL_TYPES:
            pass
        elif (why := label_key_problem(self.type)) is not None:
            yield f"type `{_short(self.type)}` of condition `{_short(self.id)}` {why}"
        elif self.type.startswith("k8s.io/") and not _KUBERNETES_TYPE.fullmatch(self.type):
            yield f"type `{self.type}` of condition `{_short(self.id)}` is reserved for Kubernetes"
        if (size := len(self.text.encode("utf-8", "surrogatepass"))) > MAX_CONDITION_BYTES:
            yield f"condition `{_short(self.id)}` has {size:,} bytes, at most {MAX_CONDITION_BYTES:,} are allowed"


def label_key_problem(key: str) -> str | None:
    """Return the reason why `key` is not a label key (`[prefix/]name`), or None if it is one."""
    prefix, slash, name = key.rpartition("/")
    if slash and names.dns_subdomain(prefix):
        return "has a prefix that is not a DNS subdomain"
    if names.label_key(name):
        return "is not a label key: expected at most 63 of `-A-Za-z0-9_.`, a letter or digit first and last"
    return None


def digest(name: str) -> str:
    """Return what an id has in place of a name that does not fit a label key."""
    # Imported here because few names need it.
    import hashlib

    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


# The possible verdicts, by whether a condition allows and whether a condition denies.
_POSSIBLE = {
    (True, True): CONCRETE,
    (True, False): frozenset((NO_OPINION, ALLOW)),
    (False, True): frozenset((NO_OPINION, DENY)),
    (False, False): frozenset((NO_OPINION,)),
}

# Each effect beats those after it.
EFFECTS = tuple(Effect)
_ACTIONS = dict(zip(EFFECTS, ("denied the request", "withholds an opinion", "allowed the request"), strict=True))
# Looked up once, because every evaluation uses them.
_TRUE, _FALSE, _NO_MATCH = Reason.EXPRESSION_TRUE, Reason.EXPRESSION_FALSE, StepVerdict.NO_MATCH

# Whether one condition is true for the data at hand; ConditionError if it fails.
ConditionTest: TypeAlias = Callable[[Condition], bool]


class ConditionError(Exception):
    """A condition did not give a bool: it failed, or its type is unknown here."""


class ConditionSet(msgspec.Struct, frozen=True):
    """The conditions of one authorizer, unique by id; never merged with those of another."""

    authorizer: str
    conditions: tuple[Condition, ...]
    failure_mode: FailureMode = FailureMode.DENY

    def of(self, effect: Effect) -> tuple[Condition, ...]:
        """Return the conditions with one effect."""
        return tuple(condition for condition in self.conditions if condition.effect is effect)

    def problems(self) -> tuple[str, ...]:
        """Return every rule that the set or one of its conditions breaks."""
        problems = [problem for condition in self.conditions for problem in condition.problems()]
        if not self.conditions:
            problems.append("a condition set needs at least one condition")
        if len(self.conditions) > MAX_CONDITIONS:
            problems.append(f"{len(self.conditions)} conditions in one set, at most {MAX_CONDITIONS} are allowed")
        seen: set[str] = set()
        for condition in self.conditions:
            if condition.id in seen:
                problems.append(f"condition id `{condition.id}` is used twice")
            seen.add(condition.id)
        return tuple(problems)

    def evaluate(self, test: ConditionTest) -> Decision:
        """Evaluate the set with `test`, which knows the data."""
        steps: list[Step] = []
        for effect in EFFECTS:
            errors: list[str] = []
            failed: Step | None = None
            for condition in self.of(effect):
                text = condition.text if len(condition.text) <= 200 else ""
                try:
                    is_true = test(condition)
                except ConditionError as error:
                    errors.append(f"condition `{condition.id}` failed: {error}")
                    verdict = effect.if_failed(self.failure_mode)
                    steps.append(condition.step(self.authorizer, verdict, Reason.EXPRESSION_FAILED, str(error)))
                    failed = failed or steps[-1]
                    continue
                if is_true:
                    steps.append(condition.step(self.authorizer, effect.if_true, _TRUE, text))
                    reason = f"{_described(condition)} {_ACTIONS[effect]}"
                    return Decision(VERDICTS[steps[-1].verdict], reason, "", tuple(steps), steps[-1])
                steps.append(condition.step(self.authorizer, _NO_MATCH, _FALSE, text))
            # An Allow that fails has no verdict.
            if failed is not None and failed.verdict in VERDICTS:
                reason = f"a {effect} condition failed"
                return Decision(VERDICTS[failed.verdict], reason, "; ".join(errors), tuple(steps), failed)
        return Decision(NO_OPINION, "no condition allowed the request", "", tuple(steps))


class ConditionalDecision(Decision, frozen=True, kw_only=True):
    """A decision that depends on data. `error` says what failed in the first phase."""

    conditions: ConditionSet
    verdict: Verdict = Verdict.CONDITIONAL

    verdicts: ClassVar[frozenset[Verdict]] = frozenset((Verdict.CONDITIONAL,))

    @property
    def can_become_allowed(self) -> bool:
        """Whether a condition has the effect Allow."""
        return any(condition.effect is Effect.ALLOW for condition in self.conditions.conditions)

    @property
    def possible(self) -> frozenset[Verdict]:
        """NoOpinion always; Allow and Deny only where a condition has that effect."""
        effects = {condition.effect for condition in self.conditions.conditions}
        return _POSSIBLE[Effect.ALLOW in effects, Effect.DENY in effects]


def conditional(
    authorizer: str,
    conditions: Iterable[Condition],
    failure_mode: FailureMode = FailureMode.DENY,
    *,
    error: str = "",
    steps: tuple[Step, ...] = (),
) -> Decision:
    """Build the decision with these conditions.

    It is the failure mode if they break a rule, and NoOpinion if nothing else is possible.
    """
    condition_set = ConditionSet(authorizer, tuple(conditions), failure_mode)
    if problems := condition_set.problems():
        verdict = failure_mode.verdict if condition_set.conditions else NO_OPINION
        return fail_closed(authorizer, verdict, "; ".join(problems[:5]), steps, "failed closed: invalid conditions")
    if all(condition.effect is Effect.NO_OPINION for condition in condition_set.conditions):
        return Decision(NO_OPINION, "only NoOpinion conditions", error, steps)
    return ConditionalDecision(conditions=condition_set, error=error, steps=steps)


def _described(condition: Condition) -> str:
    # A condition without a description tells its text, if that is CEL of a readable length.
    is_readable = condition.type == CEL_TYPE and len(condition.text) <= 200
    meaning = condition.description or (condition.text if is_readable else "")
    return f"condition `{condition.id}` ({meaning})" if meaning else f"condition `{condition.id}`"
