"""`tierwall diff`: which connections a change of policies opens and closes, and because of which rule."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tierwall.cli.input import FAILED, FOUND, output_option, show, worlds_from

if TYPE_CHECKING:
    from tierwall.network.reach.listing import Entry


@click.command("diff", epilog="Example: tierwall diff main/manifests/ manifests/ -o md")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@output_option("text", "json", "csv", "md", "dot", "mermaid", "html")
def command(old: str, new: str, output: str) -> None:
    """Compare the connections that two folders of manifests let pass.

    `+` appears, `-` vanishes, `~` hangs on other domain names; below each stands who settles it now, and who did
    before. Exit code 0 when nothing changes, 4 when anything does.
    """
    from tierwall.core.diagnostics import in_order
    from tierwall.network.model.shadow import notes
    from tierwall.network.reach.compare import compare

    before, after = worlds_from([old], [new])
    show(in_order([*notes(before.snapshot), *notes(after.snapshot)]))
    changes = list(compare(before.snapshot, after.snapshot))
    for line in _lines(changes, output):
        click.echo(line)
    if not changes and output == "text":
        click.echo("no connection changes", err=True)
    sys.exit(FOUND if changes else 0)


def _lines(changes: list[Entry], output: str) -> Iterable[str]:
    from tierwall.network.reach.blocks import TooManyBlocks
    from tierwall.network.reach.picture import picture_of_changes
    from tierwall.render import reach_csv, reach_dot, reach_html, reach_json, reach_md, reach_mermaid, reach_text

    if output == "text":
        return reach_text.lines(changes)
    if output == "json":
        return reach_json.lines(changes)
    if output == "csv":
        return reach_csv.lines(changes)
    if output == "md":
        return reach_md.lines(changes)
    try:
        drawn = picture_of_changes(changes)
    except TooManyBlocks as error:
        click.echo(f"error: this is too large for a picture: {error}", err=True)
        sys.exit(FAILED)
    if output == "html":
        return reach_html.lines(drawn, "Changed connections", changes=True)
    return reach_dot.lines(drawn) if output == "dot" else reach_mermaid.lines(drawn)
