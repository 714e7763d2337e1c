"""What one CEL authorizer answers, from what its policies came to (KEP-5681, "Authorizer requirements").

Every policy is true, false, an error, or a residual over data that is not there yet. The answer is the first line that
fits (docs/semantics.md#what-one-cel-authorizer-answers); T true, E error, R residual:

    Deny T                                              Deny
    Deny E, failure mode Deny                           Deny, with the error
    Deny R, and Deny E or a NoOpinion T or E            Conditional on the Denies alone
    Deny R, and an Allow T or R                         Conditional: Denies, NoOpinions R, Allows
    Deny R                                              Conditional on the Denies alone
    Deny E, failure mode NoOpinion                      NoOpinion, with the error
    NoOpinion T or E                                    NoOpinion
    no Allow T or R                                     NoOpinion
    Allow T, no NoOpinion R                             Allow
    else                                                Conditional: NoOpinions R, Allows

Of the Allows one that is true stands for all; a residual Allow that cannot become true is not returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tierwall.api.condition import CEL_TYPE, Condition, Effect, FailureMode
from tierwall.api.condition_fit import conditions_of, within_limits
from tierwall.api.condition_set import conditional
from tierwall.api.decision import Decision, allow, deny, no_opinion
from tierwall.api.expression import Failed, Left
from tierwall.core.trace import Step
from tierwall.core.verdict import Verdict

# The answer where no policy came to anything.
NOTHING = no_opinion("no policy allows it")
ORDER = {Effect.DENY: 0, Effect.NO_OPINION: 1, Effect.ALLOW: 2}


class Found(msgspec.Struct):
    """The conditions of one effect that are not false: each stands for its policy."""

    true: list[Condition] = []
    failed: list[tuple[Condition, str]] = []
    left: list[tuple[Condition, Left]] = []

    @property
    def error(self) -> str:
        """The errors, the first few."""
        return "; ".join(f"{_name(one)}: {why}" for one, why in self.failed[:5])


class Settlement:
    """Collects what policies came to, and settles it."""

    def __init__(self, authorizer: str, failure_mode: FailureMode) -> None:
        self._authorizer = authorizer
        self._failure_mode = failure_mode
        self._found = {effect: Found() for effect in ORDER}

    def add(self, one: Condition, outcome: bool | Failed | Left) -> None:
        """Take in what one policy came to."""
        found = self._found[one.effect]
        if outcome is True:
            found.true.append(one)
        elif isinstance(outcome, Failed):
            found.failed.append((one, outcome.message))
        elif isinstance(outcome, Left) and (outcome.can_be_true or one.effect is not Effect.ALLOW):
            found.left.append((one, outcome))

    @property
    def is_denied(self) -> bool:
        """Nothing that is added now can change the answer."""
        return bool(self._found[Effect.DENY].true)

    def decision(self) -> Decision:
        """The answer."""
        denies, withhold, allows = (self._found[effect] for effect in ORDER)
        steps = tuple(self._steps())
        fails_open = bool(denies.failed) and self._failure_mode is FailureMode.NO_OPINION
        withheld = bool(withhold.true or withhold.failed)
        can_allow = bool(allows.true or allows.left)
        error = denies.error or ("" if withhold.true else withhold.error)
        if denies.true:
            return deny(_reason("denied", denies.true[0]), steps=steps)
        if denies.failed and not fails_open:
            return deny("a Deny policy failed", denies.error, steps)
        if denies.left:
            if fails_open or withheld or not can_allow:
                return self._conditional(_residuals(denies), error, steps)
            return self._conditional((*_residuals(denies), *_residuals(withhold), *_grants(allows)), error, steps)
        if fails_open:
            return no_opinion("a Deny policy failed", denies.error, steps)
        if withheld:
            reason = _reason("withheld", withhold.true[0]) if withhold.true else "a NoOpinion policy failed"
            return no_opinion(reason, error, steps)
        if not can_allow:
            return no_opinion(NOTHING.reason, steps=steps)
        if allows.true and not withhold.left:
            return allow(_reason("allowed", allows.true[0]), steps=steps)
        return self._conditional((*_residuals(withhold), *_grants(allows)), error, steps)

    def _conditional(self, conditions: Iterable[Condition], error: str, steps: tuple[Step, ...]) -> Decision:
        return conditional(self._authorizer, within_limits(conditions), self._failure_mode, error=error, steps=steps)

    def _steps(self) -> Iterator[Step]:
        for effect, mine in self._found.items():
            for one in mine.true:
                yield self._step(str(effect), one, "")
            for one, why in mine.failed:
                yield self._step("Error", one, why)
            for one, _ in mine.left:
                yield self._step(str(Verdict.CONDITIONAL), one, f"if its condition holds: {effect}")

    def _step(self, outcome: str, one: Condition, note: str) -> Step:
        if one.source is None:
            return Step(self._authorizer, outcome, None, f"condition {one.id}", note)
        path = ("spec", "expression")
        return Step(self._authorizer, outcome, one.source.policy, "spec", note, one.source.origin, path)


def _residuals(found: Found) -> list[Condition]:
    return [condition for one, left in found.left for condition in conditions_of(one, left.tree)]


def _grants(allows: Found) -> list[Condition]:
    """One true Allow, or all the residual ones."""
    if not allows.true:
        return _residuals(allows)
    return [msgspec.structs.replace(allows.true[0], text="true", type=CEL_TYPE)]


def _name(one: Condition) -> str:
    return str(one.source.policy) if one.source is not None else f"condition `{one.id}`"


def _reason(word: str, one: Condition) -> str:
    return f"{word} by {_name(one)}" + (f": {one.description}" if one.description else "")
