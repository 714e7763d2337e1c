"""What kube-agentic-networking asks holds on the model and on Envoy, with its words for denials and statuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import tool_conformance
from tests.tool_conformance import FOLDER, SUITE
from tierwall import run_tests
from tierwall.analyze.statuses import statuses
from tierwall.attach.status import PolicyStatus
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.profile import ToolProfile


def test_every_case_holds_on_the_model() -> None:
    report = run_tests(FOLDER)
    assert [f"{case.test}: {case.case}" for case in report.cases if case.ok is not True] == []
    assert len(report.cases) >= 75


def test_statuses_are_as_upstream_writes_them() -> None:
    assert [(suite.name, failed) for suite, failed in tool_conformance.failures("model") if failed] == []


def accepted(**spec: Any) -> tuple[bool, str]:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "missing"}
    manifest = {
        "apiVersion": "agentic.networking.x-k8s.io/v1alpha1",
        "kind": "XAccessPolicy",
        "metadata": {"name": "p", "namespace": "agents"},
        "spec": {"targetRefs": [target], "action": "Allow", **spec},
    }
    snapshot = Snapshot.of(load_objects([manifest]))
    (status,) = statuses(snapshot, tool_profile=ToolProfile.KUBE_AGENTIC_NETWORKING)
    assert isinstance(status, PolicyStatus)
    ((_, (condition,)),) = status.ancestors
    return condition.status, condition.reason


def test_a_missing_target_is_accepted_and_a_broken_expression_is_not() -> None:
    broken = {"name": "r", "authorization": {"type": "CEL", "cel": {"expression": "1 +"}}}
    assert accepted() == (True, "Accepted")
    assert accepted(rules=[broken]) == (False, "InvalidCEL")
    assert accepted(action="Deny") == (False, "Invalid")


def test_a_report_names_what_failed() -> None:
    results = [(suite, ["a case"] if suite.name == "XAccessPolicySAMatching" else []) for suite in SUITE]
    (profile,) = tool_conformance.report(results)["profiles"]
    assert profile["core"] == {
        "result": "failure",
        "statistics": {"Failed": 1, "Passed": 4, "Skipped": 0},
        "failedTests": ["XAccessPolicySAMatching"],
    }
    assert profile["summary"] == "Core tests failed. Extended tests succeeded."


@pytest.mark.engine
@pytest.mark.usefixtures("needs_envoy")
def test_envoy_passes_the_suite_and_the_report_says_so(tmp_path: Path) -> None:
    file = tmp_path / "report.yaml"
    assert tool_conformance.main(file) == 0
    report = yaml.safe_load(file.read_text())
    (profile,) = report["profiles"]
    assert (report["kind"], profile["core"]["statistics"]["Passed"]) == ("ConformanceReport", 5)
    assert profile["extended"]["statistics"] == {"Failed": 0, "Passed": 4, "Skipped": 0}
    assert file.read_text().startswith("# Where Tierwall differs on purpose:\n")


@pytest.mark.engine
@pytest.mark.usefixtures("needs_envoy")
def test_envoy_behaves_as_upstream_where_the_proposal_does() -> None:
    report = run_tests(FOLDER / "behaviour.yaml", engine="envoy")
    assert [f"{case.test}: {case.case}" for case in report.cases if case.ok is not True] == []
