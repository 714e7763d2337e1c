"""The cases of this folder hold, each of them can fail, and every point of docs/semantics.md has one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tierwall.cli.main import root

HERE = Path(__file__).parent
FOLDERS = ("answers", "api", "gateway", "network", "tool")
SEMANTICS = HERE.parents[1] / "docs" / "semantics.md"

# Points that a PolicyTest cannot express, and what holds them instead.
ELSEWHERE = {
    "verdicts-are-words": "the type of a verdict",
    "decisions-are-pure": "random tests with objects in another order, such as test_tool_model.py",
    "invalid-objects-fail-closed": "the points of single planes",
    "the-specification-wins": "the points of single planes",
    "what-a-denied-client-gets": "test_envoy_run.py",
    "conditions-come-back-as-they-left": "test_authorizer_reviews.py",
    "a-policy-that-cannot-be-used-fails-alone": "test_api_unusable.py",
    "superseded-conditions-stay-in-force": "test_authorizer_superseded.py",
    "output-cannot-be-forged": "test_forged_output.py",
    "impersonation-has-three-stages": "test_api_impersonation.py",
}
# Another value for each key of `expect`, so that a case that has the key must fail.
WRONG: dict[str, Any] = {
    "evaluated": ["XAccessPolicy/nowhere/nobody"],
    "called": ["nobody"],
    "conditionSets": [{"authorizer": "nobody", "allowed": True}],
    "conflicts": ["traffic.csrf"],
    "message": "no API server says this",
}
VERDICTS = {"verdict", "egress", "ingress", "final"}


def ran(path: Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(root, ["test", str(path), "-o", "json"])
    assert result.exit_code in (0, 4), result.output
    cases: list[dict[str, Any]] = json.loads(result.stdout)["cases"]
    return cases


def documents(folder: str) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    for file in sorted((HERE / folder).glob("*.yaml")):
        yield file, list(yaml.safe_load_all(file.read_text()))


def points() -> list[str]:
    """The anchors of all points but those about running, of which no question is asked."""
    text, _, _ = SEMANTICS.read_text().partition("\n## Running\n")
    headings = re.findall(r"^### (.+)$", text, re.MULTILINE)
    return [re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).lower()) for heading in headings]


def wrong(key: str, value: Any) -> Any:
    """Something else than what is expected."""
    if key in VERDICTS:
        return "Deny" if value != "Deny" else "Allow"
    if key == "level":
        return "Gateway" if value != "Gateway" else "Backend"
    if key == "error":
        return not value
    if key == "effective":
        return {path: None if entry is not None else {"from": "nobody"} for path, entry in value.items()}
    if key == "decidedBy":
        # docs/semantics.md#expected-deciders: the empty list asks that no policy decided.
        return "NetworkPolicy/nowhere/nobody" if value in ([], "Default") else []
    return WRONG[key]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_case_holds(folder: str) -> None:
    cases = ran(HERE / folder)
    assert [f"{case['test']}: {case['case']}" for case in cases if case["ok"] is not True] == []
    assert cases


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_key_of_every_case_can_fail(folder: str, tmp_path: Path) -> None:
    cases = [case for _, tests in documents(folder) for test in tests for case in test["spec"]["cases"]]
    for key in sorted({key for case in cases for key in case["expect"]}):
        copies = tmp_path / key
        copies.mkdir()
        for file, tests in documents(folder):
            for test in tests:
                spec = test["spec"]
                spec["resources"] = [str(file.parent / path) for path in spec.get("resources", ())]
                spec["cases"] = [
                    {**case, "expect": {key: wrong(key, case["expect"][key])}}
                    for case in spec["cases"]
                    if key in case["expect"]
                ]
            kept = [test for test in tests if test["spec"]["cases"]]
            (copies / file.name).write_text("\n---\n".join(map(json.dumps, kept)))
        assert [f"{case['test']}: {case['case']}: {key}" for case in ran(copies) if case["ok"] is not False] == []


def test_every_point_has_cases_and_every_test_is_about_a_point() -> None:
    names = [test["metadata"]["name"] for folder in FOLDERS for _, tests in documents(folder) for test in tests]
    assert len(names) == len(set(names))
    assert sorted(set(names) - set(points())) == []
    assert sorted(set(points()) - set(names) - ELSEWHERE.keys()) == []
    assert sorted(ELSEWHERE.keys() & set(names)) == []
    assert sorted(ELSEWHERE.keys() - set(points())) == []
