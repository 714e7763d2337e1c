"""Expressions of a proof, `where` and `assume.objects`: they must be bool, about variables that there are.

A region by an expression that always fails would be empty, and every claim about it proved. Where the expressions of
policies are checked, these are, too; elsewhere what fails is their own affair, as it is in policies.
"""

from __future__ import annotations

from tierwall.cel.check.checker import UNDECLARED, check
from tierwall.cel.environment import Environment
from tierwall.cel.errors import CheckError, ParseError
from tierwall.cel.syntax.ast import Expr
from tierwall.cel.types import BOOL, DYN
from tierwall.proofs.reader import ProofReader, shown


def read_expression(
    value: object, key: str, environment: Environment, reader: ProofReader, *, is_checked: bool = False
) -> Expr | None:
    """Read an expression. Everything wrong with it is noted."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        reader.refuse(f"expected an expression as `{key}`, found {shown(value)}")
        return None
    try:
        tree = environment.parse(value)
    except ParseError as error:
        reader.refuse(f"`{key}` is not a CEL expression: {error.message}")
        return None
    try:
        result_type = check(tree, environment, value).type
    except CheckError as error:
        for problem in error.problems:
            if is_checked or problem.message.startswith(UNDECLARED):
                reader.refuse(f"`{key}` cannot be used: {problem.message}", problem.hint or "")
        return tree
    if result_type not in (BOOL, DYN):
        reader.refuse(
            f"expected an expression of type bool as `{key}`, found {result_type}", "compare it with something"
        )
    return tree
