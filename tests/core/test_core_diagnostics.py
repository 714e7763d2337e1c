from __future__ import annotations

import difflib
import re
from typing import Any

import pytest

from tests import ROOT
from tierwall.core.catalogue import CATALOGUE
from tierwall.core.diagnostics import Diagnostic, near_miss, sorted_diagnostics
from tierwall.core.source import Position

DOCS = ROOT / "docs" / "diagnostics.md"


def test_every_code_has_its_heading_in_the_documentation_and_no_heading_lacks_a_code() -> None:
    headings = re.findall(r"^### (TW\d{3}) (.+)$", DOCS.read_text(), re.MULTILINE)
    assert [code for code, _ in headings] == sorted(code for code, _ in headings)
    assert dict(headings) == {code: entry.title for code, entry in CATALOGUE.items()}


def test_diagnostics_are_sorted_by_place_and_repeats_dropped() -> None:
    late = Diagnostic("TW101", "b", Position("b.yaml", 1, 1))
    early = Diagnostic("TW102", "a", Position("a.yaml", 10, 1))
    first = Diagnostic("TW102", "a", Position("a.yaml", 9, 1))
    assert sorted_diagnostics([late, early, first, early]) == (first, early, late)


def test_a_near_miss_is_named_and_a_far_one_is_not() -> None:
    assert near_miss("namespaceSeletor", ["namespaceSelector", "podSelector"]) == "did you mean `namespaceSelector`?"
    assert near_miss("MATCHLABELS", ["matchLabels"]) == "did you mean `matchLabels`?"
    assert near_miss("zzz", ["namespaceSelector"]) == ""


def test_thousands_of_mistakes_among_thousands_of_words_do_not_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    closest = difflib.get_close_matches

    def counted(word: str, known: list[str], **options: Any) -> list[str]:
        compared.append(len(known))
        return closest(word, known[:10], **options)

    now = [1_000_000.0]
    monkeypatch.setattr(difflib, "get_close_matches", counted)
    monkeypatch.setattr("tierwall.core.diagnostics.time.monotonic", lambda: now[0])
    words = [f"gateway-{number}" for number in range(3_000)]
    hints = [near_miss(f"gatewax-{number}", words) for number in range(5_000)]
    assert hints[0]
    assert not hints[-1]
    assert sum(compared) <= 100_000
    assert near_miss("gatewax", ["gateway"]), "among few words a hint is always looked for"
    now[0] += 11
    assert near_miss("gatewax-1", words)
