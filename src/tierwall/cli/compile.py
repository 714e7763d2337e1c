"""`tierwall compile`: print what an engine would be given; each engine's compiler lives in a module of its own."""

from __future__ import annotations

import click

from tierwall.cli.lazy import Lazy, LazyGroup

ENGINES = {
    "envoy": Lazy("tierwall.cli.compile_envoy:command", "Tool policies as configuration of Envoy."),
    "nft": Lazy("tierwall.cli.compile_nft:command", "Network policies as one nftables table."),
}


@click.group(
    "compile",
    cls=LazyGroup,
    lazy=ENGINES,
    epilog="Example: tierwall compile nft -f manifests/ --node worker-1 > table.nft",
)
def group() -> None:
    """Print what an engine would be given; nothing is applied."""
