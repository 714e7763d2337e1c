"""Whatever field of a manifest is hostile, on whatever plane, pages show it as text (docs/explorer.md#safety)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.explore.conftest import EXAMPLES, explored_of
from tierwall.explore.change import change
from tierwall.explore.page import Query, policy_address
from tierwall.explore.shell import document
from tierwall.explore.site import PAGES, page_at

NASTY = "<script>window.stolen=1</script>\"'><img src=x onerror=window.stolen=1>\u202e\u2066gnp"
# Without these, nothing is an object of its kind any more.
KEPT = ("apiVersion", "kind")
GROUPS = 6


def objects() -> Iterator[Any]:
    for path in EXAMPLES:
        for file in sorted(path.glob("*.yaml")):
            yield from filter(None, yaml.safe_load_all(file.read_text()))


def keys(value: Any) -> Iterator[str]:
    """Yield the names of all fields that hold strings, or lists of them."""
    if isinstance(value, dict):
        for key, part in value.items():
            if isinstance(part, str) or (isinstance(part, list) and any(isinstance(each, str) for each in part)):
                yield key
            yield from keys(part)
    elif isinstance(value, list):
        for part in value:
            yield from keys(part)


FIELDS = sorted({key for value in objects() for key in keys(value)} - set(KEPT))


def spoiled(value: Any, fields: set[str], key: str = "") -> Any:
    """Return an object in which some fields are hostile, and so are the keys of labels and annotations if asked for."""
    if isinstance(value, dict):
        return {name: spoiled(part, fields, name) for name, part in value.items()}
    if isinstance(value, list):
        return [spoiled(part, fields, key) for part in value]
    return f"{NASTY}{value}" if isinstance(value, str) and key in fields else value


@pytest.mark.parametrize("number", range(GROUPS))
def test_no_field_becomes_markup(number: int, tmp_path: Path) -> None:
    fields = set(FIELDS[number::GROUPS])
    hostile = [spoiled(value, fields) for value in objects()]
    assert hostile != list(objects())
    text = "\n---\n".join(json.dumps(value) for value in hostile)
    (tmp_path / "all.yaml").write_text(text)
    explored = explored_of(tmp_path)
    asked: list[tuple[str, Query]] = [(path, {}) for path in PAGES]
    asked += [("/findings", {"by": ("policy",)}), ("/permissions", {"user": (NASTY,)}), ("/ask", {"q": (NASTY,)})]
    kinds = {resource.kind: resource.reference for resource in explored.world.objects()}
    pages = [page_at(explored, path, query)[0] for path, query in asked]
    pages += [page_at(explored, policy_address(reference), {})[0] for reference in kinds.values()]
    pages.append(change(explored, {}, text))
    shown = [document(page, "/", 1, NASTY, NASTY) for page in pages]
    assert any("window.stolen" in each for each in shown)
    for page in shown:
        assert "<script>" not in page
        assert "<img" not in page
        assert not set("\u202e\u2066") & set(page)
