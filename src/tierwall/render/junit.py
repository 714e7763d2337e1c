"""JUnit XML, which every CI system reads: a test case a policy case, or a test case a checked file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from tierwall.core.diagnostics import Diagnostic, Diagnostics
from tierwall.policytest.report import CaseResult, TestReport
from tierwall.render.findings import Checked
from tierwall.render.formats import View
from tierwall.render.text import trace

# Characters that XML 1.0 cannot hold in any form.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def cases(results: Iterable[CaseResult], view: View) -> str:
    """The results of a test run; one suite for each PolicyTest."""
    report = TestReport(tuple(results))
    root = _root(len(report.cases), report.failed, report.skipped)
    suites: dict[tuple[str, str], list[CaseResult]] = {}
    for case in report.cases:
        suites.setdefault((case.file, case.test), []).append(case)
    for (file, test), members in suites.items():
        suite = _suite(root, test, members)
        for case in members:
            element = ElementTree.SubElement(suite, "testcase", name=_text(case.case), classname=_text(test))
            element.set("file", _text(file))
            if case.ok is None:
                ElementTree.SubElement(element, "skipped", message=_text(case.skipped))
            elif not case.ok:
                lines = [*case.mismatches, *([case.error] if case.error else [])]
                failure = ElementTree.SubElement(element, "failure", message=_text(lines[0] if lines else "failed"))
                steps = case.answer.steps if case.answer is not None else ()
                failure.text = _text("\n".join([*lines, *trace(steps)]))
    return _dump(root)


def findings(checked: Checked, view: View) -> str:
    """The problems of a check; one test case a file, failed by its errors and warnings."""
    by_file: dict[str, list[Diagnostic]] = {file: [] for file in checked.loaded.read.sources}
    for finding in checked.findings:
        by_file.setdefault(finding.at.file if finding.at else "", []).append(finding)
    failed = sum(bool(Diagnostics(members).serious) for members in by_file.values())
    root = _root(len(by_file), failed, 0)
    suite = ElementTree.SubElement(
        root, "testsuite", name="tierwall check", tests=str(len(by_file)), failures=str(failed), skipped="0"
    )
    for file, members in by_file.items():
        element = ElementTree.SubElement(suite, "testcase", name=_text(file or "input"), classname="tierwall.check")
        for finding in Diagnostics(members).serious:
            failure = ElementTree.SubElement(element, "failure", message=_text(finding.message), type=finding.code)
            failure.text = _text(f"{finding.at or ''} {finding.message} {finding.hint}".strip())
    return _dump(root)


def _root(tests: int, failures: int, skipped: int) -> ElementTree.Element:
    return ElementTree.Element(
        "testsuites", name="tierwall", tests=str(tests), failures=str(failures), skipped=str(skipped)
    )


def _suite(root: ElementTree.Element, name: str, members: Sequence[CaseResult]) -> ElementTree.Element:
    failures = sum(case.ok is False for case in members)
    skipped = sum(case.ok is None for case in members)
    return ElementTree.SubElement(
        root, "testsuite", name=_text(name), tests=str(len(members)), failures=str(failures), skipped=str(skipped)
    )


def _text(value: object) -> str:
    return _UNWRITABLE.sub("\ufffd", str(value))


def _dump(root: ElementTree.Element) -> str:
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode")
