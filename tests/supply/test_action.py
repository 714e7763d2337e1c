"""The GitHub Action (docs/ci.md#github): its steps run here as on a runner, with a `gh` that only takes notes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.labs.wheel_environment import WheelEnvironment, build_wheel
from tests.supply.test_pre_commit import BROKEN, NAMESPACE, POD, POLICY, TEST, git

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step.get("id", step.get("name")): step for step in ACTION["runs"]["steps"]}
SCRIPTS = {name: step for name, step in STEPS.items() if "run" in step}
EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")
GH = """\
#!/bin/bash
printf '%s\\n' "$*" >> "$NOTES"
for word in "$@"; do case $word in body=@*) cp "${word#body=@}" "$NOTES.body" ;; esac; done
[ -z "$REFUSE" ] || { echo "HTTP 403" >&2; exit 1; }
case "$*" in *--jq*) printf '%s' "$OLD_COMMENT" ;; esac
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> WheelEnvironment:
    folder = tmp_path_factory.mktemp("action")
    return WheelEnvironment(folder / "tierwall", build_wheel(folder))


class Runner:
    """A runner of GitHub with a checked-out pull request, as far as the Action sees one."""

    def __init__(self, folder: Path, environment: WheelEnvironment) -> None:
        self.temporary, self.checkout, self.notes = folder / "temp", folder / "checkout", folder / "notes"
        self.temporary.mkdir()
        (self.temporary / "tierwall").symlink_to(environment.folder)
        (folder / "bin").mkdir()
        (folder / "bin" / "gh").write_text(GH)
        (folder / "bin" / "gh").chmod(0o755)
        self._path = f"{folder / 'bin'}:/usr/bin:/bin"
        origin = folder / "origin"
        origin.mkdir()
        git(origin, "init", "-q")
        git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")
        for name, text in (("namespace", NAMESPACE), ("pod", POD), ("policy", POLICY)):
            (origin / "manifests").mkdir(exist_ok=True)
            (origin / "manifests" / f"{name}.yaml").write_text(text)
        git(origin, "add", "-A")
        git(origin, "commit", "-qm", "base")
        self.base = git(origin, "rev-parse", "HEAD").strip()
        git(folder, "clone", "-q", "--depth=1", f"file://{origin}", self.checkout)

    def write(self, name: str, text: str) -> None:
        (self.checkout / name).parent.mkdir(exist_ok=True)
        (self.checkout / name).write_text(text)

    def run(self, pull_request: bool = True, inputs: dict[str, str] | None = None, **more: str) -> dict[str, Any]:
        """Run the steps after the installation; return the code and output of each, and the summary."""
        given = {name: entry["default"] for name, entry in ACTION["inputs"].items()} | (inputs or {})
        facts = {f"inputs.{name}": text for name, text in given.items()}
        facts["inputs.tests || inputs.path"] = given["tests"] or given["path"]
        facts["github.event.pull_request.base.sha"] = self.base if pull_request else ""
        facts["github.event.pull_request.number"] = "7" if pull_request else ""
        summary = self.temporary / "summary.md"
        done: dict[str, Any] = {}
        for name, step in SCRIPTS.items():
            wanted = {
                "diff": pull_request,
                "prove": bool(given["prove"]) and bool(facts.get("steps.diff.outputs.code")),
                "comment on the pull request": given["comment"] == "true"
                and bool(facts.get("steps.diff.outputs.code")),
            }.get(name, True)
            if name == "install Tierwall" or not wanted:
                continue
            output = self.temporary / "output"
            output.write_text("")
            environment = {key: EXPRESSION.sub(lambda part: facts[part[1]], text) for key, text in step["env"].items()}
            completed = subprocess.run(
                ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
                cwd=self.checkout,
                env={
                    "PATH": self._path,
                    "HOME": str(self.temporary),
                    "RUNNER_TEMP": str(self.temporary),
                    "GITHUB_OUTPUT": str(output),
                    "GITHUB_STEP_SUMMARY": str(summary),
                    "GITHUB_REPOSITORY": "shop/policies",
                    "NOTES": str(self.notes),
                    "OLD_COMMENT": "",
                    "REFUSE": "",
                    **more,
                    **environment,
                },
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            done[name] = completed
            for line in output.read_text().splitlines():
                key, _, value = line.partition("=")
                facts[f"steps.{name}.outputs.{key}"] = value
            for key in ("check", "test", "diff", "prove"):
                facts.setdefault(f"steps.{key}.outputs.code", "")
            assert name == "result" or completed.returncode == 0, completed.stderr
        done["summary"] = summary.read_text() if summary.exists() else ""
        return done


@pytest.fixture
def runner(tmp_path: Path, environment: WheelEnvironment) -> Runner:
    return Runner(tmp_path, environment)


def test_a_pull_request_that_changes_no_connection(runner: Runner) -> None:
    done = runner.run()
    assert done["result"].returncode == 0
    assert "Nothing changes." in done["summary"]
    assert (
        runner.notes.read_text()
        .splitlines()[-1]
        .startswith("api --silent repos/shop/policies/issues/7/comments -F body=@")
    )


def test_what_a_pull_request_opens_is_in_the_summary_and_in_one_comment(runner: Runner) -> None:
    runner.write("manifests/policy.yaml", POLICY.replace("}}}", "}}, ingress: [{}]}"))
    done = runner.run(OLD_COMMENT="12\n34\n")
    assert done["result"].returncode == 0
    assert "### What this pull request opens and closes" in done["summary"]
    assert "| added | " in done["summary"]
    assert Path(f"{runner.notes}.body").read_text() == done["summary"]
    written = runner.notes.read_text().splitlines()[-1]
    assert written.startswith("api --silent --method PATCH repos/shop/policies/issues/comments/12 ")


def test_a_pull_request_may_have_to_open_nothing(runner: Runner) -> None:
    wanted = {"prove": "network"}
    done = runner.run(inputs=wanted)
    assert done["result"].returncode == 0
    assert "Proved: the change opens nothing" in done["summary"]
    runner.write("manifests/policy.yaml", POLICY.replace("}}}", "}}, ingress: [{}]}"))
    done = runner.run(inputs=wanted)
    assert done["result"].returncode == 4
    assert "Refuted: the change opens something" in Path(f"{runner.notes}.body").read_text()


def test_a_fork_may_not_comment_and_gets_the_summary(runner: Runner) -> None:
    done = runner.run(REFUSE="yes")
    assert done["result"].returncode == 0
    assert "see the summary" in done["comment on the pull request"].stdout
    assert done["summary"]


def test_findings_and_failed_cases_fail_the_job_after_everything_has_run(runner: Runner) -> None:
    runner.write("manifests/policy.yaml", BROKEN)
    runner.write("manifests/test.yaml", (TEST % "Allow").replace("../manifests", "."))
    done = runner.run(inputs={"sarif": "findings.sarif"})
    assert "::error file=manifests/policy.yaml,line=4," in done["check"].stdout
    assert "0 passed, 1 failed" in done["test"].stdout + done["test"].stderr
    assert json.loads((runner.checkout / "findings.sarif").read_text())["runs"][0]["results"]
    assert "diff" in done
    assert done["result"].returncode == 4


def test_a_failed_case_alone_fails_the_job(runner: Runner) -> None:
    runner.write("cases/test.yaml", TEST % "Deny")
    assert runner.run(inputs={"tests": "cases"})["result"].returncode == 4


def test_outside_of_pull_requests_nothing_is_compared(runner: Runner) -> None:
    done = runner.run(pull_request=False)
    assert done["result"].returncode == 0
    assert not {"diff", "comment on the pull request"} & done.keys()
    assert not runner.notes.exists()


def test_a_folder_that_the_pull_request_adds_is_compared_with_nothing(runner: Runner) -> None:
    runner.write("more/pod.yaml", POD)
    done = runner.run(inputs={"path": "more"})
    assert done["diff"].returncode == 0
    assert done["result"].returncode == 0


@pytest.mark.parametrize("path", ["a b", "$(touch hit)", "`touch hit`", "; touch hit", "-o", "'"])
def test_what_is_given_never_becomes_code(runner: Runner, path: str) -> None:
    runner.write(f"{path}/pod.yaml", POD)
    done = runner.run(inputs={"path": path})
    assert done["result"].returncode == 0, done
    assert not list(runner.checkout.rglob("hit"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_gets_everything_from_its_environment(name: str) -> None:
    step = SCRIPTS[name]
    assert "${{" not in step["run"]
    assert step["shell"] == "bash"
    subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)


def test_other_actions_are_pinned_by_commit() -> None:
    uses = [step["uses"] for step in STEPS.values() if "uses" in step]
    assert uses
    assert all(re.fullmatch(r"[\w/.-]+@[0-9a-f]{40}", name) for name in uses)


def test_the_installation_takes_locked_files_only(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/bash\nprintf "%s\\n" "$*" >> {notes}\n'
        '[ "$2" != venv ] || { mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; }\n'
    )
    python.chmod(0o755)
    step = STEPS["install Tierwall"]
    given = {**os.environ, "PYTHON": str(python), "ACTION": str(ROOT), "RUNNER_TEMP": str(tmp_path)}
    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", step["run"]], env=given, check=True)
    created, locked, project = notes.read_text().splitlines()
    assert created == f"-m venv {tmp_path}/tierwall"
    assert "--require-hashes --only-binary :all:" in locked
    files = re.findall(r"-r (\S+)", locked)
    assert [Path(file).name for file in files] == ["plain.txt", "build.txt"]
    assert all(Path(file).is_file() for file in files)
    assert project.endswith(f"--no-deps --no-build-isolation {ROOT}")
