"""The sections of a command's help: its own options, then the objects that it reads, then the cluster."""

from __future__ import annotations

from typing import Any

import click

OBJECTS, CLUSTER = "Objects to read", "Cluster to read"


class SectionedOption(click.Option):
    """An option that stands in a section of the help."""

    def __init__(self, *args: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help has its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {"": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(parameter, "section", ""), []).append(record)
        for name in ("", OBJECTS, CLUSTER):
            if sections.get(name):
                with formatter.section(name or "Options"):
                    formatter.write_dl(sections[name])


class SectionedGroup(SectionedCommand, click.Group):
    """A group that is a command by itself, with its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)
