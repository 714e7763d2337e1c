"""A click group that imports a command only when it is run or its help is shown.

`tierwall --help` must not pay for the modules of every command, so a group knows its commands by name, one-line help
and `module:attribute`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command lives and the line that `--help` shows for it."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands are imported on first use; commands added in the ordinary way work beside them."""

    def __init__(self, *args: object, lazy: Mapping[str, Lazy] | None = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, in the order of the table, then the ordinary ones."""
        return [*self.lazy, *(name for name in super().list_commands(ctx) if name not in self.lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported now."""
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands for `--help`, from the table alone."""
        rows = [(name, self.lazy[name].summary) for name in self.lazy]
        for name in super().list_commands(ctx):
            command = super().get_command(ctx, name)
            if command is not None and name not in self.lazy and not command.hidden:
                rows.append((name, command.get_short_help_str()))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest command named when there is no such one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from tierwall.core.diagnostics import near_miss

            hint = near_miss(args[0], self.list_commands(ctx))
            words = error.message.rstrip(".")
            raise click.UsageError(f"{words}; {hint}" if hint else words, ctx=ctx) from None
