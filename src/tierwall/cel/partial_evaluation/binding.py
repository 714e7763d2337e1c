"""Macros that bind one value: `cel.bind`, `optMap` and `optFlatMap` (cel-go ext/bindings.go, cel/library.go).

A known value is put in the place of its name throughout the body; an unknown one keeps the macro.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierwall.cel.ast import Bind, Call, Ident
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.partial_evaluation.residual import Failed, Residual, Result
from tierwall.cel.partial_evaluation.signature import certain
from tierwall.cel.values import NONE, OptionalValue, no_such_overload

if TYPE_CHECKING:
    from tierwall.cel.partial_evaluation.specialiser import Frame, Run, Scope, Specialiser


def binding(own: Specialiser, node: Bind, scope: Scope, boolean: bool) -> Run:
    """The function of a binding macro."""
    boolean = boolean and node.macro == "bind"
    value = own.stage(node.value, scope)
    inside = scope.bind((node.variable,), True)
    closed = own.later(node.body, inside, boolean)
    opened = own.later(node.body, scope.bind((node.variable,), False), boolean)
    key = inside.variables[node.variable]
    assert key is not None
    known = certain(own.static(node))

    def run(frame: Frame) -> Result:
        result = value(frame)
        if isinstance(result, Failed):
            return result
        if isinstance(result, Residual):
            result, body = own.fit(node.value, result), own.write(node.body, opened(frame))
            size = result.size + body.size + len(node.variable) + len(node.macro) + 4
            own.bound(size)
            can = outcomes.VALUE
            if node.macro == "bind":
                can = body.can | (result.can & outcomes.ERROR)
            elif node.macro == "optFlatMap":
                # Without a check the body may be anything, and is taken as it is.
                can |= body.can
            return Residual(Bind(node.macro, node.variable, result.expr, body.expr, node.at), can, size, known)
        if node.macro == "bind":
            frame[key] = result
            return closed(frame)
        if type(result) is not OptionalValue:
            return Failed(str(no_such_overload(node.macro, result)))
        if not result.present:
            return NONE
        frame[key] = result.value
        inner = closed(frame)
        if node.macro == "optMap":
            if isinstance(inner, Residual):
                inner = own.fit(node.body, inner)
                made = Call("of", Ident("optional"), (inner.expr,))
                return Residual(made, outcomes.OTHER | (inner.can & outcomes.ERROR), inner.size + 13, known)
            return inner if isinstance(inner, Failed) else OptionalValue(inner)
        return inner

    return run
