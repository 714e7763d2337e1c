"""Test phrases that sentences share: shortened lists, and plurals."""

from __future__ import annotations

from tierwall.core.words import as_given, count_noun, join_names


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


def test_a_value_that_json_cannot_have_is_shown_by_its_type() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert as_given({(1, 2): 3}) == "a value of type `dict` that cannot be shown"
    assert as_given(loop) == "a value of type `list` that cannot be shown"
    assert as_given(10**5000) == "a value of type `int` that cannot be shown"
    assert (as_given(""), as_given([None, True])) == ("an empty string", "`[null, true]`")
