"""The CEL authorizer: policies of one name in a snapshot, answered by partial evaluation (docs/api.md#a-policy).

A ClusterAuthorizationPolicy or AuthorizationPolicy has an effect, an expression and a scope. A policy that cannot be
used still counts, and closes at most its own scope (docs/semantics.md#a-policy-that-cannot-be-used-fails-alone): it
fails for every request that it could match, and an unknown effect counts as a Deny that fails.

An index finds policies by what they demand of the request (`demands`). They are evaluated with the request known and
the object unknown (`expression`), and the table of `settlement` combines their outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal
from weakref import ref

import msgspec

from tierwall.api.algebra.chain import Chain
from tierwall.api.algebra.condition import (
    CEL_TYPE,
    CEL_TYPES,
    EFFECTS,
    Condition,
    ConditionSet,
    ConditionSource,
    Effect,
    FailureMode,
    digest,
    label_key_problem,
)
from tierwall.api.algebra.decision import Decision, no_opinion
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.api.authorizers.demands import GROUPS, PolicyIndex, indexed_fields
from tierwall.api.authorizers.expression import (
    Expression,
    FailedExpression,
    ResidualExpression,
    authorizer_variables,
    evaluate_bool,
    evaluate_conditions,
    failure_text,
    program_of,
    shared_expression,
)
from tierwall.api.authorizers.settlement import NOTHING_ALLOWS, Settlement
from tierwall.cel.syntax.ast import Expr
from tierwall.core.answer import Reason, Step
from tierwall.core.reference import Reference
from tierwall.core.verdict import StepVerdict
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import objections, unknown_parts

GROUP = "tierwall.io"
CLUSTER_KIND, NAMESPACED_KIND = "ClusterAuthorizationPolicy", "AuthorizationPolicy"
DEFAULT_AUTHORIZER = "policies"
# As in the definition of both kinds; a longer text is not even parsed.
MAX_EXPRESSION_LENGTH = 16_384


class CelPolicy(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One policy. `namespace` is empty where it applies everywhere; `error` is why it cannot be used.

    An empty `authorizer` cannot be read: the policy counts in every CEL authorizer of the chain. An expression that was
    parsed says which requests a policy could match, even if the policy cannot be used.
    """

    resource: Resource
    id: str
    namespace: str
    authorizer: str
    effect: Effect
    description: str
    expression: str
    parsed: Expression | None
    error: str = ""
    # Why an API server would refuse the policy, or fields that only the installed definition knows.
    objection: str = ""

    @property
    def usable(self) -> Expression | None:
        """The expression, unless the policy cannot be used."""
        return None if self.error or self.objection else self.parsed

    @property
    def tree(self) -> Expr | None:
        """The expression of a policy that can be used."""
        return self.usable.tree if self.usable is not None else None

    @property
    def failure(self) -> str:
        """The reason why the policy cannot be used; empty if it can."""
        return self.error or self.objection

    @property
    def reference(self) -> Reference:
        """`Kind/namespace/name`."""
        return self.resource.reference


@per_snapshot
def policies_of(snapshot: Snapshot) -> tuple[CelPolicy, ...]:
    """Return every policy of a snapshot, by age and then name."""
    policies = [
        _policy(snapshot, resource)
        for kind in (CLUSTER_KIND, NAMESPACED_KIND)
        for resource in snapshot.of_kind(GROUP, kind)
    ]
    return tuple(sorted(policies, key=lambda policy: (policy.resource.seniority, policy.resource.kind)))


@per_snapshot
def asks_authorizers(snapshot: Snapshot) -> bool:
    """Whether a policy may ask about other requests (`authorizer`), in whatever namespace."""
    return any("authorizer" in policy.expression for policy in policies_of(snapshot))


def _policy(snapshot: Snapshot, resource: Resource) -> CelPolicy:
    # An object of an unknown version may lack its namespace. It must not reach beyond one all the same.
    namespace = resource.namespace or "default" if resource.kind == NAMESPACED_KIND else ""
    spec = resource.spec
    problems: list[str] = []
    effect = Effect.DENY
    word = spec.get("effect")
    if isinstance(word, str) and word in Effect.__members__.values():
        effect = Effect(word)
    else:
        problems.append(f"unknown effect `{word}`")
    authorizer = spec.get("authorizer")
    if authorizer is None:
        authorizer = DEFAULT_AUTHORIZER
    expression = _string(spec.get("expression"))
    parsed = None
    if not expression:
        problems.append("`spec.expression` is missing")
    elif len(expression) > MAX_EXPRESSION_LENGTH:
        problems.append(
            f"`spec.expression` has {len(expression):,} characters, at most {MAX_EXPRESSION_LENGTH:,} are allowed"
        )
    else:
        try:
            parsed = shared_expression(expression)
        except Exception as error:
            # Whatever a parser makes of one expression, only its own policy is closed.
            problems.append(f"`spec.expression` does not parse: {failure_text(error)}")
    unknown = unknown_parts(snapshot, resource)
    return CelPolicy(
        resource,
        condition_id(namespace, resource.name),
        namespace,
        _string(authorizer),
        effect,
        _string(spec.get("description")),
        expression,
        # An unknown part may change what the expression means.
        None if unknown else parsed,
        "; ".join(problems),
        "; ".join(problem.message for problem in unknown) or "; ".join(objections(snapshot, resource)),
    )


def condition_id(namespace: str, name: str) -> str:
    """Return the id of a policy's conditions: `name` or `namespace/name`, shortened to a label key."""
    plain = f"{namespace}/{name}" if namespace else name
    if label_key_problem(plain) is None and "/" not in name:
        return plain
    readable = "".join(letter for letter in name[:40] if letter.isascii() and (letter.isalnum() or letter in "-_."))
    readable = readable.strip("-_.")
    short = f"{readable}-{digest(plain)}" if readable else digest(plain)
    prefixed = f"{namespace}/{short}"
    return prefixed if namespace and label_key_problem(prefixed) is None else short


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


class _IndexedPolicy(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A policy in the index; `unindexed` are demands that the index does not check."""

    condition: Condition
    expression: Expression | None
    error: str
    unindexed: tuple[tuple[str, frozenset[str]], ...]

    def may_match(self, attributes: Attributes) -> bool:
        return all(
            not values.isdisjoint(attributes.groups) if field == GROUPS else getattr(attributes, field) in values
            for field, values in self.unindexed
        )


class CelAuthorizer:
    """The policies of one authorizer in one snapshot; a change of policies is a new snapshot and a new authorizer."""

    condition_types = CEL_TYPES

    def __init__(self, snapshot: Snapshot, name: str, failure_mode: FailureMode = FailureMode.DENY) -> None:
        self.name = name
        self.failure_mode = failure_mode
        self.policies = tuple(policy for policy in policies_of(snapshot) if policy.authorizer in (name, ""))
        self._indexed = tuple(
            map(_indexed_policy, sorted(self.policies, key=lambda policy: EFFECTS.index(policy.effect)))
        )
        self._index = PolicyIndex(self._indexed)
        # By policy: its latest residual, and the decision where no other policy counted. Most policies leave the same
        # residual every time.
        self._last_residual: dict[_IndexedPolicy, tuple[ResidualExpression, Decision]] = {}
        self._chain: Callable[[], Chain | None] = lambda: None
        no_policy = Step(tier=name, verdict=StepVerdict.NO_OPINION, reason=Reason.NO_POLICY)
        self._no_policy = no_opinion(no_policy, NOTHING_ALLOWS)

    def use_chain_for_checks(self, chain: Chain) -> None:
        """Set the chain that `authorizer` asks; without one, checks fail. The caller keeps that chain alive."""
        # A weak reference, because the chain refers to this authorizer: superseded policies are freed at once.
        self._chain = ref(chain)

    def warm(self) -> Iterator[None]:
        """Prepare the policies one by one, so that no request has to wait for it."""
        for demands, policy in self._indexed:
            verbs = demands.get("verb")
            if policy.expression is not None:
                if verbs is None or "create" in verbs:
                    policy.expression.warm(name_unknown=True)
                if verbs is None or verbs != {"create"}:
                    policy.expression.warm(name_unknown=False)
                yield

    def authorize(self, attributes: Attributes) -> Decision:
        """Decide the first phase."""
        outcomes: list[tuple[_IndexedPolicy, FailedExpression | ResidualExpression | Literal[True]]] = []
        request: dict[str, Any] | None = None
        for policy in self._index.find(attributes):
            if policy.unindexed and not policy.may_match(attributes):
                continue
            outcome: bool | FailedExpression | ResidualExpression = FailedExpression(policy.error)
            if policy.expression is not None:
                if request is None:
                    request = attributes.request()
                outcome = policy.expression.first_phase(request, name_unknown=attributes.is_name_unknown)
                if isinstance(outcome, ResidualExpression) and outcome.needs_only_authorizer:
                    outcome = self._evaluate_check(outcome, attributes)
            if outcome is False:
                continue
            outcomes.append((policy, outcome))
            if outcome is True and policy.condition.effect is Effect.DENY:
                break  # no other policy can change the decision
        if not outcomes:
            return self._no_policy
        policy, only = outcomes[0]
        if len(outcomes) > 1 or not isinstance(only, ResidualExpression):
            return self._combine(outcomes)
        known = self._last_residual.get(policy)
        if known is None or known[0].tree is not only.tree or known[0].can_be_true is not only.can_be_true:
            known = self._last_residual[policy] = only, self._combine(outcomes)
        return known[1]

    def _combine(
        self, outcomes: list[tuple[_IndexedPolicy, FailedExpression | ResidualExpression | Literal[True]]]
    ) -> Decision:
        settlement = Settlement(self.name, self.failure_mode)
        for policy, outcome in outcomes:
            settlement.add(policy.condition, outcome)
        return settlement.decision()

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """Decide the second phase, without looking at policies."""
        variables = data.variables()
        if (chain := self._chain()) is not None and data.requester is not None:
            variables |= authorizer_variables(chain, data.requester)
        return evaluate_conditions(conditions, variables)

    def _evaluate_check(self, residual: ResidualExpression, attributes: Attributes) -> bool | FailedExpression:
        """Evaluate a residual that needs only `authorizer`, no data."""
        chain = self._chain()
        variables = authorizer_variables(chain, attributes) if chain is not None else {}
        try:
            return evaluate_bool(program_of(residual.tree), variables)
        except Exception as error:
            return FailedExpression(failure_text(error))


def _indexed_policy(policy: CelPolicy) -> tuple[dict[str, frozenset[str]], _IndexedPolicy]:
    usable, failure, demands = policy.usable, policy.failure, {}
    if policy.parsed is not None:
        try:
            demands = dict(policy.parsed.demands)
        except Exception as error:
            usable, failure = None, failure or failure_text(error)
    if policy.namespace:
        namespace = frozenset((policy.namespace,))
        demands["namespace"] = demands.get("namespace", namespace) & namespace
    indexed = indexed_fields(demands)
    unindexed = tuple((field, values) for field, values in sorted(demands.items()) if field not in indexed)
    source = ConditionSource(policy.reference, policy.resource)
    condition = Condition(policy.id, policy.effect, policy.expression, CEL_TYPE, policy.description, source)
    return demands, _IndexedPolicy(condition, usable, failure, unindexed)
