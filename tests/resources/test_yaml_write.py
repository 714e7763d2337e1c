"""What is written as YAML is read back as it was, by Tierwall and by readers of YAML 1.1 (docs/clusters.md)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tierwall.resources.read import read_text
from tierwall.resources.yaml.write import yaml_text

# Strings that some reader takes for a boolean, a number, a time, a null, a merge or a mark.
AMBIGUOUS = (
    *(
        "y",
        "Y",
        "n",
        "yes",
        "No",
        "on",
        "OFF",
        "true",
        "False",
        "null",
        "Null",
        "~",
        "",
        "=",
        "<<",
        "nan",
        ".nan",
        ".inf",
    ),
    *("012", "0o7", "0x1", "0b1", "1e3", "1E3", "1_000", "+1", "-1", "1.", ".5", "1:30", "190:20:30", "685.230_15e+03"),
    *(
        "2001-01-01",
        "2001-12-14t21:59:43.10-05:00",
        "-",
        "- a",
        "?",
        "? a",
        ":",
        "a: b",
        "a:",
        "a #b",
        "#a",
        "!a",
        "&a",
    ),
    *(
        "*a",
        "%a",
        "@a",
        "`a",
        "|",
        ">",
        "---",
        "...",
        "{a}",
        "[a]",
        "a,b",
        "'a'",
        '"a"',
        "a\\b",
        " a",
        "a ",
        "a\n",
        "\ta",
    ),
    *(
        "\0",
        "\x07",
        "\x7f",
        "\x85",
        "\xa0",
        "\u2028",
        "\u2029",
        "\ufeff",
        "\ufffe",
        "\U0001f600",
        "\u212aelvin",
        "a" * 2000,
    ),
)

texts = st.sampled_from(AMBIGUOUS) | st.text(st.characters(codec="utf-8"), max_size=12)
leaves = (
    texts
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.none()
    # Kubernetes reads a number without a fraction as an integer, whether or not it has a point.
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
)
values = st.recursive(leaves, lambda of: st.lists(of, max_size=4) | st.dictionaries(texts, of, max_size=4))


def by_key(value: Any) -> Any:
    """Return a value with its keys in order."""
    if isinstance(value, dict):
        return {key: by_key(value[key]) for key in sorted(value)}
    return [by_key(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(texts, values, max_size=4))
def test_every_reader_reads_what_was_written(value: dict[str, Any]) -> None:
    text = yaml_text(value)
    read = read_text(text)
    assert not read.diagnostics
    # `repr` tells `1`, `1.0` and `true` apart.
    expected = repr(by_key(value))
    assert repr(by_key(read.documents[0].value)) == expected
    assert repr(by_key(yaml.load(text, yaml.CSafeLoader))) == expected
    assert repr(by_key(yaml.load(text, yaml.SafeLoader))) == expected


@pytest.mark.parametrize("text", AMBIGUOUS[:-1])
def test_what_could_be_something_else_is_quoted(text: str) -> None:
    assert yaml_text({"key": text}).startswith('---\nkey: "')


@pytest.mark.parametrize("text", ["web", "app.kubernetes.io/name", "snake_case", "shop/web-0", "GatewayClass", "yess"])
def test_words_are_not_quoted(text: str) -> None:
    assert yaml_text({text: text}) == f"---\n{text}: {text}\n"


def test_the_order_of_keys_does_not_matter() -> None:
    assert yaml_text({"b": {"d": 1, "c": [{"f": 1, "e": 2}]}, "a": []}) == (
        "---\na: []\nb:\n  c:\n  - e: 2\n    f: 1\n  d: 1\n"
    )


@pytest.mark.parametrize("character", ["\u202e", "\u200b", "\u2066", "\x85", "\u00a0", "\ufeff", "\U000e0001"])
def test_what_hides_or_turns_a_text_around_is_escaped(character: str) -> None:
    text = yaml_text({f"a{character}b": f"c{character}d"})
    assert text.isascii()
    assert read_text(text).documents[0].value == yaml.safe_load(text) == {f"a{character}b": f"c{character}d"}


def test_a_lone_surrogate_is_written_as_go_reads_it() -> None:
    assert read_text(yaml_text({"key": "a\ud800b"})).documents[0].value == {"key": "a\ufffdb"}


def test_what_is_too_deep_to_be_read_again_is_cut() -> None:
    value: dict[str, Any] = {"leaf": 1}
    for _ in range(3000):
        value = {"a": value}
    read = read_text(yaml_text(value))
    assert not read.diagnostics
