"""A comment is what can be emptied without changing the value; everything else that looks like one is content."""

from __future__ import annotations

import json

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.yaml_texts import ENTRIES, MESSES, same
from tierwall.resources.yaml.comments import comments
from tierwall.resources.yaml.decode import read_exactly
from tierwall.resources.yaml.errors import YamlError
from tierwall.values.pattern import pattern

MARK = "# tierwall: ignore TW204 why"
WANTED = pattern(r"#[ \t]*tierwall:")


def offset_of(text: str, line: int, column: int) -> int:
    return sum(len(part) + 1 for part in text.split("\n")[:line]) + column


def marked(text: str, places: list[int]) -> str:
    for place in sorted((min(place, len(text)) for place in places), reverse=True):
        text = text[:place] + " " + MARK + "\n" + text[place:]
    return text.replace("\r", "\n") + "\n"


PLACES = st.lists(st.integers(min_value=0, max_value=200), min_size=1, max_size=4)


@settings(max_examples=examples(300))
@given(MESSES | ENTRIES, PLACES)
@example("[a, b]\n", [3, 6])
@example('[]aaa"', [5])
def test_what_is_called_a_comment_can_be_emptied_without_changing_the_value(text: str, places: list[int]) -> None:
    text = marked(text, places)
    try:
        value = read_exactly(text).value
    except YamlError:
        assume(False)
    for comment in comments(text, WANTED):
        start = offset_of(text, comment.line, comment.column)
        assert text.startswith("#", start)
        end = text.find("\n", start)
        assert same(read_exactly(text[:start] + "#" + text[end:]).value, value)
        assert comment.before == text[text.rfind("\n", 0, start) + 1 : start]
        if comment.next_line >= 0:
            content = text.split("\n")[comment.next_line].strip()
            assert content
            assert not content.startswith("#")


@settings(max_examples=examples(300))
@given(ENTRIES, PLACES)
@example("a: |\n  x\n", [5, 6, 7])
@example("a: 'x\n  y'\n", [4, 6, 9])
@example("a: b\n c\n", [4, 6])
def test_what_is_not_called_a_comment_is_in_the_value(text: str, places: list[int]) -> None:
    text = f"first: 1\n{marked(text, places)}"
    try:
        value, repeats = read_exactly(text)
    except YamlError:
        assume(False)
    # Of repeated keys only the last counts, and what follows the end of a document is not read.
    assume(not repeats and not any(sign in text for sign in ("<<", "...", "---")))
    in_comments = sum(f"#{comment.text}".count(MARK) for comment in comments(text, pattern("#")))
    assert text.count(MARK) - in_comments <= json.dumps(value, default=str).count(MARK)


def test_many_comments_in_a_row_take_no_time() -> None:
    text = f"a: 1\n{f'{MARK}{chr(10)}' * 50_000}b: 2\n"
    listed = list(comments(text, WANTED))
    assert len(listed) == 50_000
    assert {comment.next_line for comment in listed} == {50_001}
