"""Every case of the public conformance data of the network plane."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.network_snapshots import snapshot
from tierwall.planes import ask, differences

SUITES = {"admin-v1alpha1": 289, "admin-v1alpha2": 301, "policy-assistant": 1090, "cyclonus": 12288, "decisions": 66}


def documents(path: Path) -> Iterator[Any]:
    """Read a file of JSON documents separated by `---`."""
    for text in path.read_text().split("\n---\n"):
        if text.strip():
            yield json.loads(text)


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_of_a_suite_passes(shared: Path, suite: str) -> None:
    folder = shared / "conformance" / "network" / suite
    wrong: list[str] = []
    asked = 0
    for file in sorted(folder.glob("*.yaml")):
        for test in documents(file):
            spec = test["spec"]
            resources = [document for path in spec["resources"] for document in documents(folder / path)]
            world = snapshot(resources + spec.get("objects", []))
            for case in spec["cases"]:
                asked += 1
                got = ask("network", world, case["network"], {})
                wrong += [f"{file.name}: {case['name']}: {line}" for line in differences(case["expect"], got)]
    assert not wrong
    assert asked == SUITES[suite]
