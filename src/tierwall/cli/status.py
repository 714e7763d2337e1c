"""`tierwall status`: the conditions that a controller would write on each policy, in Gateway API form."""

from __future__ import annotations

import click

from tierwall.cli.input import fail, file_option, output_option, world_from


@click.command("status", epilog="Example: tierwall status AgentgatewayPolicy/shop/timeouts -f manifests/")
@click.argument("policies", nargs=-1, metavar="[POLICY]...")
@file_option
@output_option("text", "json")
def command(policies: tuple[str, ...], paths: tuple[str, ...], output: str) -> None:
    """Print, per policy and ancestor, the conditions that a controller would write.

    All AgentgatewayPolicies and AccessPolicies, or those named by reference. `-o json` prints objects with their
    `status`; the times of conditions that did not change are kept from the status that an object has.
    """
    from tierwall.core.diagnostics import InputError
    from tierwall.gateway.policy_status import statuses
    from tierwall.render import json, status_text
    from tierwall.render.json.status import status_document

    world = world_from(paths)
    try:
        answers = statuses(world.snapshot, *policies)
    except InputError as error:
        fail(error, world)
    if output == "json":
        click.echo(json.dump(json.items_document(map(status_document, answers))))
        return
    for number, status in enumerate(answers):
        if number:
            click.echo("")
        for line in status_text.lines(status):
            click.echo(line)
