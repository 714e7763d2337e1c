"""The command groups with one command for each plane or engine: `explain`, `compile` and `enforce`."""

from __future__ import annotations

import click

from tierwall.cli.main import LazyGroup
from tierwall.engines.table import enforced_with, offered_by

QUESTIONS = {
    "network": ("tierwall.cli.network:explain", "May this pod open a connection to that one?"),
    "tool": ("tierwall.cli.tool:explain", "May this caller use this tool through this Gateway?"),
    "gateway": ("tierwall.cli.gateway:explain", "Which settings are in force at this place, and who set them?"),
    "api": ("tierwall.cli.api:explain", "May this user do this, and under which conditions?"),
    "path": ("tierwall.cli.path:explain", "May this pod's agent make this call, all planes considered?"),
}


@click.group(
    "explain",
    cls=LazyGroup,
    lazy=QUESTIONS,
    epilog="Example: tierwall explain network --from shop/web-0 --to shop/db-0 --port 5432 -f manifests/",
)
def explain() -> None:
    """Ask one question and see which policy decides it, and why.

    The first line is a plain sentence; the walk through the tiers and the source lines follow. `-o json` prints the
    same decision as a document.
    """


@click.group(
    "compile",
    cls=LazyGroup,
    lazy={name: (f"tierwall.cli.{name}:compile", entry.title) for name, entry in offered_by("compile").items()},
    help=" ".join(
        (
            "Print the configuration that an engine would get; nothing is applied.",
            *(
                f"There is nothing to compile for the {name}: `tierwall {command}` evaluates the policies directly."
                for name, command in enforced_with().items()
                if name not in offered_by("compile")
            ),
        )
    ),
    epilog="Example: tierwall compile nft -f manifests/ --node worker-1 > table.nft",
)
def compile() -> None:
    """Print the configuration that an engine would get; nothing is applied."""


@click.group(
    "enforce",
    cls=LazyGroup,
    lazy={name: (f"tierwall.cli.{name}:enforce", entry.title) for name, entry in offered_by("enforce").items()},
    elsewhere={name: command for name, command in enforced_with().items() if command != "enforce"},
    help="Enforce the policies with an engine. Engines that need a running process have their own command: "
    + ", ".join(f"`tierwall {command}` ({name})" for name, command in enforced_with().items() if command != "enforce")
    + ".",
    epilog="Example: tierwall enforce nft manifests/ --node worker-1 --diff",
)
def enforce() -> None:
    """Enforce the policies with an engine."""
