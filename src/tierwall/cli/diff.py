"""`tierwall diff`: which connections a change of policies opens and closes, and because of which rule."""

from __future__ import annotations

import sys

import click

from tierwall.cli.connections import LISTS, PICTURES, drawn, listed
from tierwall.cli.input import FOUND, output_option, show, worlds_from


@click.command("diff", epilog="Example: tierwall diff main/manifests/ manifests/ -o md")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@output_option(*LISTS, *PICTURES)
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
    if output in PICTURES:
        from tierwall.network.reach.picture import picture_of_changes

        lines = drawn(lambda: picture_of_changes(changes), output, changes=True)
    else:
        not_considered = dict.fromkeys((*before.not_considered, *after.not_considered))
        lines = listed(changes, output, not_considered)
    for line in lines:
        click.echo(line)
    if not changes and output == "text":
        click.echo("no connection changes", err=True)
    sys.exit(FOUND if changes else 0)
