"""Languages of strings, held to RE2 and to the string functions of the evaluator."""

from __future__ import annotations

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tierwall.cel.library.regex import matches
from tierwall.logic.cel.language import Languages, Region, StringView
from tierwall.logic.unsupported import Unsupported

ALPHABET = "abAB0-/. \né"
TEXTS = st.text(ALPHABET, max_size=6)
WORDS = st.text(ALPHABET, max_size=3)
SETS = st.sampled_from(
    [r"\d", r"\w", r"\s", r"\D", r"\W", ".", "[a-b]", "[^a]", "[[:upper:]-]", "[]a]", r"[\d.]", r"\x61", "é"]
)
PLAIN = st.sampled_from(list("abAB0-/")) | st.sampled_from([r"\.", r"\n", r"\-"]) | SETS


def _repeated(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    times = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{1,}", "*?", "+?"])
    return st.tuples(inner, times).map(lambda pair: f"(?:{pair[0]}){pair[1]}")


UNANCHORED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
        | _repeated(inner)
    ),
    max_leaves=6,
)
ENDS = st.tuples(
    st.sampled_from(["", "^", "(^|/)", "(?:^a|b)", r"\A"]), UNANCHORED, st.sampled_from(["", "$", "($|/)", r"\z"])
)
PATTERNS = st.lists(ENDS.map("".join), min_size=1, max_size=2).map("|".join)


@settings(max_examples=examples(300))
@given(PATTERNS, st.lists(TEXTS, max_size=8))
def test_a_pattern_has_the_strings_that_re2_finds(pattern: str, texts: list[str]) -> None:
    languages = Languages()
    somewhere, whole = languages.matching(pattern), languages.matching(pattern, whole=True)
    for text in texts:
        assert languages.has(somewhere, text) == matches(text, pattern)
        assert languages.has(whole, text) == bool(re2.fullmatch(pattern, text))


@settings(max_examples=examples(150))
@given(st.lists(PATTERNS, min_size=1, max_size=3), st.lists(TEXTS, max_size=8), st.integers(1, 3))
def test_every_string_is_in_one_region_and_every_member_passes_its_tests(
    patterns: list[str], texts: list[str], count: int
) -> None:
    languages = Languages()
    tests = [languages.matching(pattern) for pattern in patterns]
    regions = languages.regions(tests, count)
    by_tests = {region.passes: region for region in regions}
    assert len(by_tests) == len(regions)
    for region in regions:
        assert len(set(region.members)) == len(region.members) <= count
        for member in region.members:
            assert tuple(matches(member, pattern) for pattern in patterns) == region.passes
    for text in texts:
        region = by_tests[tuple(matches(text, pattern) for pattern in patterns)]
        assert not region.is_complete or text in region.members
        # The members are the shortest.
        assert text in region.members or len(text) >= max(map(len, region.members))


@settings(max_examples=examples(200))
@given(WORDS, TEXTS, st.integers(-1, 4))
def test_tests_on_strings_mean_what_the_functions_of_cel_mean(word: str, text: str, size: int) -> None:
    languages = Languages()
    expected = {
        languages.constant(word): text == word,
        languages.starting_with(word): text.startswith(word),
        languages.ending_with(word): text.endswith(word),
        languages.containing(word): word in text,
        languages.at_most(size): len(text) <= size,
        languages.one_of([word, "b"]): text in (word, "b"),
    }
    assert {language: languages.has(language, text) for language in expected} == expected


@settings(max_examples=examples(100))
@given(PATTERNS, TEXTS)
def test_a_language_of_changed_case_is_that_of_the_string_before(pattern: str, text: str) -> None:
    languages = Languages()
    language = languages.matching(pattern)
    lower = "".join(char.lower() if char.isascii() else char for char in text)
    upper = "".join(char.upper() if char.isascii() else char for char in text)
    assert languages.has(languages.before(language, StringView.LOWER), text) == matches(lower, pattern)
    assert languages.has(languages.before(language, StringView.UPPER), text) == matches(upper, pattern)


@settings(max_examples=examples(100))
@given(PATTERNS, st.text("abA/?#\n", max_size=6))
def test_the_path_of_a_url_ends_before_its_query(pattern: str, url: str) -> None:
    languages = Languages()
    path = url.partition("?")[0].partition("#")[0]
    language = languages.before(languages.matching(pattern), StringView.URL_PATH)
    assert languages.has(language, url) == matches(path, pattern)


def test_the_end_of_the_text_is_not_before_a_last_newline() -> None:
    languages = Languages()
    assert not languages.has(languages.matching("a$"), "a\n")


def test_witnesses_are_short_and_readable() -> None:
    languages = Languages()
    tests = [languages.starting_with("registry/"), languages.containing("latest")]
    assert languages.regions(tests, 2) == [
        Region((False, False), ("", "a"), False),
        Region((False, True), ("latest", "alatest"), False),
        Region((True, False), ("registry/", "registry/a"), False),
        Region((True, True), ("registry/latest", "registry/alatest"), False),
    ]


@pytest.mark.parametrize("pattern", ["(?i)a", r"\bword", r"\pL", "a^b", "(a$)*", r"\Qa.b\E"])
def test_what_a_language_cannot_say_is_named(pattern: str) -> None:
    with pytest.raises(Unsupported, match="regular expression"):
        Languages().matching(pattern)


def test_the_number_of_states_has_a_limit() -> None:
    languages = Languages()
    tests = [languages.containing(word) for word in ("foo", "bar", "baz", "qux", "quux", "corge", "gra", "pl")]
    with pytest.raises(Unsupported, match="so many tests on one string"):
        languages.regions(tests)


def test_long_constants_and_large_counts_end() -> None:
    languages = Languages()
    long = "x" * 16_000
    assert languages.has(languages.starting_with(long), long)
    with pytest.raises(Unsupported):
        languages.regions([languages.matching("(a{1000}){1000}")])
