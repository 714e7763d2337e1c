"""Read the objects that a command works on (docs/reference/sources.md): one set of options, one way to load."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tierwall.cli.command import FAILED, Params, argument, option, print_diagnostics, worlds_read

if TYPE_CHECKING:
    from tierwall.resources.load import LoadResult
    from tierwall.serve.files import FileSource
    from tierwall.world import World


def files(help: str, **settings: Any) -> Any:
    """Declare `-f PATH`, which may be repeated."""
    return option("-f", "--file", last=True, multiple=True, metavar="PATH", help=help, **settings)


class ObjectParams(Params):
    """The options of every command that reads objects."""

    files: tuple[str, ...] = files(
        "File or folder of manifests; `-` is standard input. Repeatable.", show_default="the current folder"
    )

    paths: tuple[str, ...] = ()
    # The error where no path is given and the current folder is not the default.
    missing: ClassVar[str] = ""

    @property
    def all_paths(self) -> tuple[str, ...]:
        """All given files and folders: arguments, then options; the current folder if no path is given."""
        given = (*self.paths, *self.files)
        if not given and self.missing:
            raise click.UsageError(self.missing)
        return given or (".",)

    def world(self) -> World:
        """Read the objects. Errors are printed and end the command with exit code 1."""
        (world,) = worlds_from(self.all_paths)
        return world

    def object_source(self, poll_seconds: float | None = None, state: str | None = None) -> FileSource:
        """Make the source of objects that an engine follows; `state` is the folder of `--state`."""
        from tierwall.cli.collector import CommandLoader, restore_collector
        from tierwall.serve.files import FileSource

        paths = self.all_paths
        take_stdin(paths)
        restore_collector()
        if state is None:
            return FileSource(CommandLoader(paths), poll_seconds)
        from tierwall.serve.state import StateFolder

        return FileSource(CommandLoader(paths), poll_seconds, StateFolder(state))


class StateParams(Params):
    """The option of commands that keep running and must start again, whatever their files are then."""

    state: str | None = option(
        metavar="FOLDER",
        help="Keep the last good copy of each file here, for a start that finds one broken.",
    )


def strict() -> Any:
    """Declare `--strict`."""
    help = "Exit with code 6 if something that could change the answer was not considered."
    return option(is_flag=True, last=True, help=help)


class AnswerParams(ObjectParams):
    """The options of every command that answers questions about objects."""

    strict: bool = strict()


class PathParams(AnswerParams):
    """The options of commands that take `PATH...` too."""

    paths: tuple[str, ...] = argument(nargs=-1, metavar="[PATH]...")


class RequiredPathParams(ObjectParams):
    """The options of commands that need a path: the current folder is not the default."""

    paths: tuple[str, ...] = argument(nargs=-1, metavar="PATH...")
    files: tuple[str, ...] = files("The same as PATH. Repeatable.")
    missing = "Missing argument 'PATH...'."


def worlds_from(*folders: Iterable[str]) -> list[World]:
    """Read a world from each set of paths. Errors in all of them are printed before the command ends."""
    from tierwall.world import World

    loads = [load(paths) for paths in folders]
    for loaded in loads:
        print_diagnostics(loaded.errors, loaded)
    if any(loaded.errors for loaded in loads):
        sys.exit(FAILED)
    worlds = [World.of(loaded) for loaded in loads]
    worlds_read().extend(worlds)
    return worlds


def take_stdin(paths: Iterable[str]) -> None:
    """Refuse a second reader of standard input: it would find nothing, and answer as if there were no objects."""
    meta = click.get_current_context().meta
    if "-" in paths:
        if meta.get("tierwall.stdin"):
            raise click.UsageError("standard input (`-`) can be read only once")
        meta["tierwall.stdin"] = True


def load(paths: Iterable[str]) -> LoadResult:
    """Read files and folders. Problems are collected, never raised."""
    from tierwall.cli.collector import CommandLoader

    paths = tuple(paths)
    take_stdin(paths)
    return CommandLoader(paths).load()
