"""`tierwall check`: every problem of every file at once, sorted by place."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import click

from tierwall.cli.input import FAILED, FOUND, colour, fail, output_option

if TYPE_CHECKING:
    from tierwall.core.diagnostics import Diagnostic
    from tierwall.resources.load import Loaded


@click.command("check", epilog="Example: tierwall check manifests/ -o sarif > findings.sarif")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--namespace",
    metavar="NAME",
    help="Only what concerns this namespace, from its own objects and the cluster-scoped ones alone.",
)
@output_option("text", "json", "sarif", "github", "junit")
def command(paths: tuple[str, ...], namespace: str | None, output: str) -> None:
    """Find everything that is wrong with the manifests in the given files or folders.

    Exit code 0 when there is nothing to report but notes, 4 when there are findings, 1 when input cannot be read.
    """
    from tierwall.cli.collector import load
    from tierwall.core.diagnostics import InputError
    from tierwall.world import World

    loaded = load(paths)
    try:
        findings = World.of(loaded).check(namespace=namespace)
    except InputError as error:
        fail(InputError([*loaded.diagnostics, *error.diagnostics]), loaded)
    _write(findings, loaded, output)
    if any(finding.unreadable for finding in findings):
        sys.exit(FAILED)
    sys.exit(FOUND if any(finding.severity != "note" for finding in findings) else 0)


def _write(findings: list[Diagnostic], loaded: Loaded, output: str) -> None:
    from tierwall.render import github, json, junit, sarif, text
    from tierwall.resources.kinds.registry import find_kind

    levels = Counter(str(finding.severity) for finding in findings)
    strangers = Counter(
        resource.kind for resource in loaded.resources if find_kind(resource.api_version, resource.kind) is None
    )
    summary: dict[str, int | dict[str, int]] = {
        "files": len(loaded.read.sources),
        "objects": len(loaded.resources),
        "errors": levels["error"],
        "warnings": levels["warning"],
        "notes": levels["note"],
        "passedOver": dict(sorted(strangers.items())),
    }
    if output == "json":
        click.echo(json.diagnostics(findings, summary))
    elif output == "sarif":
        click.echo(json.dump(sarif.diagnostics(findings)))
    elif output == "junit":
        click.echo(junit.diagnostics(findings, list(loaded.read.sources)))
    elif output == "github":
        for line in github.diagnostics(findings):
            click.echo(line)
    else:
        for line in text.diagnostics(findings, loaded.line, sys.stdout.isatty(), colour(sys.stdout)):
            click.echo(line)
        click.echo(_closing(summary), err=True)


def _closing(summary: dict[str, int | dict[str, int]]) -> str:
    from tierwall.render.text import count

    parts = []
    for key, noun in (("errors", "error"), ("warnings", "warning"), ("notes", "note")):
        number = summary[key]
        assert isinstance(number, int)
        if number or key == "errors":
            parts.append(count(number, noun))
    files, objects, passed_over = summary["files"], summary["objects"], summary["passedOver"]
    assert isinstance(files, int)
    assert isinstance(objects, int)
    assert isinstance(passed_over, dict)
    out = f"{', '.join(parts)} in {count(objects, 'object')} of {count(files, 'file')}"
    if passed_over:
        kinds = ", ".join(f"{number} {kind}" for kind, number in passed_over.items())
        out += f"; passed over, not ours to judge: {kinds}"
    return out
