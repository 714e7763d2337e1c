"""What came of a run of policy tests (docs/policy-tests.md#output)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct

from tierwall.core.answer import Answer


class CaseResult(Struct, frozen=True, kw_only=True):
    """One case: `ok` is None where the engine could not ask it, and `skipped` says why."""

    file: str
    test: str
    case: str
    ok: bool | None
    answer: Answer | None
    expect: Mapping[str, Any]
    # What of the expectation does not hold.
    mismatches: tuple[str, ...] = ()
    # What is wrong with the question or the expectation itself, or what the engine failed at.
    error: str = ""
    skipped: str = ""
    # Where a case that is not ok is written.
    line: int | None = None


class TestReport(Struct, frozen=True):
    """All cases of a run, in order."""

    # The name is part of the public API; pytest must not take the class for a test.
    __test__: ClassVar[bool] = False

    cases: tuple[CaseResult, ...]

    @property
    def passed(self) -> int:
        """How many cases hold."""
        return sum(case.ok is True for case in self.cases)

    @property
    def failed(self) -> int:
        """How many do not."""
        return sum(case.ok is False for case in self.cases)

    @property
    def skipped(self) -> int:
        """How many could not be asked; they count as neither."""
        return sum(case.ok is None for case in self.cases)
