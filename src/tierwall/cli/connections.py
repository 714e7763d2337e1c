"""Printing connections, listed or drawn: what `list` and `diff` do alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from tierwall.cli.input import FAILED

if TYPE_CHECKING:
    from tierwall.core.answer import Omission
    from tierwall.network.reach.listing import Entry
    from tierwall.network.reach.picture import Picture

LISTS = ("text", "json", "csv", "md")
PICTURES = ("dot", "mermaid", "html")


def listed(entries: Iterable[Entry], output: str, not_considered: Iterable[Omission]) -> Iterator[str]:
    """The lines of a list, in one of the formats `LISTS`."""
    from tierwall.render import reach_csv, reach_md, reach_text
    from tierwall.render.json import connections

    if output == "json":
        return connections.lines(entries, not_considered)
    return {"text": reach_text.lines, "csv": reach_csv.lines, "md": reach_md.lines}[output](entries)


def drawn(picture: Callable[[], Picture], output: str, *, changes: bool = False) -> Iterator[str]:
    """The lines of a picture, in one of the formats `PICTURES`; one that is too large ends the command."""
    from tierwall.network.reach.blocks import TooManyBlocks
    from tierwall.render import reach_dot, reach_html, reach_mermaid

    try:
        made = picture()
    except TooManyBlocks as error:
        hint = "" if changes else " (hint: narrow it with --from, --to, --port)"
        click.echo(f"error: this is too large for a picture: {error}{hint}", err=True)
        sys.exit(FAILED)
    if output == "html":
        return reach_html.lines(made, "Changed connections" if changes else "Connections", changes)
    return {"dot": reach_dot.lines, "mermaid": reach_mermaid.lines}[output](made)
