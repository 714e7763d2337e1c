"""What commands share: reading the objects they work on, and writing what they found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tierwall.core.diagnostics import Diagnostic
    from tierwall.render.text import Lines
    from tierwall.resources.load import Loaded
    from tierwall.resources.snapshot import Snapshot

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


def snapshot_from(paths: Sequence[str]) -> Snapshot:
    """The snapshot of all objects under `paths`; unreadable input is shown and ends the command with exit code 1."""
    (snapshot,) = snapshots_from(paths)
    return snapshot


def loaded_from(paths: Sequence[str]) -> Loaded:
    """All that is read under `paths`; unreadable input is shown and ends the command with exit code 1."""
    from tierwall.cli.collector import load
    from tierwall.core.diagnostics import InputError

    loaded = load(paths)
    errors = [one for one in loaded.diagnostics if one.severity == "error"]
    if errors:
        fail(InputError(errors), loaded)
    return loaded


def snapshots_from(*folders: Sequence[str]) -> list[Snapshot]:
    """A snapshot for each set of paths; what is unreadable in any of them is shown before the command ends."""
    from tierwall.cli.collector import load

    loads = [load(paths) for paths in folders]
    broken = False
    for loaded in loads:
        errors = [one for one in loaded.diagnostics if one.severity == "error"]
        show(errors, loaded)
        broken = broken or bool(errors)
    if broken:
        sys.exit(FAILED)
    return [loaded.snapshot for loaded in loads]


def fail(error: Exception, loaded: Loaded | None = None) -> None:
    """Show every diagnostic of an input error on stderr and exit with 1."""
    from tierwall.core.diagnostics import InputError

    assert isinstance(error, InputError)
    show(error.diagnostics, loaded)
    sys.exit(FAILED)


def show(diagnostics: Iterable[Diagnostic], loaded: Loaded | None = None) -> None:
    """Write diagnostics to stderr, with the offending line where stderr is a terminal."""
    from tierwall.render import text

    terminal = sys.stderr.isatty()
    lines: Lines = loaded.line if loaded is not None else _line
    for line in text.diagnostics(diagnostics, lines, terminal, colour(sys.stderr)):
        click.echo(line, err=True)


def colour(stream: Any) -> bool:
    """Whether to colour: on a terminal, unless NO_COLOR is set."""
    import os

    return bool(stream.isatty()) and not os.environ.get("NO_COLOR")


def _line(file: str, number: int) -> str | None:
    return None
