"""Sorts findings into those that `tierwall check` reports and those that are accepted (docs/adopting.md).

Findings are accepted by a comment or an annotation, then by a baseline. What an older state of the objects has too is
known. Every accepted finding is counted and kept: nothing is silenced without a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from tierwall.analyze.checks import check, concerns
from tierwall.core.diagnostics import Diagnostic, Diagnostics, sorted_diagnostics
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.analyze.baseline import BaselineSearch, BaselineSet
    from tierwall.analyze.ignores import IgnoreIndex
    from tierwall.core.protocols import Progress


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


class FindingSelection(Struct, frozen=True):
    """Chooses findings by code, or the start of one, and by namespace. What cannot be read is chosen in any case."""

    codes: tuple[str, ...] | None = None
    ignored: tuple[str, ...] = ()
    namespace: str | None = None

    def has(self, finding: Diagnostic) -> bool:
        """Whether a finding is chosen."""
        code = finding.code
        is_wanted = (self.codes is None or code.startswith(self.codes)) and not code.startswith(self.ignored)
        return (is_wanted or finding.unreadable) and (self.namespace is None or concerns(finding, self.namespace))


def all_findings(
    snapshot: Snapshot,
    noticed: Iterable[Diagnostic],
    namespace: str | None = None,
    progress: Progress | None = None,
) -> Iterator[Diagnostic]:
    """Yield what was noticed while reading, and what the checks find; `namespace` as in `check`."""
    noticed = tuple(noticed)
    yield from noticed
    # Admission repeats, in the words of an API server, that a name is not a string.
    wrong_names = {finding.at for finding in noticed if finding.code == "TW016"}
    for finding in check(snapshot, progress, namespace):
        if finding.code != "TW103" or finding.at not in wrong_names:
            yield finding


def review(
    findings: Iterable[Diagnostic],
    ignored: IgnoreIndex,
    selection: FindingSelection,
    *,
    baseline: BaselineSet | None = None,
    before: BaselineSet | None = None,
) -> ReviewResult:
    """Sort findings into those to report and those that are accepted or known.

    What a comment accepts counts as used even if it is not selected. The view of one namespace is not all there is to
    find, so nothing is said about comments and lines that accept nothing there.
    """
    selected, whole = selection.has, selection.namespace is None
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
