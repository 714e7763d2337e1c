"""SARIF 2.1.0, the static analysis interchange format that code hosts show beside the code."""

from __future__ import annotations

from typing import Any

from tierwall.core.catalogue import CATALOGUE
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Position
from tierwall.render.findings import Checked
from tierwall.render.formats import View
from tierwall.version import __version__


def document(checked: Checked, view: View) -> dict[str, Any]:
    """One run with the rules that were broken and a result a problem."""
    findings = checked.findings
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
    out: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": str(finding.severity),
        "message": {"text": finding.told},
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
