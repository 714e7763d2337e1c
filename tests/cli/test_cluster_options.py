"""The options that name a cluster: mistakes, completion, progress (docs/reference/sources.md, docs/clusters.md)."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import tierwall as api
from tests import ROOT
from tests.labs.served_cluster import ServedCluster, serving
from tests.labs.waiting import eventually
from tierwall.cli import progress
from tierwall.cli.main import root
from tierwall.cli.progress import ProgressLine, progress_line
from tierwall.cluster.cluster import Cluster

SHOP = ROOT / "examples" / "shop" / "manifests"
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: dev
clusters:
- {name: dev-eu, cluster: {server: "https://127.0.0.1:1"}}
- {name: prod-eu, cluster: {server: "https://127.0.0.1:1"}}
- {name: unused, cluster: {server: "https://127.0.0.1:1"}}
contexts:
- {name: dev, context: {cluster: dev-eu}}
- {name: prod, context: {cluster: prod-eu}}
- {name: prod-admin, context: {cluster: prod-eu}}
"""


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.chdir(tmp_path)
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(root, [str(argument) for argument in arguments])


# help

READING = (
    *("check", "test", "explain network", "explain tool", "explain gateway", "explain api", "tools", "can-i", "list"),
    *("diff", "convert", "snapshot", "effective", "status", "run", "compile nft", "compile envoy", "enforce nft"),
    "authorizer",
)
OPTIONS = ("--cluster ", "--context", "--kubeconfig", "--cluster-as ", "--cluster-as-group", "--request-timeout")


@pytest.mark.parametrize("command", READING)
def test_every_command_that_reads_objects_has_the_options_in_a_section_of_their_own(command: str) -> None:
    before, _, cluster = run(*command.split(), "--help").stdout.partition("\nCluster to read:\n")
    assert "  -h, --help" in before
    assert [option for option in OPTIONS if f"  {option}" not in cluster] == []
    assert [option for option in OPTIONS if f"  {option}" in before] == []
    section = before.partition("\nObjects to read:\n")[2]
    assert "--exclude" in section


def test_every_option_is_on_the_page_about_sources() -> None:
    page = (ROOT / "docs" / "reference" / "sources.md").read_text()
    table = page.split("| option | meaning |")[1].split("\n\n")[0]
    for option in (*OPTIONS, "-f, --file", "-n, --namespace", "--without", "--exclude", "--strict"):
        assert f"`{option.strip()}" in table


def test_a_timeout_that_cannot_be_read_is_refused_although_no_cluster_is_read() -> None:
    result = run("list", "-", "--request-timeout", "soon")
    assert result.exit_code == 2
    assert "found `soon`" in result.stderr


# `--cluster NAME`

ASK = ("explain", "network", "--from", "a/b", "--to", "c/d", "--port", "1")


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    "command", [("list",), ASK, ("diff", "-f", "x.yaml"), ("can-i", "get", "pods"), ("test", "t"), ("authorizer",)]
)
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("prod", "write --context prod"),
        ("prod-eu", "write --context prod or --context prod-admin"),
        ("unused", "write --context NAME"),
    ],
)
def test_a_name_after_cluster_is_a_context(command: tuple[str, ...], name: str, advice: str) -> None:
    for words in (("--cluster", name), (f"--cluster={name}",)):
        result = run(*command, *words)
        assert (result.exit_code, result.stderr.splitlines()[-1]) == (
            2,
            f"Error: --cluster takes no name, it reads the current context: {advice}",
        )
        # The usage is that of the command, not of the program.
        named = " ".join(command[: 2 if command[0] == "explain" else 1])
        assert result.stderr.startswith(f"Usage: root {named} [OPTIONS]")


def test_the_kubeconfig_of_the_command_line_has_the_names(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    for words in (("--kubeconfig", kubeconfig), (f"--kubeconfig={kubeconfig}",)):
        assert "write --context prod\n" in run("list", *words, "--cluster", "prod").stderr


@pytest.mark.usefixtures("kubeconfig")
def test_a_path_after_cluster_is_a_path() -> None:
    Path("prod").mkdir()
    result = run("list", "--cluster", "prod")
    assert "--context" not in result.stderr
    assert "127.0.0.1:1" in result.stderr
    result = run("list", "--cluster", "elsewhere")
    assert (result.exit_code, "--context" in result.stderr) == (1, False)
    result = run("list", "--cluster=elsewhere")
    assert (result.exit_code, "write --context NAME" in result.stderr) == (2, True)
    # After `--` there are no options.
    assert "TW001" in run("list", "--", "--cluster", "dev").stderr


def test_a_kubeconfig_that_is_broken_is_no_reason_to_refuse_a_path(kubeconfig: Path) -> None:
    kubeconfig.write_text("a: [")
    result = run("list", "--cluster", "prod")
    assert (result.exit_code, "--context" in result.stderr) == (1, False)


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (("--kubeconfig", "config"), "--kubeconfig is"),
        (("--cluster-as", "a", "--cluster-as-group", "g"), "--cluster-as and --cluster-as-group are"),
    ],
)
def test_options_of_a_cluster_that_is_not_read_are_named(words: tuple[str, ...], unused: str) -> None:
    result = run("list", SHOP, *words)
    assert f"{unused} not used: add --cluster or --context NAME to read a cluster\n" in result.stderr
    assert (result.exit_code, "not used" in run("list", SHOP).stderr) == (0, False)


# Completion


def complete(*words: str) -> list[tuple[str, str]]:
    items = ShellComplete(root, {}, "tierwall", "").get_completions(list(words[:-1]), words[-1])
    return [(item.value, item.type) for item in items]


@pytest.mark.usefixtures("kubeconfig")
def test_contexts_complete() -> None:
    assert complete("list", "--context", "") == [("dev", "plain"), ("prod", "plain"), ("prod-admin", "plain")]
    assert complete("explain", "network", "--context", "pro") == [("prod", "plain"), ("prod-admin", "plain")]
    assert complete("list", "--kubeconfig", "con") == [("con", "file")]


def test_contexts_of_the_kubeconfig_on_the_command_line_complete(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    assert complete("list", "--kubeconfig", str(kubeconfig), "--context", "d") == [("dev", "plain")]


@pytest.mark.parametrize("text", ["a: [", "contexts: 7", "\x00", "contexts: [{name: 1}]"])
def test_a_broken_kubeconfig_completes_nothing(kubeconfig: Path, text: str) -> None:
    kubeconfig.write_text(text)
    assert complete("list", "--context", "") == []


def test_a_kubeconfig_that_never_ends_completes_nothing(kubeconfig: Path, tmp_path: Path) -> None:
    kubeconfig.unlink()
    os.mkfifo(kubeconfig)
    assert complete("list", "--context", "") == []
    assert complete("list", "--kubeconfig", str(tmp_path / "absent"), "--context", "") == []


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def cluster() -> Iterator[ServedCluster]:
    with serving(SHOP) as served:
        served.page = 1
        yield served


def test_progress_is_one_line_that_is_erased() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal, 0)
    line.report("reading prod: nodes", 0, 0)
    eventually(lambda: terminal.getvalue() == "\r\x1b[Kreading prod: nodes …", terminal.getvalue)
    line.report("reading prod: nodes", 0, 0)
    line.report("reading prod: pods", 3500, 10_000)
    line.report("reading prod: roles", 1, 2)
    eventually(lambda: terminal.getvalue().endswith("\r\x1b[Kreading prod: pods 3,500 of 10,000 …"), terminal.getvalue)
    line.report("reading prod: pods", 10_000, 10_000)
    eventually(lambda: terminal.getvalue().endswith("\r\x1b[Kreading prod: roles 1 of 2 …"), terminal.getvalue)
    line.close()
    assert terminal.getvalue().endswith("…\r\x1b[K")
    assert "\n" not in terminal.getvalue()
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_progress_cannot_be_forged_and_fits_the_terminal() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal, 0)
    line.report("reading \x1b[2J\n" + "x" * 500, 1, 2)
    eventually(terminal.getvalue, "a line")
    line.close()
    drawn = terminal.getvalue().removeprefix("\r\x1b[K").removesuffix("\r\x1b[K")
    assert drawn.isprintable()
    assert len(drawn) < 80


def test_what_is_done_soon_draws_nothing(cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 3600.0)
    with progress_line() as report:
        assert report is not None
        api.load(cluster=Cluster(kubeconfig=cluster.kubeconfig), progress=report)
    assert terminal.getvalue() == ""


def test_nothing_is_drawn_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_line() as report:
        assert report is None


def test_a_command_shows_what_it_reads(cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, int, int]] = []
    monkeypatch.setattr(ProgressLine, "report", lambda line, *step: steps.append(step))
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: True, raising=False)
    result = run("list", "--cluster", "--kubeconfig", cluster.kubeconfig)
    assert result.exit_code == 0
    pods = [step for step in steps if step[0] == "reading root: pods"]
    assert pods[0][1:] == (0, 0)
    assert pods[-1][1] == pods[-1][2] > 0
    assert [step for step in pods[1:-1] if step[1] < step[2]], "pages are reported one by one"
