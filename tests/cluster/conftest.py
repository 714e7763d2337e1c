"""The live cluster that all workers of a test run share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs.live_client import LiveClient
from tests.labs.live_cluster import shared_cluster


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[LiveClient]:
    """A real cluster. A test creates objects in namespaces of its own; nothing cluster-wide may touch other tests."""
    base = tmp_path_factory.getbasetemp()
    with shared_cluster((base if worker_id == "master" else base.parent) / "live") as client:
        yield client
