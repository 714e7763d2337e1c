"""What commands share: reading the objects they work on, and writing what they found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from tierwall.core.diagnostics import Diagnostic, InputError
    from tierwall.core.protocols import Report
    from tierwall.render.text import Lines
    from tierwall.resources.load import Loaded
    from tierwall.world import World

F = TypeVar("F", bound=Callable[..., Any])

# docs/reference/exit-codes.md.
FAILED, USAGE, DENIED, FOUND, CONDITIONAL = 1, 2, 3, 4, 5


def file_option(function: F) -> F:
    """`-f PATH`, repeatable: the files and folders to read; `-` is standard input."""
    return click.option(
        "-f",
        "--file",
        "paths",
        multiple=True,
        default=(".",),
        show_default="this folder",
        metavar="PATH",
        help="File or folder of manifests; `-` is standard input. May be repeated.",
    )(function)


def output_option(*formats: str) -> Callable[[F], F]:
    """`-o FORMAT`; the first format is the default."""
    return click.option("-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True)


def world_from(paths: Sequence[str]) -> World:
    """Everything that is read under `paths`; unreadable input is shown and ends the command with exit code 1."""
    (world,) = worlds_from(paths)
    return world


def worlds_from(*folders: Sequence[str]) -> list[World]:
    """A world for each set of paths; what is unreadable in any of them is shown before the command ends."""
    from tierwall.cli.collector import load
    from tierwall.world import World

    loads = [load(paths) for paths in folders]
    for loaded in loads:
        show(loaded.errors, loaded)
    if any(loaded.errors for loaded in loads):
        sys.exit(FAILED)
    return [World.of(loaded) for loaded in loads]


def fail(error: InputError, read: Loaded | World | None = None) -> NoReturn:
    """Show every diagnostic of an input error on stderr and exit with 1."""
    show(error.diagnostics, read or error.read)
    sys.exit(FAILED)


def show(diagnostics: Iterable[Diagnostic], read: Loaded | World | None = None) -> None:
    """Write diagnostics to stderr, with the offending line where stderr is a terminal."""
    from tierwall.render import text

    terminal = sys.stderr.isatty()
    lines: Lines = read.line if read is not None else _line
    for line in text.diagnostics(diagnostics, lines, terminal, colour(sys.stderr)):
        click.echo(line, err=True)


def tell(step: Report) -> None:
    """Write what an engine did to stderr, after what was noticed on the way."""
    show(step.diagnostics, step.read)
    click.echo(step.words, err=True)


def colour(stream: Any) -> bool:
    """Whether to colour: on a terminal, unless NO_COLOR is set."""
    import os

    return bool(stream.isatty()) and not os.environ.get("NO_COLOR")


def _line(file: str, number: int) -> str | None:
    return None
