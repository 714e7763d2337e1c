from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierwall.core.labels import EVERYTHING, Selector, SelectorError

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["", "x", "y"])
LABELS = st.dictionaries(KEYS, VALUES)


@st.composite
def expressions(draw: st.DrawFn) -> dict[str, object]:
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]))
    out: dict[str, object] = {"key": draw(KEYS), "operator": operator}
    if operator in ("In", "NotIn"):
        out["values"] = draw(st.lists(VALUES, min_size=1))
    return out


SELECTORS = st.fixed_dictionaries(
    {}, optional={"matchLabels": LABELS, "matchExpressions": st.lists(expressions(), max_size=3)}
)


def selects(selector: dict[str, object], labels: dict[str, str]) -> bool:
    """Return whether a selector selects labels, as the API documentation states the rule."""
    wanted = selector.get("matchLabels") or {}
    assert isinstance(wanted, dict)
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    expressions = selector.get("matchExpressions") or []
    assert isinstance(expressions, list)
    for expression in expressions:
        key, operator = expression["key"], expression["operator"]
        if operator == "In" and not (key in labels and labels[key] in expression["values"]):
            return False
        if operator == "NotIn" and key in labels and labels[key] in expression["values"]:
            return False
        if operator == "Exists" and key not in labels:
            return False
        if operator == "DoesNotExist" and key in labels:
            return False
    return True


@given(SELECTORS, LABELS)
def test_a_selector_selects_what_the_documentation_says(selector: dict[str, object], labels: dict[str, str]) -> None:
    assert Selector.parse(selector).matches(labels) is selects(selector, labels)


@given(SELECTORS, LABELS)
def test_labels_under_keys_a_selector_does_not_name_never_matter(
    selector: dict[str, object], labels: dict[str, str]
) -> None:
    parsed = Selector.parse(selector)
    seen = {key: value for key, value in labels.items() if key in parsed.keys}
    assert parsed.matches(labels) is parsed.matches(seen)


@given(st.lists(expressions(), max_size=3))
def test_the_order_of_requirements_does_not_make_another_selector(expressions: list[dict[str, object]]) -> None:
    parsed = {Selector.parse({"matchExpressions": list(order)}) for order in itertools.permutations(expressions)}
    assert len(parsed) == 1


def test_no_selector_and_an_empty_one_select_everything() -> None:
    assert Selector.parse(None) == Selector.parse({}) == Selector.parse({"matchLabels": {}}) == EVERYTHING
    assert EVERYTHING.matches({})


@pytest.mark.parametrize(
    ("selector", "path"),
    [
        ([], ()),
        ({"matchlabels": {}}, ("matchlabels",)),
        ({"matchLabels": {"a": 1}}, ("matchLabels", "a")),
        ({"matchLabels": ["a"]}, ("matchLabels",)),
        ({"matchExpressions": {"key": "a"}}, ("matchExpressions",)),
        ({"matchExpressions": ["a"]}, ("matchExpressions", 0)),
        ({"matchExpressions": [{"operator": "Exists"}]}, ("matchExpressions", 0, "key")),
        ({"matchExpressions": [{"key": "a", "operator": "exists"}]}, ("matchExpressions", 0, "operator")),
        ({"matchExpressions": [{"key": "a", "operator": "In"}]}, ("matchExpressions", 0, "values")),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]},
            ("matchExpressions", 0, "values"),
        ),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]}, ("matchExpressions", 0, "values")),
    ],
)
def test_a_malformed_selector_says_where(selector: object, path: tuple[str | int, ...]) -> None:
    with pytest.raises(SelectorError) as caught:
        Selector.parse(selector)
    assert caught.value.path == path


def test_a_selector_prints_as_kubectl_prints_it() -> None:
    selector = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["b", "a"]},
            {"key": "env", "operator": "NotIn", "values": ["dev"]},
            {"key": "team", "operator": "Exists"},
            {"key": "old", "operator": "DoesNotExist"},
        ],
    }
    assert str(Selector.parse(selector)) == "app=web,env notin (dev),!old,team,tier in (a,b)"
