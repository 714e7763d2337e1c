"""Which overloads a call may reach, and what it gives (cel-go 0.29, checker/checker.go, `resolveOverload`).

Every overload that fits the arguments counts; where their results differ the call gives dyn. What calls on types
without variables give is the same each time, and is remembered in the environment.
"""

from __future__ import annotations

from tierwall.cel.environment import Environment, Function, Signature
from tierwall.cel.table import Overload
from tierwall.cel.types import DYN, Param, Type
from tierwall.cel.unify import Bindings, instantiate, is_ground

Outcome = tuple[Type, tuple[Overload, ...]]

# Calls remembered in one environment before the memory is emptied.
_REMEMBERED = 4096


class Inference:
    """Type variables and overloads, within the check of one expression."""

    __slots__ = ("_counter", "bindings", "environment", "open")

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.bindings = Bindings()
        # Whether a type with a variable has been given to any node.
        self.open = False
        self._counter = 0

    def _variable(self) -> Type:
        self._counter += 1
        return Param(f"_{self._counter}")

    def free(self) -> Type:
        """A new type variable, such as the element type of `[]`."""
        self.open = True
        return self._variable()

    def assign(self, given: Type, wanted: Type) -> bool:
        """Whether `given` fits where `wanted` is expected."""
        return given is wanted or self.bindings.fits((given,), (wanted,))

    def settled(self, given: Type) -> Type:
        """`given` with what is known of its variables by now."""
        return self.bindings.substitute(given) if self.open else given

    def shown(self, given: Type) -> Type:
        """`given` as a message shows it."""
        return self.bindings.resolve(given)

    def apply(self, function: Function, candidates: tuple[Signature, ...], given: tuple[Type, ...]) -> Outcome | None:
        """The type of a call and the overloads behind it, or None where none fits."""
        closed = not self.open or all(map(is_ground, given))
        if not closed:
            return self._fitting(candidates, given)
        remembered = self.environment.known_calls
        key = (function.name, candidates is function.members, given)
        known = remembered.get(key)
        if known is None:
            known = self._fitting(candidates, given)
            if known is not None and is_ground(known[0]):
                if len(remembered) >= _REMEMBERED:
                    remembered.clear()
                remembered[key] = known
        return known

    def _fitting(self, candidates: tuple[Signature, ...], given: tuple[Type, ...]) -> Outcome | None:
        result: Type | None = None
        fitting: list[Overload] = []
        for signature in candidates:
            overload = signature.overload
            if len(overload.params) != len(given):
                continue
            params, outcome = overload.params, overload.result
            if signature.variables:
                fresh = {name: self._variable() for name in signature.variables}
                params = tuple([instantiate(fresh, param) for param in params])
                outcome = instantiate(fresh, outcome)
            if not self.bindings.fits(given, params):
                continue
            fitting.append(overload)
            outcome = self.bindings.substitute(outcome)
            if result is None:
                result = outcome
            elif result.name != "dyn" and result != outcome:
                result = DYN
        if result is None:
            return None
        if not is_ground(result):
            self.open = True
        return result, tuple(fitting)
