"""Constructs that a proof cannot express, and their places. One makes the proof Unknown, never true or false."""

from __future__ import annotations


class Unsupported(Exception):
    """A construct outside what proofs can express, or a limit. `at` is its offset in the expression, if it has one."""

    def __init__(self, construct: str, at: int = -1) -> None:
        self.construct = construct
        self.at = at
        super().__init__(construct)


class WorldLimit(Unsupported):
    """A limit of the whole question. It is nobody's fault alone, so expressions are blamed by what they ask for.

    `unknowns` are the numbers of those that the limit is about; none if it is the size of everything.
    """

    def __init__(self, construct: str, unknowns: tuple[int, ...] = ()) -> None:
        super().__init__(construct)
        self.unknowns = unknowns
