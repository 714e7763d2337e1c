"""A command whose output cannot be written ends with the exit code of its answer, or with one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import ROOT

SHOP = "examples/shop/manifests"
COMMANDS = (
    "cel batch tests/conformance/cel/library.jsonl",
    f"list {SHOP} -o json",
    f"yaml {SHOP}/policies.yaml",
    "--help",
    "cel eval 1+1",
    "completion bash",
)
QUESTION = f"explain network --from shop/web-0 --to shop/db-0 --port 5432 -f {SHOP}"


def shell(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in which `tierwall` is the command."""
    tierwall = f'tierwall() {{ "{sys.executable}" -m tierwall "$@"; }}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{tierwall}\n{script}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("reader", ["head -1", "true"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_enough_is_no_error(command: str, reader: str) -> None:
    done = shell(f"tierwall {command} | {reader}")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_exit_code_is_that_of_the_answer_even_if_nobody_reads_it(tmp_path: Path) -> None:
    assert shell(f"tierwall {QUESTION} | true").returncode == 3
    assert shell("tierwall check examples/shop/broken | true").returncode == 4
    case = {"network": {"from": "a/b", "to": "a/c", "port": 1}, "expect": {"verdict": "Allow"}}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "a"}} for name in "bc"]
    cases = [{"name": f"case {number}", **case} for number in range(5000)]
    cases[-1] = {**case, "name": "the last", "expect": {"verdict": "Deny"}}
    test = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "PolicyTest",
        "metadata": {"name": "long"},
        "spec": {"objects": pods, "cases": cases},
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    done = shell(f"tierwall test {tmp_path} | true")
    assert (done.returncode, done.stderr) == (4, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_one_sentence(command: str) -> None:
    done = shell(f"tierwall {command} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("command", [*COMMANDS, QUESTION])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full"])
def test_a_closed_stream_leaves_the_exit_code_alone(command: str, closed: str) -> None:
    done = shell(f"tierwall {command} {closed}")
    assert done.returncode == (3 if command == QUESTION else 0)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("check -", "stdin:1:1: error[TW006]"),
        ("yaml -", ""),
        ("cel batch -", ""),
        ("tools --from-log - -f examples/tool/manifests", "0 calls of tools"),
    ],
)
def test_a_closed_standard_input_is_empty(command: str, message: str) -> None:
    done = shell(f"tierwall {command} <&-")
    assert message in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "is_coloured"), [("TERM=xterm", True), ("TERM=dumb", False), ("NO_COLOR=1", False)]
)
def test_colour_is_for_terminals_that_have_it(variables: str, is_coloured: bool) -> None:
    done = shell(
        f'script -qec "env {variables} \\"{sys.executable}\\" -m tierwall check examples/shop/broken" /dev/null'
    )
    assert "TW105" in done.stdout
    assert ("\x1b" in done.stdout) is is_coloured


def test_what_the_encoding_of_the_terminal_lacks_is_escaped() -> None:
    done = shell(f"PYTHONIOENCODING=latin-1 tierwall {QUESTION}")
    assert (done.returncode, done.stderr) == (3, "")
    assert "for it \\u2192 namespace: NetworkPolicy/shop/db-from-api denied" in done.stdout


def test_an_interrupt_while_modules_are_imported_is_no_traceback() -> None:
    script = """
import sys
from tierwall.__main__ import main

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "tierwall.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "\nAborted!\n")
