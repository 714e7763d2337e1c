"""The layout of help: a command's own options, then the objects that it reads, then the cluster; no word is broken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

OBJECTS, CLUSTER = "Objects to read", "Cluster to read"


# Help is wrapped with this in place of a hyphen, and written with a hyphen.
_UNBREAKABLE = "\N{NON-BREAKING HYPHEN}"


class HelpText(click.HelpFormatter):
    """Help that is wrapped between words alone: `--log-rate` and the words of an example can be copied."""

    def write(self, string: str) -> None:
        """Write a part of the help."""
        super().write(string.replace(_UNBREAKABLE, "-"))

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(text.replace("-", _UNBREAKABLE))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a list of names and what they mean."""
        super().write_dl([(name, text.replace("-", _UNBREAKABLE)) for name, text in rows], col_max, col_spacing)


class HelpContext(click.Context):
    """The context of a command."""

    formatter_class = HelpText


class SectionedOption(click.Option):
    """An option that stands in a section of the help."""

    def __init__(self, *args: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help has its options in sections."""

    context_class = HelpContext

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {"": []}
        for parameter in self.get_params(ctx):
            # Arguments stand in the usage line, and the text above says what they are.
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
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
