"""The CEL authorizer: its policies answered by partial evaluation (KEP-5681, "Authorizer requirements").

Every policy is true, false, an error, or a residual over data that is not there yet. The answer is the first line that
fits (settled semantics, api, "one CEL authorizer"); T true, E error, R residual:

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

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from tierwall.api.attributes import Attributes
from tierwall.api.check_through import authorizer_variables
from tierwall.api.condition import CEL_TYPE, PACKED_CEL_TYPE, Condition, Effect, FailureMode
from tierwall.api.condition_fit import conditions_of, within_limits
from tierwall.api.condition_set import ConditionError, ConditionSet, conditional
from tierwall.api.data import ConditionData
from tierwall.api.decision import Decision, allow, deny, no_opinion
from tierwall.api.expression import Expression, Failed, Left, decide, holds, program_of
from tierwall.api.policy import Policy, policies_of
from tierwall.api.policy_constraints import GROUPS, demands
from tierwall.api.policy_index import PolicyIndex, indexed
from tierwall.core.trace import Step
from tierwall.core.verdict import Verdict
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.api.chain import Chain

_ORDER = {Effect.DENY: 0, Effect.NO_OPINION: 1, Effect.ALLOW: 2}


class _Ready(msgspec.Struct, frozen=True, eq=False):
    """A policy ready to be asked; `unmet` are demands that the index does not look at."""

    policy: Policy
    expression: Expression | None
    unmet: tuple[tuple[str, frozenset[str]], ...]

    def may_match(self, attributes: Attributes) -> bool:
        return all(
            not values.isdisjoint(attributes.groups) if field == GROUPS else getattr(attributes, field) in values
            for field, values in self.unmet
        )


class _Found(msgspec.Struct):
    """The policies of one effect that are not false."""

    true: list[Policy] = []
    failed: list[tuple[Policy, str]] = []
    left: list[tuple[Policy, Left]] = []

    @property
    def error(self) -> str:
        return "; ".join(f"{policy.reference}: {why}" for policy, why in self.failed[:5])


class CelPolicies:
    """The policies of one authorizer over one snapshot; a policy change is another snapshot and another authorizer."""

    condition_types = frozenset((CEL_TYPE, PACKED_CEL_TYPE))

    def __init__(self, snapshot: Snapshot, name: str, failure_mode: FailureMode = FailureMode.DENY) -> None:
        self.name = name
        self.failure_mode = failure_mode
        self.policies = tuple(one for one in policies_of(snapshot) if one.authorizer == name)
        self._index = PolicyIndex(_ready(one) for one in sorted(self.policies, key=lambda one: _ORDER[one.effect]))
        self._chain: Chain | None = None

    def check_through(self, chain: Chain) -> None:
        """Say which chain `authorizer` asks; without one, a check fails."""
        self._chain = chain

    def authorize(self, attributes: Attributes) -> Decision:
        """The first phase."""
        found = {effect: _Found() for effect in Effect}
        request: dict[str, Any] | None = None
        for ready in self._index.find(attributes):
            if not ready.may_match(attributes):
                continue
            policy, mine = ready.policy, found[ready.policy.effect]
            if ready.expression is None:
                mine.failed.append((policy, policy.error))
                continue
            if request is None:
                request = attributes.request()
            outcome = ready.expression.first(request, name_unknown=attributes.is_name_unknown)
            if isinstance(outcome, Left) and outcome.needs_only_authorizer:
                outcome = self._checked(outcome, attributes)
            if outcome is True:
                mine.true.append(policy)
                if policy.effect is Effect.DENY:
                    break
            elif isinstance(outcome, Failed):
                mine.failed.append((policy, outcome.message))
            elif isinstance(outcome, Left) and (outcome.can_be_true or policy.effect is not Effect.ALLOW):
                mine.left.append((policy, outcome))
        return self._settled(found)

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """The second phase, without policies."""
        variables = data.variables()
        if self._chain is not None and data.requester is not None:
            variables |= authorizer_variables(self._chain, data.requester)
        return conditions.evaluate(lambda condition: holds(condition, variables))

    def _checked(self, left: Left, attributes: Attributes) -> bool | Failed:
        """A residual that only asks the authorizer needs no data, so it is settled now."""
        variables = authorizer_variables(self._chain, attributes) if self._chain is not None else {}
        try:
            return decide(program_of(left.tree), variables)
        except ConditionError as why:
            return Failed(str(why))

    def _settled(self, found: dict[Effect, _Found]) -> Decision:
        denies, withhold, allows = found[Effect.DENY], found[Effect.NO_OPINION], found[Effect.ALLOW]
        steps = tuple(_steps(self.name, found))
        fails_open = bool(denies.failed) and self.failure_mode is FailureMode.NO_OPINION
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
            return no_opinion("no policy allows it", steps=steps)
        if allows.true and not withhold.left:
            return allow(_reason("allowed", allows.true[0]), steps=steps)
        return self._conditional((*_residuals(withhold), *_grants(allows)), error, steps)

    def _conditional(self, conditions: Iterable[Condition], error: str, steps: tuple[Step, ...]) -> Decision:
        return conditional(self.name, within_limits(conditions), self.failure_mode, error=error, steps=steps)


def _ready(policy: Policy) -> tuple[dict[str, frozenset[str]], _Ready]:
    needed = demands(policy.tree) if policy.tree is not None else {}
    if policy.namespace:
        own = frozenset((policy.namespace,))
        needed["namespace"] = needed.get("namespace", own) & own
    looked_at = indexed(needed)
    unmet = tuple((field, values) for field, values in sorted(needed.items()) if field not in looked_at)
    expression = Expression(policy.tree) if policy.tree is not None else None
    return needed, _Ready(policy, expression, unmet)


def _residuals(found: _Found) -> list[Condition]:
    return [condition for policy, left in found.left for condition in conditions_of(policy, left.tree)]


def _grants(allows: _Found) -> list[Condition]:
    """One true Allow, or all the residual ones."""
    if not allows.true:
        return _residuals(allows)
    policy = allows.true[0]
    return [Condition(policy.id, Effect.ALLOW, "true", CEL_TYPE, policy.description, policy.source)]


def _reason(word: str, policy: Policy) -> str:
    return f"{word} by {policy.reference}" + (f": {policy.description}" if policy.description else "")


def _steps(tier: str, found: dict[Effect, _Found]) -> Iterable[Step]:
    for effect in _ORDER:
        mine = found[effect]
        for policy in mine.true:
            yield _step(tier, str(effect), policy, "")
        for policy, why in mine.failed:
            yield _step(tier, "Error", policy, why)
        for policy, _ in mine.left:
            yield _step(tier, str(Verdict.CONDITIONAL), policy, f"if its condition holds: {effect}")


def _step(tier: str, outcome: str, policy: Policy, note: str) -> Step:
    return Step(tier, outcome, policy.reference, "spec", note, policy.resource, ("spec", "expression"))
