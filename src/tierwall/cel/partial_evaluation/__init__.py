"""Partial evaluation: what is left of an expression when only some of its variables are known (KEP-5681).

>>> from tierwall.cel.syntax.parser import parse
>>> policy = parse('request.verb == "create" && object.x == request.name')
>>> partial(policy, {"request": {"verb": "create", "name": "n"}}, ["object"]).text
'object.x == "n"'

The residual names no known variable and, for every completion of the unknowns, gives what the original gives: the same
value, or an error where the original has one.
"""

from __future__ import annotations

from tierwall.cel.partial_evaluation.entry_points import (
    PartialResult,
    SpecialisedExpression,
    partial,
    partial_report,
    partial_well_typed,
    specialise,
)
from tierwall.cel.partial_evaluation.outcomes import PartialError

__all__ = [
    "PartialError",
    "PartialResult",
    "SpecialisedExpression",
    "partial",
    "partial_report",
    "partial_well_typed",
    "specialise",
]
