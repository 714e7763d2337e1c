"""Options that every command about the nftables table shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tierwall.engines.nftables.table.options import Options

F = TypeVar("F", bound=Callable[..., Any])


def table_options(function: F) -> F:
    """`--node`, `--log`, `--log-group`, `--log-rate`, `--exempt-own-node`."""
    for decorate in reversed(
        (
            click.option("--node", metavar="NAME", help="Judge only the pods on this node; default: all pods."),
            click.option(
                "--log",
                type=click.Choice(["none", "drop", "all"]),
                default="drop",
                show_default=True,
                help="What is logged for `tierwall audit`.",
            ),
            click.option(
                "--log-group", type=click.IntRange(0, 65535), default=7, show_default=True, help="NFLOG group."
            ),
            click.option(
                "--log-rate",
                type=click.IntRange(0, 100_000),
                default=10,
                show_default=True,
                help="Log lines a second for each rule; 0 for no limit.",
            ),
            click.option(
                "--exempt-own-node",
                is_flag=True,
                help="Do not judge traffic between the node itself and its pods, as Kubernetes exempts it.",
            ),
        )
    ):
        function = decorate(function)
    return function


def options(given: dict[str, Any]) -> Options:
    """The compiler's options from those of the command line."""
    from tierwall.engines.nftables.table.options import Log, Options

    return Options(given["node"], Log(given["log"]), given["log_group"], given["log_rate"], given["exempt_own_node"])
