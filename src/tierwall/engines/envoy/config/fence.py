"""A fence around each object: no failure of compiling one object reaches another (docs/semantics.md#running).

What an object compiles to is made inside the fence. If that raises, whatever it raises, the object is closed or left
out, and a diagnostic names it. Interrupts and exits pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.words import failure_words
from tierwall.resources.resource import Resource

NOT_COMPILED = "TW661"
T = TypeVar("T")


class ObjectFence:
    """Makes parts of a configuration, and keeps a failure with the object that the part is made for."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def guard(self, resource: Resource, consequence: str, make: Callable[[], T]) -> T | None:
        """Return what `make` makes for an object; None if it raises. A diagnostic then tells the consequence."""
        try:
            return make()
        except Exception as error:
            self.diagnostics.append(failure(resource, consequence, error))
            return None


def failure(resource: Resource, consequence: str, error: Exception) -> Diagnostic:
    """Return the diagnostic of an object that cannot be compiled, with the place in the code where it failed."""
    message = f"{resource.reference} cannot be compiled for Envoy: {consequence}; {failure_words(error)}"
    return resource.diagnostic(NOT_COMPILED, message)
