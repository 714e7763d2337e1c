"""Constructs that a proof cannot express, and their places. One makes the proof Unknown, never true or false."""

from __future__ import annotations


class Unsupported(Exception):
    """A construct outside what proofs can express, or a limit. `at` is its offset in the expression, if it has one."""

    def __init__(self, construct: str, at: int = -1) -> None:
        self.construct = construct
        self.at = at
        super().__init__(construct)
