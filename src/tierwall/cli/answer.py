"""Asking a world a question and printing the answer: what the commands of all planes do alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tierwall.cli.input import CONDITIONAL, DENIED, fail

if TYPE_CHECKING:
    from tierwall.core.answer import Answer
    from tierwall.core.question import Question
    from tierwall.core.verdict import Verdict
    from tierwall.world import World


def ask(world: World, question: Question) -> Answer:
    """The answer; a question that cannot be asked ends the command with exit code 1."""
    from tierwall.core.diagnostics import InputError

    try:
        return world.ask(question)
    except InputError as error:
        fail(error, world)


def write(answer: Answer, world: World, output: str) -> None:
    """Print an answer as text or JSON."""
    from tierwall.render import answer_text, json

    if output == "json":
        click.echo(json.dump(answer.to_dict()))
        return
    for line in answer_text.lines(answer, world.line):
        click.echo(line)


def exit_code(verdict: Verdict | None) -> int:
    """The exit code of a verdict; settings, which have none, are simply told (docs/reference/exit-codes.md)."""
    from tierwall.core.verdict import Verdict

    codes = {Verdict.DENY: DENIED, Verdict.NO_OPINION: DENIED, Verdict.CONDITIONAL: CONDITIONAL}
    return codes.get(verdict, 0) if verdict is not None else 0
