"""One object that a read shows, or that a deletecollection deletes, as conditions see it (docs/prove.md#changes).

A read is allowed only if the conditions allow every object that its selectors show. So a change opens a read only if
the conditions now allow an object that they did not allow before, and closes one only if the reverse is true.
"""

from __future__ import annotations

from tierwall.api.authorizers.expression import ENVIRONMENT
from tierwall.cel.syntax import ast
from tierwall.logic.cel.encoder import Encoder, Rails
from tierwall.logic.cel.open_outcome import OpenOutcomes
from tierwall.logic.cel.terms import Constant, Leaf
from tierwall.logic.cel.unknown import Shape, ValueKind
from tierwall.logic.unsupported import Unsupported, WorldLimit
from tierwall.proofs.api.request import UnknownRequest
from tierwall.proofs.api.request_shape import SHOWN

_NULL = Constant(None)
_ANY_OBJECT = Shape((ValueKind.NULL, ValueKind.MAP))


class SeenObject:
    """The object as variables of expressions, in one of the ways in which they see it.

    A condition with a part that has no translation may come out in any way, as a whole: a proof about a read takes it
    for an error.
    """

    def __init__(self, request: UnknownRequest, variables: dict[str, Leaf]) -> None:
        self._request = request
        self._circuit = request.circuit
        self._opened = request.opened or OpenOutcomes(request.circuit, {})
        self._variables: dict[str, Leaf] = {"request": request.request, "impersonatedRequest": _NULL, **variables}
        self._encoder = Encoder(request.world, ENVIRONMENT, self._variables)

    def rails(self, expression: ast.Expr) -> Rails:
        """Return when an expression is true and false of the object; `missing` where it depends on the object at all.

        Where it does not, it was decided without one.
        """
        bare = self._request.without_data(expression)
        if bare is None:
            return self._request.rails(expression)
        about = self._about(expression)
        choose = self._circuit.choose
        return Rails(
            choose(bare.missing, about.true, bare.true), choose(bare.missing, about.false, bare.false), bare.missing
        )

    def _about(self, expression: ast.Expr) -> Rails:
        # By what worlds blame: encoders without open outcomes have no number.
        error = self._opened.given_up.get((0, expression))
        if error is None:
            try:
                return self._encoder.rails(expression)
            except WorldLimit:
                raise
            except Unsupported as unsupported:
                error = unsupported
        possible = self._opened.outcome(expression, ENVIRONMENT, self._variables, {}, error)
        return Rails(possible.true, possible.false)


class SeenObjects:
    """One object in all ways: read, deleted, and deleted while an Allow may call it `object`."""

    def __init__(self, request: UnknownRequest) -> None:
        world, circuit = request.world, request.circuit
        shown = world.unknown("shown", SHOWN)
        namespace, options = (world.unknown(f"shown {name}", _ANY_OBJECT) for name in ("namespaceObject", "options"))
        given: dict[str, Leaf] = {"namespaceObject": namespace, "object": shown, "oldObject": _NULL}
        self.read = SeenObject(request, {**given, "operation": _NULL, "options": _NULL})
        deletion = {**given, "oldObject": shown, "operation": Constant("DELETE"), "options": options}
        self.deleted = SeenObject(request, {**deletion, "object": _NULL})
        self.named = SeenObject(request, deletion)
        # Whether the selectors contradict one another: then nothing is shown, which is always allowed.
        self.nothing = circuit.variable()
