"""JSON documents that follow each other, with or without `---`, of any size (docs/reference/sources.md)."""

from __future__ import annotations

import json
import random
import time

import pytest

from tests.randomness import seeds
from tierwall.resources.load import load_text
from tierwall.resources.read import read_text

BIG = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}", "labels": {"note": "n" * 900}}}
            for number in range(9_500)
        ],
    }
)
SMALL = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "small", "namespace": "one"}}, indent=1)
YAML = "apiVersion: v1\nkind: Pod\nmetadata: {name: yaml}"


@pytest.mark.parametrize(
    ("text", "objects"),
    [
        (f"{BIG}\n---\n{SMALL}\n", 9_501),
        (f"{BIG}\n--- # a comment\n{YAML}\n", 9_501),
        (f"{BIG}\n---\n{YAML}\n---\n{SMALL}", 9_502),
        (f"{SMALL}\n---\n{BIG}\n---\n", 9_501),
        (f"{SMALL}{SMALL.replace('small', 'other')}\n---\n{BIG}", 9_502),
    ],
)
def test_documents_of_any_size_may_follow_each_other(text: str, objects: int) -> None:
    assert len(text) > 8 << 20
    start = time.process_time()
    loaded = load_text(text, "all.json")
    assert time.process_time() - start < 5
    assert len(loaded.resources) == objects
    assert not loaded.diagnostics
    last = loaded.resources[-1].position(("metadata", "name"))
    assert last is not None
    assert (
        (loaded.line("all.json", last.line) or "")[last.column - 1 :].lstrip('"').startswith(loaded.resources[-1].name)
    )


def test_a_mistake_after_a_large_document_is_an_error_at_its_place() -> None:
    loaded = load_text(f'{BIG}\n---\n{{"a": }}\n', "all.json")
    (problem,) = loaded.diagnostics
    assert problem.at is not None
    assert problem.at.line == 3
    loaded = load_text(f"{BIG}x: 1\n", "all.json")
    assert [problem.code for problem in loaded.diagnostics] == ["TW002"]


@pytest.mark.parametrize("seed", seeds(200))
def test_random_streams_give_their_documents(seed: int) -> None:
    rng = random.Random(seed)
    values: list[object] = []
    text = ""
    for number in range(rng.randint(1, 6)):
        value = {"k": number, "s": rng.choice(["", "---", "{", "a\n---\nb", "é"]), "l": [rng.random() < 0.5, None]}
        as_yaml = number > 0 and text.endswith("---\n") and rng.random() < 0.3
        text += f"k: {number}" if as_yaml else json.dumps(value, indent=rng.choice((None, 2)), ensure_ascii=False)
        values.append({"k": number} if as_yaml else value)
        text += "\n---\n" if as_yaml or rng.random() < 0.6 else rng.choice(("", "\n", " "))
    read = read_text(text)
    assert [document.value for document in read.documents] == values, text
    assert not read.diagnostics
