"""`check` finds every problem of every file, in order of place; `test` runs policy tests (docs/policy-tests.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tierwall.cli.command import (
    FAILED,
    HAS_FINDINGS,
    argument,
    choice,
    left_out,
    option,
    output,
    print_diagnostics,
    print_line,
    print_output,
    runs,
)
from tierwall.cli.objects import PathParams, SourceParams, files, refused_namespace, strict, take_stdin
from tierwall.engines.table import engine, offered_by

if TYPE_CHECKING:
    from tierwall.policytest.run import CaseResult


class CheckParams(PathParams):
    """The options of `check`."""

    namespace: str = refused_namespace()
    for_namespace: str | None = option(
        metavar="NAME",
        help="Check only this namespace, from its own objects and the cluster-scoped ones.",
    )
    output: str = output("check")


@click.command("check", epilog="Example: tierwall check manifests/ -o sarif > findings.sarif")
@runs(CheckParams)
def check(params: CheckParams) -> int:
    """Find everything that is wrong with the manifests in PATH, a file or folder; by default the current folder.

    Exit code 0 if there are at most notes, 4 if there are findings, 1 if input cannot be read.
    """
    from tierwall.core.diagnostics import Diagnostics, InputError
    from tierwall.render.findings import CheckResult
    from tierwall.world import World

    loaded = params.load(params.all_paths)
    (world,) = params.left([World.of(loaded, params.object_namespace)])
    try:
        findings = Diagnostics(world.check(namespace=params.for_namespace))
    except InputError as error:
        raise InputError([*loaded.diagnostics, *error.diagnostics]) from None
    checked = CheckResult(findings, loaded)
    print_output("check", params.output, checked)
    if params.output == "text":
        print_line(checked.summary, err=True)
    if findings.unreadable:
        return FAILED
    return HAS_FINDINGS if findings.serious else 0


class TestParams(SourceParams):
    """The options of `test`."""

    paths: tuple[str, ...] = argument(nargs=-1, required=True, metavar="PATH...")
    engine: str = choice(
        *offered_by("test"),
        help="What answers the questions: "
        + ", ".join(f"{entry.answered_by} ({name})" for name, entry in offered_by("test").items())
        + ".",
    )
    files: tuple[str, ...] = files(
        "File or folder of manifests that every test builds on; `-` is standard input. Repeatable."
    )
    strict: bool = strict()
    output: str = output("test")


@click.command("test", epilog="Example: tierwall test tests/ -o junit > report.xml")
@runs(TestParams)
def test(params: TestParams) -> int:
    """Run every PolicyTest in the given files or folders.

    Problems of the tested objects are shown first; they do not fail a case. Exit code 0 if all cases pass, 4 if some
    fail, 1 if a test file cannot be used.
    """
    from tierwall.policytest.run import run
    from tierwall.policytest.suite import object_problems, suites

    take_stdin(params.paths)
    base = params.worlds(params.files)[0].snapshot if params.files else None
    loaded = suites(params.paths, base, params.settings)
    print_diagnostics(object_problems(loaded))
    failed = 0

    def results() -> Iterator[CaseResult]:
        nonlocal failed
        for result in run(loaded, engine(params.engine)):
            failed += result.ok is False
            if result.answer is not None:
                left_out().update(dict.fromkeys(result.answer.not_considered))
            yield result

    print_output("test", params.output, results())
    return HAS_FINDINGS if failed else 0
