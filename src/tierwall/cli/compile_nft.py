"""`tierwall compile nft`: print the nftables table that enforces the network policies."""

from __future__ import annotations

from typing import Any

import click

from tierwall.cli.input import file_option, show, snapshot_from
from tierwall.cli.nft_options import options, table_options


@click.command("nft", epilog="Example: tierwall compile nft -f manifests/ | sudo nft -f -")
@file_option
@table_options
def command(paths: tuple[str, ...], **given: Any) -> None:
    """Print the nftables table that enforces the network policies on the pods."""
    from tierwall.engines.nftables.compile import compile_model
    from tierwall.engines.nftables.table import text
    from tierwall.network.model.model import model

    this = model(snapshot_from(paths))
    if given["node"] is not None and this.node(given["node"]) is None:
        _unknown_node(given["node"], {one.node for one in this.pods} | {one.name for one in this.nodes})
    compiled = compile_model(this, options(given))
    show(compiled.diagnostics)
    click.echo(text(compiled.table), nl=False)


def _unknown_node(name: str, known: set[str]) -> None:
    from tierwall.cli.input import fail
    from tierwall.core.diagnostics import Diagnostic, InputError, near_miss

    if name not in known:
        fail(InputError([Diagnostic("TW703", f"there is no node `{name}`", hint=near_miss(name, sorted(known)))]))
