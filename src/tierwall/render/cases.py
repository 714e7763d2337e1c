"""The results of policy tests (docs/policy-tests.md#output), as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tierwall.core.unprintable import PrintableLine, escape_unprintable
from tierwall.policytest.run import CaseResult, TestReport
from tierwall.render.formats import View
from tierwall.render.json import answer_document, non_empty
from tierwall.render.proofs import counterexample, result_document, summary
from tierwall.render.text import paint, trace


def text(results: Iterable[CaseResult], view: View) -> Iterator[str]:
    """Write one line for each case as it ends; below a failure the mismatches and the trace. Then the totals."""
    finished = []
    for result in results:
        finished.append(result)
        yield from _case(result, view)
    report = TestReport(tuple(finished))
    skipped = f", {report.skipped} skipped" if report.skipped else ""
    yield f"{report.passed} passed, {report.failed} failed{skipped}"


def _case(result: CaseResult, view: View) -> Iterator[str]:
    word = {True: "ok", False: "FAIL", None: "skip"}[result.ok]
    name = escape_unprintable(f"{result.test}: {result.case}")
    yield PrintableLine(f"{paint(f'{word:4}', word, view.colour)} {name}")
    if result.ok is None:
        yield f"       {result.skipped}"
    elif not result.ok:
        yield f"       at {result.file}" + (f":{result.line}" if result.line is not None else "")
        yield from (f"       {line}" for line in result.mismatches)
        if result.error:
            yield f"       error: {result.error}"
        if result.answer is not None:
            yield from (f"         {line}" for line in trace(result.answer.steps))
            if (shadow := getattr(result.answer.detail, "shadow", None)) is not None:
                yield f"         {shadow.sentence}"
    if result.proof is not None:
        yield from (f"       {line}" for line in summary(result.proof))
        if not result.ok:
            yield from counterexample(result.proof, view)


def document(results: Iterable[CaseResult], view: View) -> dict[str, Any]:
    """Return the document of `test -o json`."""
    report = TestReport(tuple(results))
    return {
        "passed": report.passed,
        "failed": report.failed,
        "skipped": report.skipped,
        "cases": [_document(case) for case in report.cases],
    }


def _document(case: CaseResult) -> dict[str, Any]:
    document: dict[str, Any] = {"file": case.file, "test": case.test, "case": case.case, "ok": case.ok}
    document["got"] = answer_document(case.answer) if case.answer is not None else {}
    if case.proof is not None:
        document["got"] = result_document(case.proof)
    document["want"] = dict(case.expect)
    return document | non_empty(
        skipped=case.skipped, mismatches=list(case.mismatches) or None, error=case.error, line=case.line
    )
