"""`tierwall snapshot --redact`, from a cluster to a file that is read again (docs/clusters.md#redact)."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests import ROOT
from tests.labs.served_cluster import serving
from tests.redact.test_leaks import FILES, MARK, Marks
from tierwall.cli.main import root

WAY = "--gateway shop/agents --backend shop/orders --caller shop/assistant"
# Kinds that an API server does not serve.
_LOCAL = ("PolicyTest", "AuthorizationConfiguration")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(root, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code not in (1, 2), result.output
    return result


def marked_objects(marks: Marks) -> list[dict[str, Any]]:
    texts = [file.read_text().partition("\n")[2].replace("@@example", "@%example") for file in FILES]
    text = re.sub("@", lambda _: marks.new("x"), "\n---\n".join(texts)).replace("%", "@")
    return [value for value in yaml.safe_load_all(text) if value and value["kind"] not in _LOCAL]


def test_no_text_of_a_cluster_is_left() -> None:
    objects = marked_objects(Marks())
    with serving(objects, forbidden={"alice": {"networkpolicies": ["zq00000zq"]}}, namespace="zq00001zq") as served:
        for context in ("root", "alice"):
            result = run("snapshot", "--context", context, "--kubeconfig", served.kubeconfig, "--redact")
            assert not MARK.findall(result.stdout)
            assert served.url not in result.stdout
            Path("redacted.yaml").write_text(result.stdout)
            run("check", "-f", "redacted.yaml")
            run("list", "-f", "redacted.yaml")


def test_questions_about_the_file_have_the_answers_of_the_cluster() -> None:
    questions = (
        "network --from shop/web --to shop/db --port 5432",
        "network --from shop/web --to shop/db --port 22",
        f"tool {WAY} --tool status --header 'x-tenant:acme'",
        "gateway --gateway shop/agents",
        "api --as ann --as-group support -n shop --verb list --resource pods",
    )
    with serving(ROOT / "examples" / "compare" / "old", namespace="shop") as served:
        source = ("--cluster", "--kubeconfig", served.kubeconfig)
        for question in questions:
            result = run("snapshot", *source, "--redact", "--for", question)
            Path("redacted.yaml").write_text(result.stdout)
            (asked,) = (line.removeprefix("ask: ") for line in result.stderr.splitlines() if line.startswith("ask: "))
            before = json.loads(run("explain", *shlex.split(question), *source, "-o", "json").stdout)
            after = json.loads(run("explain", *shlex.split(asked), "-f", "redacted.yaml", "-o", "json").stdout)
            assert after.get("verdict") == before.get("verdict")
            steps = [(step["tier"], step["verdict"], step["reason"]) for step in before["trace"]]
            assert [(step["tier"], step["verdict"], step["reason"]) for step in after["trace"]] == steps
            assert "shop" not in result.stdout
