"""What a plane and an engine are: who calls each method, and what may be absent.

A plane answers questions; its `question` module is the plane. An engine makes something else obey the same policies:
the kernel, Envoy, an API server. Both are found by name in one table (`planes`, `engines.table`).
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

# Long work tells it what is being done, how much of it is done, and how much there is; nobody has to listen.
Progress: TypeAlias = Callable[[str, int, int], None]

S = TypeVar("S", contravariant=True)
Source = TypeVar("Source", contravariant=True)
C = TypeVar("C", covariant=True)


class Plane(Protocol[S]):
    """A module that answers one kind of question about a snapshot `S`."""

    # The question class; commands, the library and policy tests make their questions with it.
    QUESTION: type[Question]
    # The keys of `expect` beside `verdict`, `decidedBy` and `notConsidered`; read by policy tests.
    EXPECTATIONS: Mapping[str, Expectation]

    def ask(self, snapshot: S, question: Any, problems: Iterable[Diagnostic] = ()) -> Answer:
        """Answer a question. InputError names everything wrong with it, after `problems` that the caller found."""


class EngineReply(msgspec.Struct, frozen=True):
    """What an engine said to one question: an answer, or why it was not asked, or what went wrong."""

    answer: Answer | None = None
    skipped: str = ""
    error: str = ""


class EngineReport(msgspec.Struct, frozen=True):
    """What an engine did, and what was noticed on the way; `read` has the texts that diagnostics point into."""

    words: str
    diagnostics: tuple[Diagnostic, ...] = ()
    read: Any = None


class DecisionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that an engine made, and who made it so (docs/enforce-network.md#audit, docs/run.md).

    An `Answer` says how a question would be decided; an event says what an engine did. `render` writes it down, for the
    audit trail and the decision log.
    """

    plane: str
    time: datetime
    verdict: StepVerdict
    decided_by: tuple[Decider, ...]
    # Only a policy in shadow mode says so, and nothing was done.
    shadow: bool = False
    # What only this plane has.
    detail: Any = None


class Engine(Protocol[S, Source, C]):
    """Something that enforces the policies of a snapshot `S`, or of what a `Source` of objects holds.

    An engine subclasses this and overrides what it can do. The rest is absent and raises NotImplementedError; the table
    says which commands offer an engine, so that nobody is offered what is absent.
    """

    # The planes whose questions it takes. Policy tests skip the others.
    planes: ClassVar[tuple[str, ...]]

    def compile(self, snapshot: S) -> C:
        """The engine's own configuration; pure. Called by `compile`."""
        raise _absent(self, "compile")

    def apply(self, source: Source) -> EngineReport:
        """Bring policies into force, wholly or not at all. Called by `enforce`; absent where a process must stay."""
        raise _absent(self, "apply")

    def follow(self, source: Source, tell: Callable[[EngineReport], None]) -> None:
        """Keep the last good state in force until a signal comes. Called by `enforce --watch`, `run`, `authorizer`."""
        raise _absent(self, "follow")

    def ask(self, snapshot: S, questions: Sequence[Question]) -> Iterator[EngineReply]:
        """Let the real engine answer, one reply for each question of its planes. Called by `test --engine`."""
        raise _absent(self, "ask")

    def audit(self, seconds: float | None = None) -> Iterator[DecisionEvent]:
        """What the engine decides, as it happens. Called by `audit`; absent where `follow` logs its decisions."""
        raise _absent(self, "audit")


def _absent(engine: object, method: str) -> NotImplementedError:
    return NotImplementedError(f"{type(engine).__name__} has no `{method}`")
