from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.labs.explorer_server import ExplorerLab
from tierwall.explore.page import ExploredWorld
from tierwall.resources.load import load
from tierwall.world import World

EXAMPLES = tuple(
    ROOT / "examples" / name for name in ("shop/manifests", "tool/manifests", "gateway/manifests", "api/policies")
)


def explored_of(*paths: Path) -> ExploredWorld:
    loaded = load([str(path) for path in paths])
    return ExploredWorld(World.of(loaded), loaded, "-f manifests/", "manifests/")


@pytest.fixture(scope="session")
def examples() -> ExploredWorld:
    """All examples in one world: every plane has something to show."""
    return explored_of(*EXAMPLES)


@pytest.fixture(scope="session")
def lab() -> Iterator[ExplorerLab]:
    """An explorer over all examples."""
    running = ExplorerLab(*EXAMPLES, hosts=("explorer.test",))
    yield running
    running.close()
