"""SARIF 2.1.0, the static analysis interchange format that code hosts show beside the code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tierwall.core.catalogue import CATALOGUE
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Position
from tierwall.version import __version__


def diagnostics(found: Iterable[Diagnostic]) -> dict[str, Any]:
    """One run with the rules that were broken and a result a problem."""
    found = list(found)
    codes = sorted({one.code for one in found})
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
                "results": [_result(one, codes.index(one.code)) for one in found],
            }
        ],
    }


def _result(one: Diagnostic, rule: int) -> dict[str, Any]:
    text = one.message + (f" ({one.hint})" if one.hint else "")
    out: dict[str, Any] = {
        "ruleId": one.code,
        "ruleIndex": rule,
        "level": str(one.severity),
        "message": {"text": text},
        "locations": [_location(one.at)] if one.at else [],
    }
    related = [{**_location(at), "message": {"text": word}} for word, at in one.related if at is not None]
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
