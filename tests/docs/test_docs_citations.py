"""Every citation of a page in code, tests and examples leads to a heading, and so does every link between pages.

The rules are in the repository (docs/semantics.md). A citation that readers cannot open fails here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests import ROOT
from tierwall.core.answer import Reason

DOCS = ROOT / "docs"
FOLDERS = ("src", "tests", "bench", "deploy", "docs", "examples", "supply")
READABLE = {".py", ".md", ".yaml", ".yml", ".toml", ".lua", ".sh", ".jsonl", ".json", ".html", ".go", ""}
# Generated from the schemas, with the words of the APIs.
GENERATED = DOCS / "reference" / "kinds"

CITATION = re.compile(r"\bdocs/(?P<page>[\w./-]+?\.md)(?:#(?P<anchor>[\w-]+))?(?P<quoted>, [\"“])?")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(?P<words>.+?) *$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)

# Former citations of texts outside the repository. Published texts are cited by name.
OUTSIDE = (
    r"\bsettled semantics\b",
    r"\b[Dd]ecisions?, (?:network|tool|gateway|api|running|API)\b",
    r"\b(?:the|this|of|as) [Cc]ontract\b|\b[Cc]ontracts?, (?:sections? )?[\d(]|\([Cc]ontract\b",
    r"\([Dd]esign\b|\b[Dd]esign, (?:section|\")|\bdesign\.md\b",
    r"\b[Ss]eeds? 0\d\d\b|\bseeds/",
    r"(?<![\w-])R\d{1,3}\b|\br\d{2,3} [a-z]|\bchecklist\b",
    r"\b(?:agentgateway|AccessPolicy|Envoy|MCP|CEL) reference,|\(reference, \d",
    r"\bshared/(?:reference|contracts)\b|\bcontracts/[\w-]+\.md\b",
    r"\bdef test_\d+_|\b(?:network|tool|gateway|api)(?: plane)? \d+ (?:to|and) \d+\b",
)


class Citation(NamedTuple):
    """A cited page, perhaps with an anchor, and the place that cites it."""

    where: str
    page: str
    anchor: str
    # Whether the heading is quoted instead of cited by its anchor.
    quoted: bool = False


def files() -> list[Path]:
    """Return all files that people read."""
    folders = (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*")))
    names = [*ROOT.glob("*"), *folders]
    return [file for file in names if file.suffix in READABLE and file.is_file() and GENERATED not in file.parents]


@cache
def anchors(page: str) -> frozenset[str]:
    """Return the anchors that MkDocs makes from the headings of a page under docs/."""
    text = FENCE.sub("", (DOCS / page).read_text())
    return frozenset(slug(heading["words"]) for heading in HEADING.finditer(text))


def slug(words: str) -> str:
    """Return the anchor of a heading: its words in lower case, joined by hyphens."""
    kept = re.sub(r"[^\w\s-]", "", words).strip().lower()
    return re.sub(r"[-\s]+", "-", kept)


def citations(file: Path) -> Iterator[Citation]:
    """Yield the citations of pages in a file."""
    text = file.read_text()
    for citation in CITATION.finditer(text):
        line = text.count("\n", 0, citation.start()) + 1
        where = f"{file.relative_to(ROOT)}:{line}"
        yield Citation(where, citation["page"], citation["anchor"] or "", bool(citation["quoted"]))


def links(page: Path) -> Iterator[Citation]:
    """Yield the links from a page under docs/ to pages under docs/."""
    for link in LINK.finditer(FENCE.sub("", page.read_text())):
        target = urlsplit(link["target"])
        file = (page.parent / target.path).resolve() if target.path else page
        if not target.scheme and DOCS in file.parents:
            yield Citation(str(page.relative_to(ROOT)), str(file.relative_to(DOCS)), target.fragment)


def problem(citation: Citation) -> str | None:
    """Return why a citation leads nowhere; None if it is right."""
    if citation.quoted:
        return f"{citation.where}: cite the heading as docs/{citation.page}#its-anchor"
    if not (DOCS / citation.page).is_file():
        return f"{citation.where}: there is no page docs/{citation.page}"
    if citation.anchor and citation.anchor not in anchors(citation.page):
        return f"{citation.where}: docs/{citation.page} has no heading for #{citation.anchor}"
    return None


def outside(text: str) -> Iterator[str]:
    """Yield the words that cite a text outside the repository, even across a line break."""
    flowing = re.sub(r"\n\s*(?:# )?", " ", text)
    for pattern in OUTSIDE:
        for match in re.finditer(pattern, flowing):
            yield flowing[max(0, match.start() - 30) : match.end() + 30]


def test_every_citation_leads_to_a_heading() -> None:
    cited = [citation for file in files() for citation in citations(file)]
    assert len([citation for citation in cited if citation.page == "semantics.md"]) > 50
    assert [error for citation in cited if (error := problem(citation))] == []


def test_every_link_between_pages_leads_to_a_heading() -> None:
    linked = [link for file in files() if DOCS in file.parents for link in links(file)]
    assert len(linked) > 50
    assert [error for link in linked if (error := problem(link))] == []


def test_nothing_cites_a_text_outside_the_repository() -> None:
    others = [file for file in files() if file != Path(__file__)]
    assert [f"{file.relative_to(ROOT)}: {words}" for file in others for words in outside(file.read_text())] == []


@pytest.mark.parametrize(
    "line",
    [
        "(settled semantics, tool 9)",
        "decisions, network 12 and 16",
        "# A result that is not a bool is an error (settled\n# semantics, api 1).",
        "Decisions, gateway 1",
        "as the contract has it",
        "(contract, section 2.1)",
        "(design, section 3)",
        "(seeds 000 and 001)",
        "recognised without any state (R89, R98)",
        '("r117 an unconditional Deny denies", …)',
        "(agentgateway reference, 2.8)",
        "shared/reference/cel.md",
        "def test_21_what_is_not_read() -> None:",
    ],
)
def test_a_citation_of_a_text_outside_is_found(line: str) -> None:
    assert list(outside(line))


@pytest.mark.parametrize(
    "line",
    [
        "docs/semantics.md#equal-priority-goes-by-name",
        "An SCTP packet with an INIT chunk (RFC 9260, sections 3.1 and 3.3.2)",
        "(KEP-5681, “Node authorizer”)",
        "def test_attachment_equals_the_reference(seed: int) -> None:",
        "[[tool.importlinter.contracts]]",
        "(Envoy API reference, `envoy.config.bootstrap.v3`)",
    ],
)
def test_a_published_text_may_be_cited(line: str) -> None:
    assert list(outside(line)) == []


def test_a_citation_that_leads_nowhere_is_found() -> None:
    assert problem(Citation("x.py:1", "semantics.md", "equal-priority-goes-by-name")) is None
    assert problem(Citation("x.py:1", "semantics.md", "no-such-point")) is not None
    assert problem(Citation("x.py:1", "no-such-page.md", "")) is not None
    assert problem(Citation("x.py:1", "semantics.md", "", quoted=True)) is not None


def test_every_reason_of_a_step_is_on_the_page_about_answers() -> None:
    page = (DOCS / "reference" / "decision-document.md").read_text()
    assert [reason for reason in Reason if f"`{reason}`" not in page] == []
