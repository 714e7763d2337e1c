from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tierwall.cli.main import root

TEST = """\
apiVersion: tierwall.io/v1alpha1
kind: PolicyTest
metadata: {name: t}
spec:
  resources: [manifests/]
  objects:
  - {apiVersion: v1, kind: Pod, metadata: {name: b, namespace: two}, spec: {containers: [{name: c, image: i}]}}
  cases:
  - name: everybody may talk
    network: {from: one/a, to: two/b, port: 80}
    expect: {verdict: Allow, decidedBy: Default}
"""
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: one}\nspec: {containers: [{name: c, image: i}]}\n"
REFUSED = "apiVersion: v1\nkind: Namespace\nmetadata: {name: BAD}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "pod.yaml").write_text(POD)
    return tmp_path


def run(folder: Path, test: str, *args: str) -> Result:
    (folder / "t.yaml").write_text(test)
    return CliRunner().invoke(root, ["test", "t.yaml", *args])


def test_all_passed_is_exit_code_0_and_one_line_per_case(folder: Path) -> None:
    result = run(folder, TEST)
    assert (result.exit_code, result.stdout) == (0, "ok   t: everybody may talk\n1 passed, 0 failed\n")


def test_a_failure_shows_expected_and_got_and_the_trace_and_is_exit_code_4(folder: Path) -> None:
    result = run(folder, TEST.replace("verdict: Allow", "verdict: Deny"))
    assert result.exit_code == 4
    lines = result.stdout.splitlines()
    assert lines[0] == "FAIL t: everybody may talk"
    assert lines[1].strip() == "at t.yaml:9"
    assert "Deny" in lines[2]
    assert "Allow" in lines[2]
    assert lines[-1] == "0 passed, 1 failed"


def test_json_has_the_documented_form(folder: Path) -> None:
    document = json.loads(run(folder, TEST, "-o", "json").stdout)
    assert (document["passed"], document["failed"]) == (1, 0)
    (case,) = document["cases"]
    assert {key: case[key] for key in ("file", "test", "case", "ok")} == {
        "file": "t.yaml", "test": "t", "case": "everybody may talk", "ok": True,
    }  # fmt: skip
    assert case["want"] == {"verdict": "Allow", "decidedBy": "Default"}
    assert case["got"]["verdict"] == "Allow"
    assert case["got"]["decidedBy"] == [{"policy": "Default"}]
    assert isinstance(case["got"]["trace"], list)


def test_junit_counts_failures(folder: Path) -> None:
    result = run(folder, TEST.replace("verdict: Allow", "verdict: Deny"), "-o", "junit")
    tree = ElementTree.fromstring(result.stdout)
    assert (tree.get("tests"), tree.get("failures")) == ("1", "1")
    failure = tree.find(".//failure")
    assert failure is not None
    assert "Deny" in (failure.get("message") or "")


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("cases:", "casse:", "TW701", "did you mean `cases`?"),
        ("    network: {from: one/a, to: two/b, port: 80}\n", "", "TW701", "exactly one"),
        ("    expect:", "    admit: {file: x.yaml}\n    expect:", "TW701", "exactly one"),
        ("- name: everybody may talk\n    ", "- ", "TW701", "name"),
        ("manifests/", "manifest/", "TW702", "`manifest/`"),
    ],
)
def test_a_malformed_test_file_says_what_is_wrong_and_runs_nothing(
    folder: Path, old: str, new: str, code: str, words: str
) -> None:
    assert old in TEST
    result = run(folder, TEST.replace(old, new))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"[{code}]" in result.stderr
    assert words in result.stderr
    assert result.stderr.startswith("t.yaml:")


def test_two_cases_with_the_same_name_are_refused(folder: Path) -> None:
    result = run(folder, TEST + TEST.split("cases:\n")[1])
    assert result.exit_code == 1
    assert "Duplicate value" in result.stderr


def test_a_question_about_an_unknown_pod_fails_its_case_with_the_nearest_name(folder: Path) -> None:
    result = run(folder, TEST.replace("one/a", "one/aa"))
    assert result.exit_code == 4
    assert "did you mean" in result.stdout


def test_an_unknown_key_in_a_question_fails_its_case_with_the_nearest_key(folder: Path) -> None:
    result = run(folder, TEST.replace("port: 80", "prot: 80"))
    assert result.exit_code == 4
    assert "did you mean" in result.stdout


def test_an_unknown_expectation_fails_its_case(folder: Path) -> None:
    result = run(folder, TEST.replace("verdict: Allow", "verdit: Allow"))
    assert result.exit_code in (1, 4)
    assert "did you mean `verdict`?" in result.stdout + result.stderr


def test_a_file_without_a_test_is_an_error(folder: Path) -> None:
    result = CliRunner().invoke(root, ["test", "manifests"])
    assert result.exit_code == 1
    assert "no PolicyTest" in result.stderr
    both = CliRunner().invoke(root, ["test", "manifests", "absent.yaml"]).stderr.splitlines()
    assert both[0] == "error[TW701]: no PolicyTest in `manifests`"
    assert both[1].startswith("absent.yaml:1:1: error[TW001]: there is no such file or folder")
    assert len(both) == 2
    (alone,) = CliRunner().invoke(root, ["test", "absent.yaml"]).stderr.splitlines()
    assert alone.startswith("absent.yaml:1:1: error[TW001]")
    # Nobody knows what a file holds that cannot be read.
    Path("broken.yaml").write_text("[")
    (alone,) = CliRunner().invoke(root, ["test", "broken.yaml"]).stderr.splitlines()
    assert alone.startswith("broken.yaml:1:2: error[TW002]")


ADMIT = """\
apiVersion: tierwall.io/v1alpha1
kind: PolicyTest
metadata: {name: t}
spec:
  cases:
  - name: refused
    admit: %s
    expect: {verdict: Deny, message: "%s"}
"""


@pytest.mark.parametrize(
    ("question", "message", "ok"),
    [
        ("{object: {apiVersion: v1, kind: Namespace, metadata: {name: BAD}}}", "metadata.name", True),
        ("{file: bad.yaml}", "RFC 1123", True),
        ("{file: bad.yaml}", "something else", False),
        ("{object: {apiVersion: v1, kind: Namespace, metadata: {name: good}}}", "", False),
        ("{object: {apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolcy}}", "no matches", True),
    ],
)
def test_admit_says_whether_an_api_server_would_accept_an_object(
    folder: Path, question: str, message: str, ok: bool
) -> None:
    (folder / "bad.yaml").write_text(REFUSED)
    result = run(folder, ADMIT % (question, message))
    assert result.exit_code == (0 if ok else 4), result.output


@pytest.mark.parametrize(
    ("inline", "file", "said"),
    [
        ("- {apiVersion: v1, kind: Namespace, metadata: {name: BAD}}", "", "t.yaml:8:56: error[TW105]: metadata.name"),
        ("- {kind: Namespace, metadata: {name: two}}", "", "t.yaml:8:5: error[TW006]: expected a Kubernetes object"),
        ("", REFUSED, "manifests/more.yaml:3:18: error[TW105]: metadata.name: Invalid value"),
        ("", "kind: Text\n", "manifests/more.yaml:1:1: error[TW006]: expected a Kubernetes object"),
        ("", f"{POD}---\n{POD}", "manifests/more.yaml:6:1: warning[TW007]: Pod/one/a is defined twice"),
    ],
)
@pytest.mark.parametrize("output", ["text", "json", "junit"])
def test_problems_of_the_judged_objects_are_shown_and_fail_no_case(
    folder: Path, inline: str, file: str, said: str, output: str
) -> None:
    if file:
        (folder / "manifests" / "more.yaml").write_text(file)
    result = run(folder, TEST.replace("  cases:", f"  {inline}\n  cases:"), "-o", output)
    assert result.exit_code == 0
    assert said in result.stderr
    assert "TW" not in result.stdout


def test_problems_of_a_shared_object_are_shown_once(folder: Path) -> None:
    (folder / "manifests" / "bad.yaml").write_text(REFUSED)
    result = run(folder, f"{TEST}---\n{TEST.replace('name: t}', 'name: u}')}")
    assert result.stdout.endswith("2 passed, 0 failed\n")
    assert result.stderr.count("TW105") == 1


def test_a_missing_admit_file_is_an_error(folder: Path) -> None:
    result = run(folder, ADMIT % ("{file: nowhere.yaml}", ""))
    assert result.exit_code == 1
    assert "[TW702]" in result.stderr


@pytest.mark.parametrize("content", [b"a: [1\n", b"a: \xff\n", b"[" * 2000])
def test_an_unreadable_admit_file_is_an_error_and_does_not_pass(folder: Path, content: bytes) -> None:
    (folder / "broken.yaml").write_bytes(content)
    result = run(folder, ADMIT % ("{file: broken.yaml}", ""))
    assert result.exit_code == 1
    assert "[TW702]: `broken.yaml`:" in result.stderr


def test_tests_in_several_documents_and_files_all_run(folder: Path) -> None:
    (folder / "more.yaml").write_text(TEST + "---\n" + TEST.replace("name: t", "name: u"))
    (folder / "t.yaml").write_text(TEST)
    result = CliRunner().invoke(root, ["test", "t.yaml", "more.yaml"])
    assert result.stdout.endswith("3 passed, 0 failed\n")
