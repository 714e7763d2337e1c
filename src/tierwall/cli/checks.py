"""`check` finds every problem of every file, in order of place; `test` runs policy tests (docs/policy-tests.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.command import (
    FAILED,
    HAS_FINDINGS,
    argument,
    choice,
    command,
    left_out,
    option,
    output,
    print_diagnostics,
    print_line,
    print_output,
    repeated_option,
    runs,
)
from tierwall.cli.objects import (
    PathParams,
    SourceParams,
    backend_ref_grants,
    files,
    refused_namespace,
    skip_non_manifests,
    strict,
    take_stdin,
)
from tierwall.engines.table import engine, offered_by

if TYPE_CHECKING:
    from tierwall.policytest.run import CaseResult


class CheckParams(PathParams):
    """The options of `check`."""

    namespace: str | None = refused_namespace()
    for_namespace: str | None = option(
        metavar="NAME",
        help="Check only this namespace, from its own objects and the cluster-scoped ones.",
    )
    select: tuple[str, ...] = repeated_option(metavar="CODE", help="Report only this code or prefix. Repeatable.")
    ignore: tuple[str, ...] = repeated_option(metavar="CODE", help="Do not report this code or prefix. Repeatable.")
    fail_on: str = choice(
        "error", "warning", "note", default="warning", help="Exit with code 4 for findings at least as serious as this."
    )
    baseline: str | None = option(metavar="FILE", help="Leave out the findings that this file accepts.")
    write_baseline: str | None = option(metavar="FILE", help="Write a baseline that accepts every current finding.")
    against: tuple[str, ...] = repeated_option(
        metavar="PATH", help="Report only what these older manifests do not have yet. Repeatable."
    )
    skip_non_manifests: bool = skip_non_manifests()
    backend_ref_grants: Any = backend_ref_grants()
    output: str = output("check")


@command("check", epilog="Example: tierwall check manifests/ -o sarif > findings.sarif")
@runs(CheckParams)
def check(params: CheckParams) -> int:
    """Find everything that is wrong with the manifests in PATH, a file or folder; by default the current folder.

    Exit code 0 if there are at most notes (see --fail-on), 4 if there are findings, 1 if input cannot be read.
    """
    from tierwall.core.catalogue import Severity
    from tierwall.core.diagnostics import InputError
    from tierwall.render.findings import CheckResult
    from tierwall.world import World

    for option_name, codes in (("--select", params.select), ("--ignore", params.ignore)):
        _refuse_unknown_codes(option_name, codes)
    baseline = None
    if params.baseline is not None:
        from tierwall.cli.baseline import baseline_of

        baseline = baseline_of(params.baseline)
    loads = [params.load(params.against)] if params.against else []
    if loads and (unreadable := loads[0].diagnostics.unreadable):
        print_diagnostics(unreadable, loads[0])
        return FAILED
    loads.append(params.load(params.all_paths))
    *older, world = params.left(list(map(World.of, loads)))
    loaded = loads[-1]
    try:
        reviewed = world.review(
            params.select or None,
            params.ignore,
            namespace=params.for_namespace,
            baseline=baseline,
            against=older[0] if older else None,
        )
    except InputError as error:
        raise InputError([*loaded.diagnostics, *error.diagnostics]) from None
    if params.write_baseline is not None:
        from tierwall.cli.baseline import write_baseline

        reviewed = write_baseline(reviewed, params.write_baseline)
    compared = baseline is not None or bool(older) or params.write_baseline is not None
    left_out_here = world.not_considered if params.for_namespace is None else world.left_out_of(params.for_namespace)
    checked = CheckResult(reviewed, loaded, Severity(params.fail_on), compared, (*left_out_here, *world.unread))
    print_output("check", params.output, checked)
    if params.output == "text":
        print_line(checked.summary, err=True)
    if reviewed.findings.unreadable:
        return FAILED
    return HAS_FINDINGS if reviewed.findings.at_least(checked.fail_on) else 0


def _refuse_unknown_codes(name: str, codes: tuple[str, ...]) -> None:
    """Refuse an unknown code, which would select or ignore nothing."""
    from tierwall.core.catalogue import CATALOGUE
    from tierwall.core.diagnostics import near_miss
    from tierwall.core.words import with_hint

    for code in codes:
        if not code or not any(known.startswith(code) for known in CATALOGUE):
            message = f"expected a code such as TW204 or a prefix such as TW2, found `{code}`"
            raise click.BadParameter(with_hint(message, near_miss(code, CATALOGUE)), param_hint=name)


class TestParams(SourceParams):
    """The options of `test`."""

    skip_non_manifests: bool = skip_non_manifests()
    backend_ref_grants: Any = backend_ref_grants()
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

    def say_what_is_not_used(self) -> None:
        """Say nothing: tests may name clusters themselves."""


@command("test", epilog="Example: tierwall test tests/ -o junit > report.xml")
@runs(TestParams)
def test(params: TestParams) -> int:
    """Run every PolicyTest in the given files or folders.

    A test that says `cluster: true` or `context: NAME` is judged against that cluster, with its objects over it. With
    --cluster or --context, every test is judged against this one.

    A case may be a proof, about everything that may ever come (docs/prove.md).

    Problems of the tested objects are shown first; they do not fail a case. Exit code 0 if all cases pass, 4 if some
    fail, 1 if a test file cannot be used or a cluster cannot be read.
    """
    from msgspec.structs import replace

    from tierwall.cli.collector import collector_off
    from tierwall.cli.progress import progress_line
    from tierwall.policytest.run import run
    from tierwall.policytest.suite import object_problems, suites

    take_stdin(params.paths)
    has_base = bool(params.files) or params.cluster_to_read is not None
    world = params.worlds(params.files)[0] if has_base else None
    base, settings = None, params.settings
    if world is not None:
        base, settings = world.snapshot, replace(settings, namespace=world.namespace)
    # The cluster of the command line, or a snapshot of one, takes the place of those that tests name.
    beats_tests = params.cluster_to_read is not None or (base is not None and base.is_live)
    with collector_off(), progress_line() as progress:
        named = None if beats_tests else params.cluster_of_options
        loaded = suites(params.paths, base, settings, named, progress)
    print_diagnostics(object_problems(loaded))
    failed = defects = 0

    def results() -> Iterator[CaseResult]:
        nonlocal failed, defects
        for result in run(loaded, engine(params.engine)):
            failed += result.ok is False
            if result.proof is not None:
                defects += result.proof.is_defect
                left_out().update(dict.fromkeys(result.proof.not_considered))
            if result.answer is not None:
                left_out().update(dict.fromkeys(result.answer.not_considered))
            yield result

    cases = results()
    print_output("test", params.output, cases)
    for _ in cases:  # Cases that nobody wants to read any more count, too.
        pass
    return FAILED if defects else HAS_FINDINGS if failed else 0
