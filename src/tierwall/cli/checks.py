"""`tierwall check`: every problem of every file at once, sorted by place."""

from __future__ import annotations

import click

from tierwall.cli.command import FAILED, FOUND, option, output, runs, worlds_read, write
from tierwall.cli.objects import ReadsPaths, load


class Params(ReadsPaths):
    """What is checked, and for whom."""

    namespace: str | None = option(
        metavar="NAME",
        help="Only what concerns this namespace, from its own objects and the cluster-scoped ones alone.",
    )
    output: str = output("check")


@click.command("check", epilog="Example: tierwall check manifests/ -o sarif > findings.sarif")
@runs(Params)
def command(params: Params) -> int:
    """Find everything that is wrong with the manifests in the given files or folders; by default in this folder.

    Exit code 0 when there is nothing to report but notes, 4 when there are findings, 1 when input cannot be read.
    """
    from tierwall.core.diagnostics import Diagnostics, InputError
    from tierwall.render.findings import Checked
    from tierwall.world import World

    loaded = load(params.objects_from)
    world = World.of(loaded)
    worlds_read().append(world)
    try:
        findings = Diagnostics(world.check(namespace=params.namespace))
    except InputError as error:
        raise InputError([*loaded.diagnostics, *error.diagnostics]) from None
    checked = Checked(findings, loaded)
    write("check", params.output, checked)
    if params.output == "text":
        click.echo(checked.summary, err=True)
    if findings.unreadable:
        return FAILED
    return FOUND if findings.serious else 0
