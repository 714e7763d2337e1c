"""Sorts findings into those that `tierwall check` reports and those that are accepted (docs/adopting.md).

Findings are accepted by a comment or an annotation, then by a baseline. What an older state of the objects has too is
known. Every accepted finding is counted and kept: nothing is silenced without a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic, Diagnostics, sorted_diagnostics

if TYPE_CHECKING:
    from tierwall.analyze.baseline import BaselineSearch, BaselineSet
    from tierwall.analyze.ignores import IgnoreIndex


class AcceptedFinding(Struct, frozen=True):
    """A finding that is not reported: `by` is `comment`, `annotation` or `baseline`; the first two have a reason.

    A finding that nothing accepts has no `by`.
    """

    finding: Diagnostic
    by: str = ""
    reason: str = ""


class ReviewResult(Struct, frozen=True):
    """The findings to report, the accepted ones, and those that an older state of the objects has too."""

    findings: Diagnostics
    accepted: tuple[AcceptedFinding, ...] = ()
    known: Diagnostics = Diagnostics()


def review(
    findings: Iterable[Diagnostic],
    ignored: IgnoreIndex,
    selected: Callable[[Diagnostic], bool],
    baseline: BaselineSet | None = None,
    before: BaselineSet | None = None,
    *,
    whole: bool = True,
) -> ReviewResult:
    """Sort findings into those to report and those that are accepted or known.

    `selected` chooses findings; what a comment accepts counts as used even if it is not selected. Unless the findings
    are the `whole` of what there is to find, nothing is said about comments and lines that accept nothing.
    """
    accepted: list[AcceptedFinding] = []
    left: list[Diagnostic] = []
    for finding in sorted_diagnostics(findings):
        entry = ignored.accepting(finding)
        if entry is None:
            left.append(finding)
        elif selected(finding):
            accepted.append(AcceptedFinding(finding, entry.by, entry.reason))
    left += ignored.problems
    if whole:
        left += ignored.unused()
    accepting, knowing = _search(baseline), _search(before)
    reported: list[Diagnostic] = []
    known: list[Diagnostic] = []
    for finding in left:
        if accepting is not None and accepting.accepts(finding):
            if selected(finding):
                accepted.append(AcceptedFinding(finding, "baseline"))
        elif knowing is not None and knowing.accepts(finding):
            if selected(finding):
                known.append(finding)
        elif selected(finding):
            reported.append(finding)
    if accepting is not None and whole:
        reported += filter(selected, accepting.gone_findings())
    return ReviewResult(sorted_diagnostics(reported), tuple(accepted), Diagnostics(known))


def _search(baseline: BaselineSet | None) -> BaselineSearch | None:
    if baseline is None:
        return None
    from tierwall.analyze.baseline import BaselineSearch  # most checks have no baseline

    return BaselineSearch(baseline)
