"""The protocols of planes and engines: who calls each method, and what may be absent.

A plane answers questions; its `question` module is the plane. An engine makes something else obey the same policies:
the kernel, Envoy, an API server. Both are found by name in a table (`planes`, `engines.table`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import msgspec

from tierwall.core.answer import Answer, Decider
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.expectation import Expectation
from tierwall.core.question import Question
from tierwall.core.verdict import StepVerdict

# Called during long work with the current activity, the amount done, and the total.
Progress: TypeAlias = Callable[[str, int, int], None]

SnapshotT = TypeVar("SnapshotT", contravariant=True)
SourceT = TypeVar("SourceT", contravariant=True)
ConfigurationT = TypeVar("ConfigurationT", covariant=True)


class Plane(Protocol[SnapshotT]):
    """A module that answers one kind of question about a snapshot `SnapshotT`."""

    # The question class. Commands, the library and policy tests make their questions with it.
    QUESTION: type[Question]
    # The keys of `expect` in policy tests besides `verdict`, `decidedBy` and `notConsidered`.
    EXPECTATIONS: Mapping[str, Expectation]

    def ask(self, snapshot: SnapshotT, question: Any, problems: Iterable[Diagnostic] = ()) -> Answer:
        """Answer a question. Raise InputError with all its problems, after the `problems` that the caller found."""


class EngineReply(msgspec.Struct, frozen=True):
    """An engine's reply to one question: an answer, or why it was not asked, or what went wrong."""

    answer: Answer | None = None
    skipped: str = ""
    error: str = ""
    # The parts of an answer that the engine does not show, by key of `expect` or by field, each with the reason.
    unasked: Mapping[str, str] = {}


class EngineReport(msgspec.Struct, frozen=True):
    """A sentence about what an engine did, and its diagnostics; `read` has the source texts of the diagnostics."""

    summary: str
    diagnostics: tuple[Diagnostic, ...] = ()
    read: Any = None


class DecisionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that an engine made, and the rules behind it (docs/enforce-network.md#audit, docs/run.md).

    An `Answer` says how a question would be decided; an event says what an engine did. `render` writes events for the
    audit trail and the decision log.
    """

    plane: str
    time: datetime
    verdict: StepVerdict
    decided_by: tuple[Decider, ...]
    # Only a policy in shadow mode decided this, so nothing was done.
    shadow: bool = False
    # The fields that only this plane has.
    detail: Any = None


class Engine(Protocol[SnapshotT, SourceT, ConfigurationT]):
    """Enforces the policies of a snapshot `SnapshotT`, or of a source of objects `SourceT`.

    An engine subclasses this and overrides the methods that it supports; the others raise NotImplementedError. The
    table of engines says which commands offer an engine, so that no command calls an absent method.
    """

    # The planes whose questions it answers. Policy tests skip the others.
    planes: ClassVar[tuple[str, ...]]

    def compile(self, snapshot: SnapshotT) -> ConfigurationT:
        """Return the engine's configuration; pure. Called by `compile`."""
        raise _absent(self, "compile")

    def apply(self, source: SourceT) -> EngineReport:
        """Bring all policies into force, or none. Called by `enforce`; absent if a process has to keep running."""
        raise _absent(self, "apply")

    def follow(self, source: SourceT, send_report: Callable[[EngineReport], None]) -> None:
        """Keep the last good state in force until a signal. Called by `enforce --watch`, `run` and `authorizer`."""
        raise _absent(self, "follow")

    def ask(self, snapshot: SnapshotT, questions: Sequence[Question]) -> Iterator[EngineReply]:
        """Yield one reply of the real engine for each question of its planes. Called by `test --engine`."""
        raise _absent(self, "ask")

    def limits(self, snapshot: SnapshotT) -> Iterable[Diagnostic]:
        """Return what the engine cannot enforce as it is written. Called by `test --engine`."""
        return ()

    def audit(self, seconds: float | None = None) -> Iterator[DecisionEvent]:
        """Yield the decisions of the engine as they happen. Called by `audit`; absent if `follow` logs decisions."""
        raise _absent(self, "audit")


def _absent(engine: object, method: str) -> NotImplementedError:
    return NotImplementedError(f"{type(engine).__name__} has no `{method}`")
