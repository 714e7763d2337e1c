"""`tierwall compile`: print what an engine would be given; each engine of the table has a command here."""

from __future__ import annotations

import click

from tierwall.cli.command import FAILED, output, runs, several, show, write
from tierwall.cli.lazy import Lazy, LazyGroup
from tierwall.cli.objects import ReadsObjects
from tierwall.cli.options import Denials, Table
from tierwall.engines.table import enforced_with, engine, offered_by


@click.group(
    "compile",
    cls=LazyGroup,
    lazy={name: Lazy(f"tierwall.cli.compile:{name}", entry.title) for name, entry in offered_by("compile").items()},
    help=" ".join(
        (
            "Print what an engine would be given; nothing is applied.",
            *(
                f"There is nothing to compile for the {name}: `tierwall {command}` judges by the policies themselves."
                for name, command in enforced_with().items()
                if name not in offered_by("compile")
            ),
        )
    ),
    epilog="Example: tierwall compile nft -f manifests/ --node worker-1 > table.nft",
)
def group() -> None:
    """Print what an engine would be given; nothing is applied."""


class NftParams(Table, ReadsObjects):
    """What of the policies, and how it is logged."""


@click.command("nft", epilog="Example: tierwall compile nft -f manifests/ | sudo nft -f -")
@runs(NftParams)
def nft(params: NftParams) -> None:
    """Print the nftables table that enforces the network policies on the pods."""
    from tierwall.engines.nftables.table.table import text

    compiled = engine("nft", options=params.table).compile(params.world().snapshot)
    show(compiled.diagnostics)
    click.echo(text(compiled.table), nl=False)


class EnvoyParams(Denials, ReadsObjects):
    """Which Gateways, and what Envoy says to those it denies."""

    gateways: tuple[str, ...] = several("--gateway", metavar="NAMESPACE/NAME", help="Only this Gateway. Repeatable.")
    output: str = output("compile envoy")


@click.command("envoy", epilog="Example: tierwall compile envoy -f manifests/ --gateway prod/agents -o json")
@runs(EnvoyParams)
def envoy(params: EnvoyParams) -> int:
    """Print Envoy's listeners, routes, clusters and secrets that enforce the tool policies.

    Private keys are left out. Exit code 1 when a Gateway is not served as it says.
    """
    from tierwall.core.diagnostics import Diagnostic, Diagnostics, InputError, near_miss
    from tierwall.engines.envoy.config.options import Denial, Options, Reveal

    snapshot = params.world().snapshot
    gateways = snapshot.of_kind("gateway.networking.k8s.io", "Gateway")
    known = [f"{gateway.namespace}/{gateway.name}" for gateway in gateways]
    unknown = [
        Diagnostic("TW703", f"there is no Gateway `{name}`", hint=near_miss(name, known))
        for name in params.gateways
        if name not in known
    ]
    if unknown:
        raise InputError(unknown)
    wanted = Options(
        gateways=frozenset(params.gateways) or None, denial=Denial(params.denial), reveal=Reveal(params.reveal)
    )
    compiled = engine("envoy", options=wanted).compile(snapshot)
    show(compiled.diagnostics)
    write("compile envoy", params.output, compiled)
    return FAILED if Diagnostics(compiled.diagnostics).errors else 0
