"""Commands read with the garbage collector off, and leave it as they found it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tierwall.cli import collector
from tierwall.cli.collector import CommandLoader, collector_off


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the calls of `gc.freeze`, without freezing the process of the tests."""
    calls: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(gc.get_count()[0]))
    yield calls
    gc.enable()


def test_the_collector_is_off_while_loading_and_then_restored(freezes: list[int]) -> None:
    with collector_off():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collector_off():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    with collector_off():
        pass
    assert not gc.isenabled()


def test_only_many_objects_are_kept_from_the_collector(freezes: list[int]) -> None:
    # Python does not count lists that reuse freed memory.
    many = collector.MANY_CONTAINERS + 1000
    containers: list[list[int]] = []
    with collector_off():
        containers += ([number] for number in range(10))
    assert not freezes
    with collector_off():
        containers += ([number] for number in range(many))
    assert len(freezes) == 1
    with collector_off(first=False):
        containers += ([number] for number in range(many))
    assert len(freezes) == 1


def test_only_the_first_load_is_kept_from_the_collector(
    freezes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "MANY_CONTAINERS", 0)
    file = tmp_path / "pod.yaml"
    loader = CommandLoader([str(file)])
    for name in ("a", "b"):
        file.write_text(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}")
        assert [resource.name for resource in loader.load().resources] == [name]
        assert len(freezes) == 1
