"""What an expression can still come to: true, false, another value, or an error (cel-spec, "Logical Operators").

A set of outcomes is a small int of four bits, and always errs on the large side: a bit that is not set is proven
impossible for every completion of the unknowns. `&&`, `||`, `!` and the condition of `?:` take a value that is not a
bool for an error, which `strict` says in bits.
"""

from __future__ import annotations

from typing import Final

TRUE: Final = 1
FALSE: Final = 2
ERROR: Final = 4
# A value that is not a bool.
OTHER: Final = 8

BOOL: Final = TRUE | FALSE | ERROR
VALUE: Final = OTHER | ERROR
ANY: Final = TRUE | FALSE | ERROR | OTHER

_WORDS: Final = ((TRUE, "true"), (FALSE, "false"), (ERROR, "error"), (OTHER, "other"))


def words(outcomes: int) -> tuple[str, ...]:
    """The outcomes by name, always in the same order."""
    return tuple(word for bit, word in _WORDS if outcomes & bit)


def strict(outcomes: int) -> int:
    """The outcomes where only a bool will do: what is not a bool is an error."""
    return (outcomes & ~OTHER) | ERROR if outcomes & OTHER else outcomes


def conjunction(operands: list[int]) -> int:
    """`&&`: false if any operand is, else an error if any is, else true."""
    every, some = ANY, 0
    for outcomes in operands:
        outcomes = strict(outcomes)
        every &= outcomes
        some |= outcomes
    return (every & TRUE) | (some & (FALSE | ERROR))


def disjunction(operands: list[int]) -> int:
    """`||`: true if any operand is, else an error if any is, else false."""
    every, some = ANY, 0
    for outcomes in operands:
        outcomes = strict(outcomes)
        every &= outcomes
        some |= outcomes
    return (every & FALSE) | (some & (TRUE | ERROR))


def negation(outcomes: int) -> int:
    """`!`: true and false change places."""
    outcomes = strict(outcomes)
    return (outcomes & ERROR) | (TRUE if outcomes & FALSE else 0) | (FALSE if outcomes & TRUE else 0)


def choice(condition: int, then: int, other: int) -> int:
    """`condition ? then : other`."""
    condition = strict(condition)
    return (condition & ERROR) | (then if condition & TRUE else 0) | (other if condition & FALSE else 0)


def of_value(value: object) -> int:
    """The one outcome of a value."""
    if value is True:
        return TRUE
    return FALSE if value is False else OTHER
