"""The outcome of a bool in a circuit: true, false, an error, or what missing data makes of it.

Partial evaluation leaves over what depends on missing data, and knows what may still come of it
(`cel.partial_evaluation.outcomes`); a circuit knows the same for every request at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tierwall.cel.partial_evaluation import outcomes
from tierwall.logic.cel.terms import MissingData, Term, boolean, rails, under
from tierwall.logic.circuit import FALSE, Circuit


class Possible(msgspec.Struct, frozen=True):
    """When a bool is true or false, and when missing data may make it so."""

    true: int
    false: int
    may_be_true: int
    may_be_false: int
    is_missing: int

    @classmethod
    def of(cls, circuit: Circuit, term: Term) -> Possible:
        """Return what a term may come to where a bool is needed."""
        true, false = rails(circuit, term)
        left = [(guard, leaf.possible) for guard, leaf in term if isinstance(leaf, MissingData)]
        if not left:
            return cls(true, false, true, false, FALSE)
        return cls(
            true,
            false,
            circuit.any_of([true, *(guard for guard, possible in left if possible & outcomes.TRUE)]),
            circuit.any_of([false, *(guard for guard, possible in left if possible & outcomes.FALSE)]),
            circuit.any_of(guard for guard, _ in left),
        )

    def under(self, circuit: Circuit, condition: int) -> Possible:
        """Return the same where a condition holds; elsewhere an error."""
        return Possible(*(circuit.all_of((condition, literal)) for literal in msgspec.structs.astuple(self)))

    def term(self, circuit: Circuit) -> Term:
        """Return the bool as a term; what nothing settles is left over."""
        if self.is_missing == FALSE:
            return boolean(self.true, self.false)
        rest = circuit.all_of((self.is_missing, -self.true, -self.false))
        term = boolean(self.true, self.false)
        for true, possible_true in ((self.may_be_true, outcomes.TRUE), (-self.may_be_true, 0)):
            for false, possible_false in ((self.may_be_false, outcomes.FALSE), (-self.may_be_false, 0)):
                leaf = MissingData(outcomes.ERROR | possible_true | possible_false)
                term += under(circuit, rest, [(circuit.all_of((true, false)), leaf)])
        return term


def conjunction(circuit: Circuit, operands: Sequence[Possible]) -> Possible:
    """`&&`: false settles it, and absorbs errors."""
    return Possible(
        circuit.all_of(operand.true for operand in operands),
        circuit.any_of(operand.false for operand in operands),
        circuit.all_of(operand.may_be_true for operand in operands),
        circuit.any_of(operand.may_be_false for operand in operands),
        circuit.any_of(operand.is_missing for operand in operands),
    )


def opposite(possible: Possible) -> Possible:
    """`!`."""
    true, false, may_be_true, may_be_false, is_missing = msgspec.structs.astuple(possible)
    return Possible(false, true, may_be_false, may_be_true, is_missing)
