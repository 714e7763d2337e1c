"""What a plane and an engine are: who calls each method, and what may be absent.

A plane answers questions; its `question` module is the plane. An engine makes something else obey the same policies:
the kernel, Envoy, an API server. Both are found by name in one table (`policytest.planes`, `engines.table`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from tierwall.core.answer import Answer
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.expectation import Expectation
from tierwall.core.question import Question

S = TypeVar("S", contravariant=True)
C = TypeVar("C")


class Plane(Protocol[S]):
    """A module that answers one kind of question about a snapshot `S`."""

    # The question class; commands, the library and policy tests make their questions with it.
    QUESTION: type[Question]
    # The keys of `expect` beside `verdict`, `decidedBy` and `notConsidered`; read by policy tests.
    EXPECTATIONS: Mapping[str, Expectation]

    def ask(self, snapshot: S, question: Any, problems: Iterable[Diagnostic] = ()) -> Answer:
        """Answer a question. InputError names everything wrong with it, after `problems` that the caller found."""


class Engine(Protocol[S, C]):
    """Something that enforces what the planes decide. What an engine cannot do raises InputError."""

    def compile(self, snapshot: S) -> C:
        """The engine's own configuration; pure. Called by `compile`, by `follow` and before `apply`."""

    def apply(self, compiled: C) -> None:
        """Bring a configuration into force, wholly or not at all. Called by `enforce --once` and by `follow`."""

    def follow(self, sources: Iterable[S]) -> None:
        """Keep the last good state in force while sources change. Called by `run`, `enforce` and `authorizer`."""

    def ask(self, snapshot: S, questions: Iterable[Question]) -> Iterator[Answer]:
        """Let the real engine answer. Called by `test --engine`; absent where nothing can be asked."""

    def audit(self) -> Iterator[Mapping[str, Any]]:
        """What the engine reports of its own decisions, as they happen. Called by `audit` and the decision log."""
