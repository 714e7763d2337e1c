"""Expressions that have no translation: each may be true, false or an error, and equal ones come out alike.

A claim that holds however they come out is proved, because what they really are is among that. An expression that is
equal to another one, about the same values, has the same outcome: so an unchanged policy stays the same on both sides
of a change. Only what asks `authorizer`, which answers by the policies of its side, is never the same.

What is given up is the smallest part of an expression where only a bool counts. It is known for good: the question is
written down again without it, so that it leaves no trace in the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from tierwall.cel.environment import Environment
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.printer import to_text
from tierwall.logic.cel.outcome import Possible
from tierwall.logic.cel.terms import Leaf, MissingData, Term, identity
from tierwall.logic.circuit import FALSE, Circuit
from tierwall.logic.unsupported import Unsupported

# Answers by the policies of the side that it is asked on.
_NEVER_THE_SAME = frozenset(("authorizer",))


class OpenOutcome(msgspec.Struct, frozen=True, eq=False):
    """One expression without a translation, about some values: its outcome, and where it stands.

    Without a `node` it is a test of another kind, such as a pattern.
    """

    possible: Possible
    why: str
    node: ast.Expr | None = None
    environment: Environment | None = None
    variables: Mapping[str, Leaf] = {}
    scope: Mapping[str, Term] = {}
    # The literal that says that it is an error.
    fails: int = FALSE


class OpenOutcomes:
    """Open outcomes of one world. `given_up` outlives it: by what was given up, the reason."""

    def __init__(self, circuit: Circuit, given_up: dict[Hashable, Unsupported]) -> None:
        self._circuit = circuit
        self.given_up = given_up
        self._describe: Callable[[Unsupported], str] = lambda error: error.construct
        self._outcomes: dict[Hashable, OpenOutcome] = {}
        self._encoders = 0

    def enlist(self) -> int:
        """Return the number of an encoder: what one gives up, another may understand."""
        self._encoders += 1
        return self._encoders

    def __iter__(self) -> Iterator[OpenOutcome]:
        return iter(self._outcomes.values())

    @contextmanager
    def described(self, describe: Callable[[Unsupported], str]) -> Iterator[None]:
        """Say where the expressions stand that are translated meanwhile."""
        before, self._describe = self._describe, describe
        try:
            yield
        finally:
            self._describe = before

    def test(self, key: Hashable, error: Unsupported) -> int:
        """Return the literal of a test that may hold or not; equal keys are the same test."""
        if key not in self._outcomes:
            true = self._circuit.variable()
            possible = Possible(true, -true, true, -true, FALSE)
            self._outcomes[key] = OpenOutcome(possible, self._describe(error))
        return self._outcomes[key].possible.true

    def outcome(
        self,
        node: ast.Expr,
        environment: Environment,
        variables: Mapping[str, Leaf],
        scope: Mapping[str, Term],
        error: Unsupported,
    ) -> Possible:
        """Return the outcome of an expression that was given up."""
        try:
            text, names = to_text(node), set(ast.names(node))
        except RecursionError:
            text, names = "", set(_NEVER_THE_SAME)
        bound = {name: term for name, term in scope.items() if name in names}
        # `.name` means the variable, although the name is bound.
        free = {name: leaf for name, leaf in variables.items() if name.partition(".")[0] in names}
        key: Hashable = node, object()
        if names.isdisjoint(_NEVER_THE_SAME):
            key = (
                text,
                id(environment),
                tuple((name, identity(leaf)) for name, leaf in sorted(free.items())),
                tuple((name, _term_identity(term)) for name, term in sorted(bound.items())),
            )
        if key not in self._outcomes:
            is_open = any(isinstance(leaf, MissingData) for leaf in free.values()) or any(
                isinstance(leaf, MissingData) for term in bound.values() for _, leaf in term
            )
            possible = self._possible(is_open or not names.isdisjoint(_NEVER_THE_SAME))
            fails = self._circuit.all_of((-possible.true, -possible.false, -possible.is_missing))
            why = self._describe(error)
            self._outcomes[key] = OpenOutcome(possible, why, node, environment, free, bound, fails)
        return self._outcomes[key].possible

    def _possible(self, may_be_missing: bool) -> Possible:
        all_of, any_of, variable = self._circuit.all_of, self._circuit.any_of, self._circuit.variable
        chosen, other = variable(), variable()
        if not may_be_missing:
            true, false = chosen, all_of((-chosen, other))
            return Possible(true, false, true, false, FALSE)
        missing = variable()
        true, false = all_of((-missing, chosen)), all_of((-missing, -chosen, other))
        may_be_true = any_of((true, all_of((missing, variable()))))
        return Possible(true, false, may_be_true, any_of((false, all_of((missing, variable())))), missing)


def _term_identity(term: Term) -> Hashable:
    return tuple((guard, identity(leaf)) for guard, leaf in term)
