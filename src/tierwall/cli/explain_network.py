"""`tierwall explain network`: may this end open a connection to that one, and which rule says so?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.input import fail, file_option, loaded_from, output_option

if TYPE_CHECKING:
    from tierwall.network.decide import Decision
    from tierwall.network.would import Would
    from tierwall.resources.load import Loaded

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
    from tierwall.core.diagnostics import InputError
    from tierwall.core.verdict import EXIT_CODES
    from tierwall.network.question import answer, document, with_shadow
    from tierwall.render import json

    loaded = loaded_from(paths)
    question = {"from": _end(source), "to": _end(destination), "port": port, "protocol": protocol.upper()}
    try:
        decision = answer(loaded.snapshot, question)
        shadow = with_shadow(loaded.snapshot, question, decision)
    except InputError as error:
        fail(error, loaded)
    if output == "json":
        click.echo(json.dump(document(decision, shadow)))
    else:
        for line in _lines(decision, shadow, loaded):
            click.echo(line)
    sys.exit(EXIT_CODES[decision.verdict])


def _end(text: str) -> Any:
    from tierwall.network.model.addresses import parse_address

    if parse_address(text) is not None:
        return {"ip": text}
    return {"node": text.removeprefix("node:")} if text.startswith("node:") else text


def _lines(decision: Decision, shadow: Would | None, loaded: Loaded) -> Iterator[str]:
    from tierwall.network.question import steps
    from tierwall.network.sentence import sentence, walk
    from tierwall.render.text import shortened

    yield sentence(decision)
    if shadow is not None:
        yield shadow.sentence
    yield ""
    for judgement in (decision.egress, decision.ingress):
        yield f"{judgement.direction:8} {judgement.outcome.verdict:14} {walk(judgement)}"
    places = [
        (step, step.position)
        for judgement in (decision.egress, decision.ingress)
        for step in steps(decision, judgement)
    ]
    notes = dict.fromkeys(step.note for step, _ in places if step.note)
    if notes:
        yield ""
        yield from (f"note: {note}" for note in notes)
    written = [(step, position) for step, position in places if position is not None]
    if written:
        yield ""
    for step, position in written:
        yield f"{position}: {step.policy} {step.rule} {step.outcome}"
        text = loaded.line(position.file, position.line)
        if text is not None and text.strip():
            yield f"    {shortened(text.strip())}"
