"""`tierwall enforce`: make an engine obey the policies; each engine has a module for its options."""

from __future__ import annotations

import click

from tierwall.cli.lazy import Lazy, LazyGroup
from tierwall.engines.table import offered_by

ENGINES = {
    name: Lazy(f"tierwall.cli.enforce_{name}:command", entry.title) for name, entry in offered_by("enforce").items()
}


@click.group(
    "enforce",
    cls=LazyGroup,
    lazy=ENGINES,
    epilog="Example: tierwall enforce nft manifests/ --node worker-1 --diff",
)
def group() -> None:
    """Make an engine obey the policies."""
