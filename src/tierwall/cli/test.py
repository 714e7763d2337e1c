"""`tierwall test`: run policy tests (docs/policy-tests.md)."""

from __future__ import annotations

import sys

import click

from tierwall.cli.input import FOUND, colour, fail, output_option, show
from tierwall.engines.table import engine, offered_by


@click.command("test", epilog="Example: tierwall test tests/ -o junit > report.xml")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@output_option("text", "json", "junit")
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(list(offered_by("test"))),
    default="model",
    show_default=True,
    help="Who answers: the library, packets through nftables, or requests through Envoy.",
)
def command(paths: tuple[str, ...], output: str, engine_name: str) -> None:
    """Run every PolicyTest in the given files or folders.

    What is wrong with the objects that are judged is shown first and fails no case. Exit code 0 when all cases
    passed, 4 when some failed, 1 when a test file cannot be used.
    """
    from tierwall.core.diagnostics import InputError
    from tierwall.policytest.report import TestReport
    from tierwall.policytest.run import run
    from tierwall.policytest.suite import doubts, suites
    from tierwall.render import json, junit, text

    results = []
    try:
        found = suites(paths)
        show(doubts(found))
        for result in run(found, engine(engine_name)):
            results.append(result)
            if output == "text":
                for line in text.case_lines(result, colour(sys.stdout)):
                    click.echo(line)
    except InputError as error:
        fail(error)
    report = TestReport(tuple(results))
    if output == "json":
        click.echo(json.dump(json.report_document(report)))
    elif output == "junit":
        click.echo(junit.cases(report))
    else:
        skipped = f", {report.skipped} skipped" if report.skipped else ""
        click.echo(f"{report.passed} passed, {report.failed} failed{skipped}")
    sys.exit(FOUND if report.failed else 0)
