from __future__ import annotations

from pathlib import Path

import pytest

from tests.cel.cel_conformance import Line, answer, conformance_files, is_expected, lines
from tierwall.cel.batch import Batch

# Lines that Kubernetes refuses before it evaluates; docs/cel-conformance.md says why.
KNOWN_MISSES = {
    "map_fields/map_bad_key_type_or_true",
    "map_fields/map_bad_key_type_and_false",
    "receiver_function_names/namespace",
}
# Extension groups that are offered on request, and complete.
COMPLETE_EXTENSIONS = ("bindings_ext", "encoders_ext", "math_ext")


def wrong_answer(batch: Batch, line: Line, key: str = "expect") -> str | None:
    given = answer(batch, line)
    if is_expected(line, given, line[key]):
        return None
    return f"{line['name']}: {line['expr']}: expected {line[key]}, got {given}"


def test_every_line_that_kubernetes_answers_is_answered_right(shared: Path) -> None:
    batch = Batch()
    chosen = [line for path in conformance_files(shared) for line in lines(path) if not line.get("ext")]
    assert len(chosen) > 2000
    assert [problem for line in chosen if (problem := wrong_answer(batch, line))] == []


def test_where_kubernetes_differs_from_the_specification_its_answer_is_given(shared: Path) -> None:
    batch = Batch()
    chosen = [line for path in conformance_files(shared) for line in lines(path) if "kubernetes" in line]
    missed = {line["name"] for line in chosen if wrong_answer(batch, line, "kubernetes")}
    assert missed == KNOWN_MISSES


@pytest.mark.parametrize("group", COMPLETE_EXTENSIONS)
def test_extension_functions_are_complete_where_they_are_asked_for(shared: Path, group: str) -> None:
    batch = Batch(extensions=True)
    path = shared / "conformance" / "cel" / f"{group}.jsonl"
    assert [problem for line in lines(path) if (problem := wrong_answer(batch, line))] == []


def test_extension_functions_are_unknown_to_a_kubernetes_environment() -> None:
    batch = Batch()
    for expression in ("math.greatest(1, 2)", "base64.encode(b'a')", "cel.bind(x, 1, x)", "'abc'.reverse()"):
        assert "error" in batch.answer({"expr": expression})
