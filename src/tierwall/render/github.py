"""GitHub workflow commands: each problem becomes an annotation on the changed line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.core.diagnostics import Diagnostic

_WORDS = {"error": "error", "warning": "warning", "note": "notice"}


def diagnostics(found: Iterable[Diagnostic]) -> Iterator[str]:
    """`::error file=…,line=…,col=…,title=…::message`, escaped as the runner reads it."""
    for one in found:
        where = []
        if one.at is not None:
            where = [f"file={_property(one.at.file)}", f"line={one.at.line}", f"col={one.at.column}"]
        attributes = ",".join([*where, f"title={_property(one.code)}"])
        text = one.message + (f" ({one.hint})" if one.hint else "")
        yield f"::{_WORDS[one.severity]} {attributes}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
