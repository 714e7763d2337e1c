"""`check`, `list` and `status` find the same in redacted objects (docs/clusters.md#redact)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

import tierwall
from tests.randomness import examples, seeds
from tests.redact.renamed import rename, snapshot_of
from tests.worlds import api_clusters, attach_clusters, gateway_clusters, network_clusters, tool_worlds
from tests.worlds.findings import GRID
from tierwall.redact.redaction import RedactedObjects, redact

Object = dict[str, Any]


def findings(objects: list[Object]) -> list[tuple[str, str, int, tuple[str, ...]]]:
    """Return the code, the object, the number of places and the related objects of each finding."""
    return sorted(
        (finding.code, str(finding.reference), len(finding.places), tuple(sorted(finding.related_objects)))
        for finding in tierwall.load(objects=objects).check()
    )


def assert_same_findings(objects: list[Object]) -> RedactedObjects:
    redacted = redact(snapshot_of(objects))
    expected = sorted(
        (code, rename(redacted, subject), places, tuple(sorted(rename(redacted, other) for other in related)))
        for code, subject, places, related in findings(objects)
    )
    assert findings(list(redacted.values)) == expected
    return redacted


# Rows of bytes are not objects, which alone can be redacted; two objects with one name become one.
ROWS = [name for name, row in GRID.items() if not isinstance(row.given, bytes) and name != "TW007"]


@pytest.mark.parametrize("name", ROWS)
def test_every_code(name: str) -> None:
    given = GRID[name].given
    assert not isinstance(given, bytes)
    assert_same_findings(list(given))


@settings(max_examples=examples(15), deadline=None)
@given(network_clusters.clusters())
def test_network(objects: list[Object]) -> None:
    assert_same_findings(objects)


@pytest.mark.parametrize("seed", seeds(8))
def test_tool(seed: int) -> None:
    assert_same_findings(tool_worlds.World(seed).objects)


@pytest.mark.parametrize("seed", seeds(6))
def test_gateway(seed: int) -> None:
    assert_same_findings(gateway_clusters.cluster(Random(seed)))


@pytest.mark.parametrize("seed", seeds(8))
def test_attachment(seed: int) -> None:
    assert_same_findings(attach_clusters.cluster(Random(seed)))


@pytest.mark.parametrize("seed", seeds(8))
def test_api(seed: int) -> None:
    assert_same_findings(api_clusters.cluster(Random(seed), False))
