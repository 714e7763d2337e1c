"""The cases that agentgateway's fixtures express, in our words (docs/gateway.md#beside-agentgateways-fixtures)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.test_conformance_cases import ran
from tierwall.analyze.statuses import statuses
from tierwall.attach.status import SUMMARY, PolicyStatus
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

HERE = Path(__file__).parent / "agentgateway"
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((HERE / "objects.yaml").read_text()))
THEMES: list[dict[str, Any]] = yaml.safe_load((HERE / "statuses.yaml").read_text())
CASES = [
    pytest.param(case, id=f"{theme['theme']}: {case['name']}".replace(" ", "-"))
    for theme in THEMES
    for case in theme["cases"]
]


@pytest.mark.parametrize("case", CASES)
def test_a_policy_is_accepted_and_attached_as_the_case_says(case: dict[str, Any]) -> None:
    metadata = {"name": "asked", "namespace": "shop"}
    policy = {"apiVersion": "agentgateway.dev/v1alpha1", "kind": "AgentgatewayPolicy", "metadata": metadata}
    objects = [*OBJECTS, *case.get("objects", ()), {**policy, "spec": case["spec"]}]
    (status,) = statuses(Snapshot.of(load_objects(objects)), "AgentgatewayPolicy/shop/asked")
    assert isinstance(status, PolicyStatus)
    written = {
        "StatusSummary" if ref == SUMMARY else f"{ref.kind}/{ref.namespace}/{ref.name}": {
            condition.type: f"{condition.status} {condition.reason}" for condition in conditions
        }
        for ref, conditions in status.ancestors
    }
    assert written.keys() == case["expect"].keys()
    for ancestor, conditions in case["expect"].items():
        assert {kind: written[ancestor].get(kind) for kind in conditions} == conditions


@pytest.mark.parametrize("file", ["winners.yaml", "admission.yaml"])
def test_the_policy_tests_hold(file: str) -> None:
    cases = ran(HERE / file)
    assert [case for case in cases if not case["ok"]] == []
    assert len(cases) > 10


def test_every_difference_is_on_the_page() -> None:
    page = (HERE.parents[2] / "docs" / "gateway.md").read_text().split("## Beside agentgateway's fixtures")[1]
    themes = [theme["theme"] for theme in THEMES]
    assert [theme for theme in themes if f"| {theme} |" not in page] == []
    assert any(case.get("agrees") is False for theme in THEMES for case in theme["cases"])
