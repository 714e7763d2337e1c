"""The conditions of a chain on an object that is read, as a circuit and as the evaluator sees them.

A list or watch gives conditions the object as `object`; no other data exists. A deletecollection is judged as admission
will judge it, a DELETE whose `oldObject` is the object. An Allow may be about `object` there, too, which is the same
object then, if as a delete nothing stands against it (docs/semantics.md#conditional-reads). `oldObject` and `operation`
stay what they are: `oldObject == null` must not be true of an object that goes.

An error never allows: an Allow that fails is no Allow, a Deny that fails denies, whatever the failure mode. What proofs
cannot express counts as an error.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from tierwall.api.algebra.chain import CompleteDecision
from tierwall.api.algebra.condition import (
    Condition,
    ConditionalDecision,
    ConditionError,
    ConditionSet,
    Effect,
    FailureMode,
)
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION
from tierwall.api.algebra.request import ConditionData
from tierwall.api.authorizers.expression import ENVIRONMENT, condition_text, evaluate_conditions, parse
from tierwall.cel.errors import ParseError
from tierwall.cel.syntax.ast import Expr
from tierwall.core.verdict import Verdict
from tierwall.logic.cel.encoder import Encoder, Rails
from tierwall.logic.cel.open_question import culprits
from tierwall.logic.cel.terms import Constant, Leaf
from tierwall.logic.cel.unknown import Shape, Unknown, UnknownWorld, ValueKind
from tierwall.logic.circuit import FALSE, TRUE
from tierwall.logic.unsupported import Unsupported, WorldLimit

_ANY_OBJECT = Shape((ValueKind.NULL, ValueKind.MAP))
_NEVER = Rails(FALSE, FALSE)


class ReadCondition(msgspec.Struct, frozen=True):
    """One condition by its content alone, so that equal ones share a proof."""

    effect: Effect
    text: str
    type: str


# The opinions of a chain in order: what a set has, or a verdict without conditions at the end.
ReadConditions: TypeAlias = tuple[tuple[ReadCondition, ...] | Verdict, ...]


def read_conditions(decision: CompleteDecision) -> ReadConditions:
    """Return the conditions of a decision."""
    return tuple(
        tuple(ReadCondition(each.effect, each.text, each.type) for each in opinion.conditions.conditions)
        if isinstance(opinion, ConditionalDecision)
        else opinion.verdict
        for _, opinion in decision.entries
    )


def verdict_on(conditions: ReadConditions, data: ConditionData) -> Verdict:
    """Evaluate the conditions on one object; an error never allows."""
    variables = data.variables()
    for opinion in conditions:
        if isinstance(opinion, Verdict):
            return opinion
        parts = tuple(Condition(f"c{number}", each.effect, each.text, each.type) for number, each in enumerate(opinion))
        verdict = evaluate_conditions(ConditionSet("", parts, FailureMode.DENY), variables).verdict
        if verdict is not NO_OPINION:
            return verdict
    return NO_OPINION


def shows(conditions: ReadConditions, value: Any, others: dict[str, Any], *, is_delete: bool) -> bool:
    """Whether the conditions allow that one object is read or deleted; `others` are data besides the object."""
    if not is_delete:
        reading = ConditionData(object=value, namespace_object=others.get("namespaceObject"))
        return verdict_on(conditions, reading) is ALLOW
    deletion = ConditionData(operation="DELETE", old_object=value, **_snake(others))
    if verdict_on(conditions, deletion) is ALLOW:
        return True
    against = [tuple(each for each in opinion if each.effect is not Effect.ALLOW) for opinion in _sets(conditions)]
    stands_against = any(_is_or_fails(each, deletion) for opinion in against for each in opinion)
    return not stands_against and verdict_on(conditions, replace(deletion, object=value)) is ALLOW


def _snake(others: dict[str, Any]) -> dict[str, Any]:
    return {"options": others.get("options"), "namespace_object": others.get("namespaceObject")}


def _sets(conditions: ReadConditions) -> Iterator[tuple[ReadCondition, ...]]:
    return (opinion for opinion in conditions if not isinstance(opinion, Verdict))


def _is_or_fails(condition: ReadCondition, data: ConditionData) -> bool:
    alone = ConditionSet("", (Condition("c", Effect.DENY, condition.text, condition.type),), FailureMode.DENY)
    return evaluate_conditions(alone, data.variables()).verdict is DENY


class ReadExpressions:
    """The expressions of conditions, parsed once, and those that are given up because they ask for too much."""

    def __init__(self) -> None:
        self._parsed: dict[str, Expr] = {}
        # By what worlds blame: an expression and its number, which is 0 here.
        self._given_up: dict[Hashable, str] = {}

    def of(self, text: str) -> Expr:
        """Return the expression; Unsupported if it is given up."""
        if text not in self._parsed:
            self._parsed[text] = parse(text)
        node = self._parsed[text]
        if (reason := self._given_up.get((0, node))) is not None:
            raise Unsupported(reason)
        return node

    def give_up(self, world: UnknownWorld, limit: WorldLimit, most: int) -> bool:
        """Give up those that ask for most of what is limited; return whether there are any."""
        at_fault = culprits(world, limit, self._given_up)[:most]
        self._given_up.update(dict.fromkeys(at_fault, limit.construct))
        return bool(at_fault)


class ConditionCircuit:
    """Writes the conditions down in one world."""

    def __init__(
        self, world: UnknownWorld, conditions: ReadConditions, value: Unknown, expressions: ReadExpressions
    ) -> None:
        self._circuit = world.circuit
        self._conditions = conditions
        self._expressions = expressions
        # Why a condition counts as an error that perhaps does not fail.
        self.unsupported: list[str] = []
        # What a condition may read besides the object, and nobody knows.
        self.others = {name: world.unknown(name, _ANY_OBJECT) for name in ("namespaceObject", "options")}
        null = Constant(None)
        common: dict[str, Leaf] = {"request": Constant({}), "impersonatedRequest": null, **self.others}
        self._world = world
        self._reading = {**common, "object": value, "oldObject": null, "operation": null, "options": null}
        self._deletion = {**common, "object": null, "oldObject": value, "operation": Constant("DELETE")}
        self._both = {**self._deletion, "object": value}

    def allowed(self, *, is_delete: bool) -> int:
        """Return the literal that says that the object may be read, or deleted."""
        if not is_delete:
            return self._walk(self._rails(self._reading))
        deletion = self._rails(self._deletion)
        unopposed = [
            rails.false
            for opinion, of_set in zip(_sets(self._conditions), deletion, strict=True)
            for condition, rails in zip(opinion, of_set, strict=True)
            if condition.effect is not Effect.ALLOW
        ]
        with_object = self._circuit.all_of((*unopposed, self._walk(self._rails(self._both))))
        return self._circuit.any_of((self._walk(deletion), with_object))

    def _rails(self, variables: dict[str, Leaf]) -> list[list[Rails]]:
        encoder = Encoder(self._world, ENVIRONMENT, variables)
        return [[self._of_condition(encoder, each) for each in opinion] for opinion in _sets(self._conditions)]

    def _of_condition(self, encoder: Encoder, condition: ReadCondition) -> Rails:
        alone = Condition("c", condition.effect, condition.text, condition.type)
        try:
            return encoder.rails(self._expressions.of(condition_text(alone)))
        except WorldLimit:
            raise
        except Unsupported as error:
            self.unsupported.append(error.construct)
        except ConditionError as error:
            self.unsupported.append(str(error))
        except ParseError:
            pass
        return _NEVER

    def _walk(self, of_sets: Iterable[list[Rails]]) -> int:
        """Ask the authorizers in order, as `ChainDecision.evaluate` does."""
        any_of, all_of = self._circuit.any_of, self._circuit.all_of
        passed_on, allows, rails = TRUE, [], iter(of_sets)
        for opinion in self._conditions:
            if isinstance(opinion, Verdict):
                allows.append(passed_on if opinion is ALLOW else FALSE)
                break
            by_effect: dict[Effect, list[Rails]] = {effect: [] for effect in Effect}
            for condition, of_condition in zip(opinion, next(rails), strict=True):
                by_effect[condition.effect].append(of_condition)
            denied = any_of(-each.false for each in by_effect[Effect.DENY])
            withheld = any_of(-each.false for each in by_effect[Effect.NO_OPINION])
            granted = all_of((-denied, -withheld, any_of(each.true for each in by_effect[Effect.ALLOW])))
            allows.append(all_of((passed_on, granted)))
            passed_on = all_of((passed_on, -denied, -granted))
        return any_of(allows)
