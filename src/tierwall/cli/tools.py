"""`tierwall tools`: what a caller may use, per backend, with the rules that grant it."""

from __future__ import annotations

import click

from tierwall.cli.input import fail, file_option, output_option, world_from
from tierwall.cli.tool_options import caller as caller_of
from tierwall.cli.tool_options import caller_option


@click.command("tools", epilog="Example: tierwall tools --caller agents/shopper -f manifests/")
@caller_option
@click.option("--gateway", metavar="NS/NAME", help="Only through this Gateway.")
@click.option("--backend", metavar="NS/NAME", help="Only at this XBackend, or Service/NS/NAME.")
@click.option("--tool", "tools", multiple=True, metavar="NAME", help="A tool to ask about that no policy names.")
@click.option("--all", "everything", is_flag=True, help="List denied tools too, with the policy that denies them.")
@file_option
@output_option("text", "json")
def command(
    caller: str | None,
    gateway: str | None,
    backend: str | None,
    tools: tuple[str, ...],
    everything: bool,
    paths: tuple[str, ...],
    output: str,
) -> None:
    """List what a caller may use: every backend that a route leads to, every tool that is known there.

    Known tools are those that policies name and those that a backend declares in the annotation `tierwall.io/tools`;
    `*` stands for any other. `Conditional` means that it depends on the host, the headers, the arguments, the time, or
    an authorizer; the condition is shown.
    """
    from tierwall.core.diagnostics import InputError
    from tierwall.render import json, tools_text
    from tierwall.render.json.tool import tools_document
    from tierwall.tool.grants import grants, nearest_caller
    from tierwall.tool.sentence import caller_words

    world = world_from(paths)
    try:
        granted = grants(world.snapshot, caller_of(caller), gateway, backend, tools)
    except InputError as error:
        fail(error, world)
    if not granted.routed:
        click.echo("no route in the manifests leads there: taking every Gateway to lead to every backend", err=True)
    if output == "json":
        click.echo(json.dump(tools_document(granted, everything, world.not_considered)))
        return
    if not granted.ways:
        click.echo("there is no Gateway and backend to list", err=True)
    lines = list(tools_text.lines(granted, everything))
    for line in lines:
        click.echo(line)
    if granted.ways and not lines:
        hint = nearest_caller(world.snapshot, granted.caller)
        unknown = f": no rule names it ({hint})" if hint else ""
        click.echo(f"no tool may be used by {caller_words(granted.caller)}{unknown}", err=True)
