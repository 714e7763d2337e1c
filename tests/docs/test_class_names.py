"""Public classes are called by the words of the glossary (docs/concepts.md#glossary), each by a name of its own."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests import ROOT

PAGE = (ROOT / "docs" / "concepts.md").read_text()
SECTION = PAGE.split("## Glossary")[1].split("\n## ")[0]


def vocabulary() -> frozenset[str]:
    """The words of the table and of the lists below it."""
    rows = re.findall(r"^\| ([a-z, ]+) \|", SECTION, re.MULTILINE)
    lists = re.findall(r"^\* [^:]*: (.*?)\.$", SECTION, re.MULTILINE | re.DOTALL)
    return frozenset(word for words in (*rows, *lists) for word in re.split(r",\s+", words))


def class_names() -> Iterator[tuple[str, bool]]:
    """The public classes of the package, and whether each is an exception."""
    for file in sorted((ROOT / "src" / "tierwall").rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                yield node.name, any(base.endswith(("Error", "Exception", "Failure")) for base in bases)


def is_plain(name: str) -> bool:
    """Whether the last word of a class name, in the singular, is in the vocabulary."""
    last = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", name)[-1].lower()
    singulars = {last, last.removesuffix("s"), last.removesuffix("es"), re.sub("ies$", "y", last)}
    return not singulars.isdisjoint(vocabulary())


CLASSES = list(class_names())


def test_no_two_classes_have_the_same_name() -> None:
    names = Counter(name for name, _ in CLASSES)
    assert [name for name, number in names.items() if number > 1] == []


def test_every_class_is_called_by_a_word_of_the_glossary() -> None:
    assert [name for name, is_exception in CLASSES if not is_exception and not is_plain(name)] == []


@pytest.mark.parametrize("name", ["Asked", "Left", "Told", "Sort", "Made", "CameTo", "Fate", "Plea", "Party", "Octets"])
def test_a_name_that_says_nothing_is_noticed(name: str) -> None:
    assert not is_plain(name)


@pytest.mark.parametrize("name", ["NetworkRule", "PolicyEffects", "URL", "EndpointClasses", "AttachedPolicies"])
def test_a_word_of_the_glossary_is_fine(name: str) -> None:
    assert is_plain(name)


def test_the_glossary_has_about_forty_words() -> None:
    assert 35 <= len(re.findall(r"^\| [a-z, ]+ \|", SECTION, re.MULTILINE)) <= 60
