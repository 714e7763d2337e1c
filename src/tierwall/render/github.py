"""GitHub workflow commands: each problem becomes an annotation on the changed line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.core.diagnostics import Diagnostic

_WORDS = {"error": "error", "warning": "warning", "note": "notice"}


def diagnostics(findings: Iterable[Diagnostic]) -> Iterator[str]:
    """`::error file=…,line=…,col=…,title=…::message`, escaped as the runner reads it."""
    for finding in findings:
        where = []
        if finding.at is not None:
            where = [f"file={_property(finding.at.file)}", f"line={finding.at.line}", f"col={finding.at.column}"]
        attributes = ",".join([*where, f"title={_property(finding.code)}"])
        text = finding.message + (f" ({finding.hint})" if finding.hint else "")
        yield f"::{_WORDS[finding.severity]} {attributes}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
