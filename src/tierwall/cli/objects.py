"""Reading the objects that a command works on (docs/reference/sources.md): one set of options, one way to load."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tierwall.cli.command import FAILED, Params, argument, option, show, worlds_read

if TYPE_CHECKING:
    from tierwall.resources.load import Loaded
    from tierwall.serve.follower import Files
    from tierwall.world import World


def files(help: str, **settings: Any) -> Any:
    """`-f PATH`, which may be given several times."""
    return option("-f", "--file", last=True, multiple=True, metavar="PATH", help=help, **settings)


class ReadsObjects(Params):
    """The options of every command that reads objects: what says where they come from is declared here."""

    files: tuple[str, ...] = files(
        "File or folder of manifests; `-` is standard input. May be repeated.", show_default="this folder"
    )

    paths: tuple[str, ...] = ()
    # What to say where nothing is given and this folder is not taken for granted.
    missing: ClassVar[str] = ""

    @property
    def objects_from(self) -> tuple[str, ...]:
        """Every file and folder that is given: arguments, then options; this folder where none is."""
        given = (*self.paths, *self.files)
        if not given and self.missing:
            raise click.UsageError(self.missing)
        return given or (".",)

    def world(self) -> World:
        """The objects; what cannot be read is shown and ends the command with exit code 1."""
        (world,) = worlds_from(self.objects_from)
        return world

    def followed(self, *interval: float) -> Files:
        """The objects as an engine follows them, with the seconds between looks if these are given."""
        from tierwall.cli.collector import CommandLoader, collect_as_usual
        from tierwall.serve.follower import Files

        paths = self.objects_from
        take_stdin(paths)
        collect_as_usual()
        return Files(CommandLoader(paths), *interval)


class ReadsPaths(ReadsObjects):
    """The same for commands that take `PATH...` too."""

    paths: tuple[str, ...] = argument(nargs=-1, metavar="[PATH]...")


class NeedsPaths(ReadsObjects):
    """The same for commands that never take this folder for granted."""

    paths: tuple[str, ...] = argument(nargs=-1, metavar="PATH...")
    files: tuple[str, ...] = files("The same as PATH. May be repeated.")
    missing = "Missing argument 'PATH...'."


def worlds_from(*folders: Iterable[str]) -> list[World]:
    """A world for each set of paths; what is unreadable in any of them is shown before the command ends."""
    from tierwall.world import World

    loads = [load(paths) for paths in folders]
    for loaded in loads:
        show(loaded.errors, loaded)
    if any(loaded.errors for loaded in loads):
        sys.exit(FAILED)
    worlds = [World.of(loaded) for loaded in loads]
    worlds_read().extend(worlds)
    return worlds


def take_stdin(paths: Iterable[str]) -> None:
    """Note who reads standard input: a second reader would find nothing, and take that for an answer."""
    meta = click.get_current_context().meta
    if "-" in paths:
        if meta.get("tierwall.stdin"):
            raise click.UsageError("standard input (`-`) can be read only once")
        meta["tierwall.stdin"] = True


def load(paths: Iterable[str]) -> Loaded:
    """Read files and folders; problems are collected, never raised."""
    from tierwall.cli.collector import CommandLoader

    paths = tuple(paths)
    take_stdin(paths)
    return CommandLoader(paths).load()
