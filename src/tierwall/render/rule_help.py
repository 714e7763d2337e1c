"""The help on a diagnostic code in SARIF: its passage of docs/diagnostics.md, and where that page is.

The page is part of the package, so code hosts show the text itself, with or without a way to the page.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from tierwall.core.catalogue import CATALOGUE

# The only place that says where the documentation is published.
PAGE = "https://tierwall.io/docs/diagnostics/"
_PASSAGE = re.compile(r"^### (TW\d{3}) [^\n]*\n(.*?)(?=^#|\Z)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]\n]*)\]\([^)\n]*\)")


def rule_help(code: str) -> dict[str, Any]:
    """Return the properties of a SARIF rule that explain a code. Links, relative to the page, become words."""
    words = _LINK.sub(r"\1", _passages()[code])
    return {"help": {"text": words, "markdown": words}, "helpUri": f"{PAGE}#{anchor(code)}"}


def anchor(code: str) -> str:
    """Return the anchor that MkDocs gives to the heading of a code."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", f"{code} {CATALOGUE[code].title}".lower()))


@cache
def _passages() -> dict[str, str]:
    page = (files("tierwall.render") / "diagnostics.md").read_text(encoding="utf-8")
    return {code: words.strip() for code, words in _PASSAGE.findall(page)}
