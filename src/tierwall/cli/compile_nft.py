"""`tierwall compile nft`: print the nftables table that enforces the network policies."""

from __future__ import annotations

from typing import Any

import click

from tierwall.cli.input import fail, file_option, show, world_from
from tierwall.cli.nft_options import options, table_options


@click.command("nft", epilog="Example: tierwall compile nft -f manifests/ | sudo nft -f -")
@file_option
@table_options
def command(paths: tuple[str, ...], **given: Any) -> None:
    """Print the nftables table that enforces the network policies on the pods."""
    from tierwall.core.diagnostics import InputError
    from tierwall.engines.nftables.table.table import text
    from tierwall.engines.table import engine

    try:
        compiled = engine("nft", options=options(given)).compile(world_from(paths).snapshot)
    except InputError as error:
        fail(error)
    show(compiled.diagnostics)
    click.echo(text(compiled.table), nl=False)
