from __future__ import annotations

import pytest

from tierwall.core.reference import Reference
from tierwall.core.source import format_path
from tierwall.resources.resource import parse_timestamp, seniority_key


def test_older_comes_first_then_the_whole_name_then_what_has_no_timestamp() -> None:
    objects = [
        (None, "a", "first-name"),
        ("2026-01-02T00:00:00Z", "b", "p-9"),
        ("2026-01-02T00:00:00Z", "b", "p-10"),
        ("2026-01-02T01:00:00+02:00", "z", "earlier-in-utc"),
        ("2026-01-02T00:00:00.5Z", "a", "half-a-second-later"),
        ("not a time", "a", "a"),
    ]
    ordered = sorted(objects, key=lambda parts: seniority_key(*parts))
    assert [name for _, _, name in ordered] == [
        "earlier-in-utc", "p-10", "p-9", "half-a-second-later", "a", "first-name",
    ]  # fmt: skip


def test_the_tie_is_one_string_and_not_two() -> None:
    names = [("", "a-b"), ("", "a.b"), ("", "a0"), ("a", "z")]
    assert sorted(names, key=lambda parts: seniority_key(None, *parts)) == [
        ("", "a-b"),
        ("", "a.b"),
        ("a", "z"),
        ("", "a0"),
    ]


@pytest.mark.parametrize(
    "text", ["", "2026-01-02", "2026-13-01T00:00:00Z", "2026-01-02T00:00:00", "٢026-01-02T00:00:00Z", 5, None]
)
def test_an_invalid_time_is_none(text: object) -> None:
    assert parse_timestamp(text) is None


def test_a_time_at_the_edge_of_the_calendar_does_not_raise() -> None:
    assert parse_timestamp("9999-12-31T23:59:59-23:59") is None
    assert parse_timestamp("0001-01-01T00:00:00+23:59") is None


@pytest.mark.parametrize("text", ["Pod/shop/web-0", "Node/n1", "Gateway/infra/gw#http"])
def test_a_reference_prints_as_it_was_read(text: str) -> None:
    assert str(Reference.parse(text)) == text


@pytest.mark.parametrize("text", ["", "Pod", "Pod/", "/a/b", "a/b/c/d", "Pod//x"])
def test_a_malformed_reference_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="expected `Kind/namespace/name`"):
        Reference.parse(text)


def test_a_path_prints_as_kubernetes_prints_it() -> None:
    assert format_path(("spec", "ingress", 0, "from", 1)) == "spec.ingress[0].from[1]"
    assert format_path(("metadata", "labels", "a.b/c")) == "metadata.labels[a.b/c]"
