"""Test phrases that sentences share: shortened lists, and plurals."""

from __future__ import annotations

from tierwall.core.words import count_noun, join_names


def test_a_list_names_a_few_and_counts_the_rest() -> None:
    assert [join_names("abcde"[:number]) for number in range(6)] == [
        "",
        "a",
        "a and b",
        "a, b and c",
        "a, b, c and 1 more",
        "a, b, c and 2 more",
    ]
    assert join_names("abc", 1) == "a and 2 more"
    assert join_names("abcde", None) == "a, b, c, d and e"


def test_one_thing_has_a_singular_noun() -> None:
    assert [count_noun(number, "pod") for number in range(3)] == ["0 pods", "1 pod", "2 pods"]
