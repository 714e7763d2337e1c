"""`tierwall explain network`: may this end open a connection to that one, and which rule says so?"""

from __future__ import annotations

import sys

import click

from tierwall.cli.answer import ask, exit_code, write
from tierwall.cli.input import file_option, output_option, world_from

END = "`namespace/pod`, an IP address, or `node:NAME`"


@click.command(
    "network", epilog="Example: tierwall explain network --from shop/web-0 --to shop/db-0 --port 5432 -f manifests/"
)
@click.option("--from", "source", required=True, metavar="END", help=f"Who opens the connection: {END}.")
@click.option("--to", "destination", required=True, metavar="END", help=f"Who is to accept it: {END}.")
@click.option("--port", required=True, type=int, help="Destination port number.")
@click.option("--protocol", type=click.Choice(("TCP", "UDP", "SCTP"), case_sensitive=False), default="TCP")
@file_option
@output_option("text", "json")
def command(source: str, destination: str, port: int, protocol: str, paths: tuple[str, ...], output: str) -> None:
    """May this pod open a connection to that one?

    The first line is the answer in plain words, and a second what policies in shadow mode would change. Then each
    direction's walk through the tiers, then the lines of the manifests that were looked at.

    Exit code 0 allowed, 3 denied, 5 conditional, 1 the input failed.
    """
    from tierwall.network.question import NetworkQuestion

    world = world_from(paths)
    question = NetworkQuestion(source=_end(source), to=_end(destination), port=port, protocol=protocol.upper())
    answer = ask(world, question)
    write(answer, world, output)
    sys.exit(exit_code(answer.verdict))


def _end(text: str) -> str | dict[str, str]:
    from tierwall.values.addresses import parse_address

    if parse_address(text) is not None:
        return {"ip": text}
    return {"node": text.removeprefix("node:")} if text.startswith("node:") else text
