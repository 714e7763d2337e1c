"""`tierwall compile envoy`: print the configuration that makes Envoy enforce the tool policies."""

from __future__ import annotations

import click

from tierwall.cli.input import FAILED, file_option, output_option, show, world_from


@click.command("envoy", epilog="Example: tierwall compile envoy -f manifests/ --gateway prod/agents -o json")
@file_option
@output_option("yaml", "json")
@click.option("--gateway", "gateways", multiple=True, metavar="NAMESPACE/NAME", help="Only this Gateway. Repeatable.")
@click.option(
    "--denial",
    type=click.Choice(["json-rpc", "http"]),
    default="json-rpc",
    show_default=True,
    help="How a denied MCP request is answered: an error of JSON-RPC, or HTTP 403.",
)
@click.option(
    "--reveal",
    type=click.Choice(["policy", "nothing"]),
    default="policy",
    show_default=True,
    help="What a denied caller is told: which policy denied, or nothing.",
)
def command(paths: tuple[str, ...], output: str, gateways: tuple[str, ...], denial: str, reveal: str) -> None:
    """Print Envoy's listeners, routes, clusters and secrets that enforce the tool policies.

    Private keys are left out. Exit code 1 when a Gateway is not served as it says.
    """
    import sys

    from tierwall.cli.input import fail
    from tierwall.core.diagnostics import Diagnostic, InputError, errors_of, near_miss
    from tierwall.engines.envoy.config.options import Denial, Options, Reveal
    from tierwall.engines.envoy.config.text import document, text
    from tierwall.engines.table import engine

    snapshot = world_from(paths).snapshot
    known = [f"{one.namespace}/{one.name}" for one in snapshot.of_kind("gateway.networking.k8s.io", "Gateway")]
    unknown = [
        Diagnostic("TW703", f"there is no Gateway `{one}`", hint=near_miss(one, known))
        for one in gateways
        if one not in known
    ]
    if unknown:
        fail(InputError(unknown))
    chosen = frozenset(gateways) if gateways else None
    wanted = Options(gateways=chosen, denial=Denial(denial), reveal=Reveal(reveal))
    compiled = engine("envoy", options=wanted).compile(snapshot)
    show(compiled.diagnostics)
    click.echo(text(document(compiled), output), nl=False)
    if errors_of(compiled.diagnostics):
        sys.exit(FAILED)
