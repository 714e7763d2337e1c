"""`tierwall tools`: what a caller may use, per backend, with the rules that grant it."""

from __future__ import annotations

import click

from tierwall.cli.command import flag, option, output, runs, several, write
from tierwall.cli.objects import ReadsObjects
from tierwall.cli.options import Caller


class Params(Caller, ReadsObjects):
    """Who asks, and about which backends and tools."""

    gateway: str | None = option(metavar="NS/NAME", help="Only through this Gateway.")
    backend: str | None = option(metavar="NS/NAME", help="Only at this XBackend, or Service/NS/NAME.")
    tools: tuple[str, ...] = several("--tool", metavar="NAME", help="A tool to ask about that no policy names.")
    everything: bool = flag("List denied tools too, with the policy that denies them.", "--all")
    output: str = output("tools")


@click.command("tools", epilog="Example: tierwall tools --caller agents/shopper -f manifests/")
@runs(Params)
def command(params: Params) -> None:
    """List what a caller may use: every backend that a route leads to, every tool that is known there.

    Known tools are those that policies name and those that a backend declares in the annotation `tierwall.io/tools`;
    `*` stands for any other. `Conditional` means that it depends on the host, the headers, the arguments, the time, or
    an authorizer; the condition is shown.
    """
    from tierwall.core.verdict import Verdict
    from tierwall.tool.grants import grants, nearest_caller
    from tierwall.tool.sentence import caller_words

    world = params.world()
    granted = grants(world.snapshot, params.who, params.gateway, params.backend, params.tools)
    if not granted.routed:
        click.echo("no route in the manifests leads there: taking every Gateway to lead to every backend", err=True)
    if params.output == "text" and not granted.ways:
        click.echo("there is no Gateway and backend to list", err=True)
    write("tools", params.output, (granted, params.everything))
    denied = all(row.verdict is Verdict.DENY for row in granted.rows)
    if params.output == "text" and granted.ways and denied and not params.everything:
        hint = nearest_caller(world.snapshot, granted.caller)
        unknown = f": no rule names it ({hint})" if hint else ""
        click.echo(f"no tool may be used by {caller_words(granted.caller)}{unknown}", err=True)
