"""The answers that a new user gets in a repository of each usual layout, without options: check, list, explain, JSON.

`pytest tests/repositories --renew` records the answers. Read the difference as such a user would before you commit it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tierwall.cli.main import root

HERE = Path(__file__).parent
ANSWERS = HERE / "answers"
# The layouts, and the question that is explained in each.
EXPLAINED = {
    "policies-only": "explain network --from shop/web-0 --to shop/db-0 --port 5432",
    "kustomize": "explain network --from outside --to Service/web --port 80",
    "helm-chart": "explain network --from outside --to shop/web-0 --port 80",
    "rendered-chart": "explain network --from 203.0.113.7 --to Service/release-shop --port 443",
    "kubectl-dump": "explain network --from Deployment/shop/web --to shop/db-0 --port 5432",
    "typed-lists": "explain network --from shop/web --to shop/db --port 5432",
    "mixed-with-ci": "explain network --from outside --to Service/shop/web --port 80",
    "several-vendors": "explain network --from shop/web-0 --to shop/db-0 --port 5432",
    "monorepo": "explain network --from web/web-0 --to pay/pay-0 --port 443",
    "joined-files": "explain network --from shop/db --to shop/web --port 80",
    "json-stream": "explain network --from shop/web --to shop/db --port 5432",
}
COMMANDS = ("check", "list", "explain")


def answers() -> Iterator[tuple[str, str]]:
    for layout in EXPLAINED:
        for command in COMMANDS:
            yield layout, command


def run(layout: str, command: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.chdir(HERE / layout)
    return CliRunner().invoke(root, shlex.split(command))


@pytest.mark.parametrize(("layout", "command"), list(answers()))
def test_a_repository_gets_its_recorded_answer(
    layout: str, command: str, monkeypatch: pytest.MonkeyPatch, renew: bool
) -> None:
    arguments = EXPLAINED[layout] if command == "explain" else command
    result = run(layout, arguments, monkeypatch)
    text = f"$ tierwall {arguments}\n{result.stdout}[exit code {result.exit_code}]\n"
    if result.stderr:
        text += f"[standard error]\n{result.stderr}"
    path = ANSWERS / f"{layout}.{command}"
    if renew:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("layout", list(EXPLAINED))
def test_json_leaves_out_what_text_leaves_out(layout: str, monkeypatch: pytest.MonkeyPatch, renew: bool) -> None:
    text = ""
    for command in ("list", "check"):
        result = run(layout, f"{command} -o json", monkeypatch)
        if not result.stdout:  # the files cannot be read
            continue
        entries = json.loads(result.stdout)["notConsidered"]
        text += f"$ tierwall {command} -o json\n{json.dumps(entries, indent=2)}\n"
        lines = run(layout, command, monkeypatch).stdout.splitlines()
        assert len([line for line in lines if line.startswith("not considered: ")]) == len(entries)
    path = ANSWERS / f"{layout}.not-considered"
    if renew:
        path.write_text(text)
    assert text == path.read_text()


def test_every_layout_has_its_answers_and_no_answer_is_left_over() -> None:
    layouts = {path.name for path in HERE.iterdir() if path.is_dir()} - {"answers", "__pycache__"}
    assert layouts == set(EXPLAINED)
    names = {f"{layout}.{what}" for layout in layouts for what in (*COMMANDS, "not-considered")}
    assert {path.name for path in ANSWERS.iterdir()} == names
