"""JUnit XML, which every CI system reads: one test case for each policy case, or for each checked file or cluster."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.unprintable import escape_unprintable
from tierwall.policytest.run import CaseResult
from tierwall.render.findings import CheckResult
from tierwall.render.formats import View
from tierwall.render.proofs import counterexample, summary
from tierwall.render.text import trace


def cases(results: Iterable[CaseResult], view: View) -> str:
    """Write the results of a test run, with one suite for each PolicyTest."""
    suites: dict[tuple[str, str], list[Element]] = {}
    for case in results:
        element = Element(
            "testcase", name=_writable(case.case), classname=_writable(case.test), file=_writable(case.file)
        )
        if case.ok is None:
            SubElement(element, "skipped", message=_writable(case.skipped))
        elif not case.ok:
            lines = [*case.mismatches, *([case.error] if case.error else [])]
            failure = SubElement(element, "failure", message=_writable(lines[0] if lines else "failed"))
            steps = case.answer.steps if case.answer is not None else ()
            proof = [] if case.proof is None else [*summary(case.proof), *counterexample(case.proof, view)]
            failure.text = "\n".join(map(_writable, [*lines, *trace(steps), *proof]))
        suites.setdefault((case.file, case.test), []).append(element)
    return _document((test, members) for (_, test), members in suites.items())


def findings(checked: CheckResult, view: View) -> str:
    """Write the findings of a check, with a test case for each file and the cluster; what `--fail-on` says fails it."""
    places = [checked.loaded.cluster, *checked.loaded.read.sources]
    by_file: dict[str, list[Diagnostic]] = {place: [] for place in places if place}
    chosen = checked.shown
    more = dict(chosen.more)
    for finding in chosen.diagnostics.at_least(checked.fail_on):
        by_file.setdefault(finding.at.file if finding.at else "", []).append(finding)
    members = []
    for file, diagnostics in by_file.items():
        element = Element("testcase", name=_writable(file or "input"), classname="tierwall.check")
        for finding in diagnostics:
            failure = SubElement(element, "failure", message=_writable(finding.message), type=finding.code)
            place = f"{finding.at}{':' if finding.at.is_in_cluster else ''} " if finding.at else ""
            failure.text = _writable(f"{place}{finding.message_with_hint}")
        if number := more.pop(file, 0):
            SubElement(element, "system-out").text = f"and {number:,} more"
        members.append(element)
    return _document([("tierwall check", members)])


def _document(suites: Iterable[tuple[str, list[Element]]]) -> str:
    """Write test cases by suite, with the number of cases, failures and skips."""
    root = Element("testsuites", name="tierwall")
    for name, members in suites:
        suite = SubElement(root, "testsuite", {"name": _writable(name), **_counts(members)})
        suite.extend(members)
    root.attrib |= _counts(root.findall("testsuite/testcase"))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode")


def _counts(cases: list[Element]) -> dict[str, str]:
    failures, skipped = (sum(case.find(tag) is not None for case in cases) for tag in ("failure", "skipped"))
    return {"tests": str(len(cases)), "failures": str(failures), "skipped": str(skipped)}


def _writable(value: object) -> str:
    """Return a text from input on one line, without characters that XML 1.0 cannot represent."""
    return escape_unprintable(str(value))
