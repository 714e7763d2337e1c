"""`tierwall explain tool`: may this caller use this tool through this Gateway, and which policy says so?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.answer import ask, exit_code, write
from tierwall.cli.input import file_option, output_option, world_from
from tierwall.cli.tool_options import caller as caller_of
from tierwall.cli.tool_options import caller_option, pairs

if TYPE_CHECKING:
    from tierwall.core.answer import Answer
    from tierwall.world import World


@click.command(
    "tool",
    epilog="Example: tierwall explain tool --gateway prod/prod-gateway --backend prod/payment-service "
    "--caller agents/shopper --tool refund -f manifests/",
)
@click.option("--gateway", required=True, metavar="NS/NAME", help="The Gateway that the request comes in at.")
@click.option("--listener", metavar="NAME", help="Its listener; needed where it has several.")
@click.option("--backend", required=True, metavar="NS/NAME", help="The XBackend, or Service/NS/NAME.")
@caller_option
@click.option("--tool", metavar="NAME", help="The tool or prompt; the method is tools/call unless --method says else.")
@click.option("--method", metavar="METHOD", help="The JSON-RPC method, such as tools/list.")
@click.option("--uri", metavar="URI", help="The resource of resources/read and its kin.")
@click.option("--arguments", metavar="JSON", help="The arguments of the call, for expressions that look at them.")
@click.option("--http-method", metavar="VERB", help="GET, POST (default), DELETE, …")
@click.option("--path", metavar="PATH", help="The path of the request; the backend's own by default.")
@click.option("--host", metavar="HOST", help="The Host header.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header; may be repeated.")
@click.option(
    "--external-auth",
    "answers",
    multiple=True,
    metavar="POLICY=ANSWER",
    help="What an authorizer answers, Allow or Deny, by the policy that asks it; others cannot be reached.",
)
@click.option("--time", metavar="RFC3339", help="When the request is made, for expressions that look at it.")
@file_option
@output_option("text", "json")
def command(
    gateway: str,
    listener: str | None,
    backend: str,
    caller: str | None,
    tool: str | None,
    method: str | None,
    uri: str | None,
    arguments: str | None,
    http_method: str | None,
    path: str | None,
    host: str | None,
    headers: tuple[str, ...],
    answers: tuple[str, ...],
    time: str | None,
    paths: tuple[str, ...],
    output: str,
) -> None:
    """May this caller use this tool through this Gateway?

    The first line is the answer in plain words. Then every policy that was evaluated, in order, with the lines of the
    manifests. Exit code 0 allowed, 3 denied, 1 the input failed.
    """
    from tierwall.tool.question import ToolQuestion

    http = {"method": http_method, "path": path, "host": host, "headers": pairs(headers, "--header", ":") or None}
    question = ToolQuestion(
        gateway=gateway,
        listener=listener,
        backend=backend,
        caller=caller_of(caller),
        method="tools/call" if method is None and tool is not None else method,
        tool=tool,
        uri=uri,
        arguments=_arguments(arguments),
        http={key: value for key, value in http.items() if value is not None},
        external_auth=pairs(answers, "--external-auth", "="),
        time=time,
    )
    world = world_from(paths)
    answer = ask(world, question)
    write(answer, world, output)
    if output == "text":
        _note_missing_route(answer, world)
    sys.exit(exit_code(answer.verdict))


def _arguments(text: str | None) -> Any:
    import json

    if text is None:
        return None
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise click.UsageError(f"expected a JSON object for --arguments, found `{text}`")
    return arguments


def _note_missing_route(answer: Answer, world: World) -> None:
    """Say so where the manifests hold routes to backends, but none on the way that was asked about."""
    from tierwall.tool.ways import is_unrouted

    request = answer.detail.request
    if is_unrouted(world.snapshot, request.gateway, request.backend):
        click.echo(f"note: no route in the manifests leads from {request.gateway} to {request.backend}", err=True)
