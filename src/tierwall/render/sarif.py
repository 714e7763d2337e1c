"""SARIF 2.1.0, the static analysis interchange format that code hosts show beside the code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tierwall.core.catalogue import CATALOGUE
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Position
from tierwall.version import __version__


def diagnostics(findings: Iterable[Diagnostic]) -> dict[str, Any]:
    """One run with the rules that were broken and a result a problem."""
    findings = list(findings)
    codes = sorted({finding.code for finding in findings})
    rules = [
        {
            "id": code,
            "name": CATALOGUE[code].title,
            "shortDescription": {"text": CATALOGUE[code].title},
            "defaultConfiguration": {"level": str(CATALOGUE[code].severity)},
        }
        for code in codes
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "tierwall", "version": __version__, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, codes.index(finding.code)) for finding in findings],
            }
        ],
    }


def _result(finding: Diagnostic, rule: int) -> dict[str, Any]:
    text = finding.message + (f" ({finding.hint})" if finding.hint else "")
    out: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": str(finding.severity),
        "message": {"text": text},
        "locations": [_location(finding.at)] if finding.at else [],
    }
    related = [{**_location(at), "message": {"text": word}} for word, at in finding.related if at is not None]
    if related:
        out["relatedLocations"] = related
    return out


def _location(position: Position) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": position.file.replace("\\", "/")},
            "region": {"startLine": position.line, "startColumn": position.column},
        }
    }
