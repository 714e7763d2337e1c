"""`tierwall explain`: ask one question of one plane; each plane's questions live in a module of their own."""

from __future__ import annotations

import click

from tierwall.cli.lazy import Lazy, LazyGroup

QUESTIONS = {
    "network": Lazy("tierwall.cli.explain_network:command", "May this pod open a connection to that one?"),
    "tool": Lazy("tierwall.cli.explain_tool:command", "May this caller use this tool through this Gateway?"),
    "gateway": Lazy("tierwall.cli.effective:command", "Which settings are in force at this place, and who set them?"),
    "api": Lazy("tierwall.cli.explain_api:command", "May this user do this, and under which conditions?"),
}


@click.group(
    "explain",
    cls=LazyGroup,
    lazy=QUESTIONS,
    epilog="Example: tierwall explain network --from shop/web-0 --to shop/db-0 --port 5432 -f manifests/",
)
def group() -> None:
    """Ask one question and see which policy decides it, and why.

    The first line is a plain sentence; the walk through the tiers and the source lines follow. `-o json` prints the
    same decision as a document.
    """
