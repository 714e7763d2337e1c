"""`tierwall enforce`: make an engine obey the policies; each engine lives in a module of its own."""

from __future__ import annotations

import click

from tierwall.cli.lazy import Lazy, LazyGroup

ENGINES = {
    "nft": Lazy("tierwall.cli.enforce_nft:command", "Network policies, by nftables in this machine's kernel."),
}


@click.group(
    "enforce",
    cls=LazyGroup,
    lazy=ENGINES,
    epilog="Example: tierwall enforce nft manifests/ --node worker-1 --diff",
)
def group() -> None:
    """Make an engine obey the policies."""
