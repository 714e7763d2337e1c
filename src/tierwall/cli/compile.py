"""`tierwall compile`: print what an engine would be given; each engine has a module for its options."""

from __future__ import annotations

import click

from tierwall.cli.lazy import Lazy, LazyGroup
from tierwall.engines.table import offered_by

ENGINES = {
    name: Lazy(f"tierwall.cli.compile_{name}:command", entry.title) for name, entry in offered_by("compile").items()
}


@click.group(
    "compile",
    cls=LazyGroup,
    lazy=ENGINES,
    epilog="Example: tierwall compile nft -f manifests/ --node worker-1 > table.nft",
)
def group() -> None:
    """Print what an engine would be given; nothing is applied."""
