"""The table of settings that Envoy obeys (docs/gateway.md#obeyed-by-run); the page shows it as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import ROOT
from tierwall.gateway.model.enforcement import ENFORCEMENT, EnforcementState, unenforced
from tierwall.gateway.model.fields import FIELDS, SECTIONS
from tierwall.resources.schema import Schema

PAGE = (ROOT / "docs" / "gateway.md").read_text().split("## Obeyed by `run`")[1].split("\n## ")[0]


def rows() -> Iterator[str]:
    for name, rule in ENFORCEMENT.items():
        closes = rule.restricts and rule.state is EnforcementState.NOT_ENFORCED
        yield f"| `{name}` | {rule.state}{'; closes' if closes else ''} | {rule.words} |"


def test_the_page_has_the_table() -> None:
    assert [line for line in PAGE.splitlines() if line.startswith("| `")] == list(rows())


def test_every_field_has_a_row() -> None:
    assert [path for path in FIELDS if path not in ENFORCEMENT] == []


@pytest.mark.parametrize("name", [name for name in ENFORCEMENT if name not in FIELDS])
def test_every_other_row_is_a_part_of_a_field_that_envoy_enforces(name: str) -> None:
    path, _, value = name.partition("=")
    field = max((other for other in FIELDS if path == other or path.startswith(f"{other}.")), key=len)
    assert ENFORCEMENT[field].state is not EnforcementState.NOT_ENFORCED
    section, *keys = path.split(".")
    schema: Schema | None = SECTIONS[section]  # type: ignore[index]
    for key in keys:
        assert schema is not None
        schema = (schema.items or schema).at(key)
    assert schema is not None
    assert not value or value in (schema.enum or ())


def test_a_row_that_is_not_enforced_as_it_is_written_says_why() -> None:
    assert [
        name for name, rule in ENFORCEMENT.items() if rule.state is not EnforcementState.ENFORCED and not rule.words
    ] == []


def test_a_field_that_is_not_enforced_is_named_whole() -> None:
    (part,) = unenforced("backend.ai.promptGuard", {"request": [{"regex": {}}]})
    assert (part.name, part.path, part.restricts) == ("backend.ai.promptGuard", (), True)
