"""`tierwall list`: who can reach whom on what, for all ends at once."""

from __future__ import annotations

from collections.abc import Iterable

import click

from tierwall.cli.connections import LISTS, PICTURES, drawn, listed
from tierwall.cli.input import fail, output_option, show, world_from

ENDS = "`namespace`, `namespace/name` of a pod or workload, `*` for any part of it, an IP address, or `node:NAME`"


@click.command("list", epilog="Example: tierwall list manifests/ --to shop --explain")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--from", "sources", multiple=True, metavar="END", help=f"Only connections from these: {ENDS}.")
@click.option("--to", "destinations", multiple=True, metavar="END", help="Only connections to these, likewise.")
@click.option(
    "--port", "ports", multiple=True, metavar="PORT", help="Only these ports: `80`, `53/UDP`, `8000-8080/TCP`."
)
@click.option("--explain", is_flag=True, help="Name the rules that settle each direction.")
@click.option("--denied", is_flag=True, help="Show what does not pass, too.")
@click.option("--pairs", is_flag=True, help="One entry for every pair of ends instead of groups.")
@click.option(
    "--exposure",
    is_flag=True,
    help="Show what future pods could reach, and what could reach them, by label.",
)
@click.option("--hits", is_flag=True, help="Show instead how often the kernel hit each rule (`tierwall enforce nft`).")
@output_option(*LISTS, *PICTURES)
def command(
    paths: tuple[str, ...],
    sources: tuple[str, ...],
    destinations: tuple[str, ...],
    ports: tuple[str, ...],
    explain: bool,
    denied: bool,
    pairs: bool,
    exposure: bool,
    hits: bool,
    output: str,
) -> None:
    """List which pods, nodes and outside addresses can reach which, on which ports.

    Ends that policies treat alike are one line: `shop/web[Deployment] => shop/db[StatefulSet] : TCP 5432`. Pairs of
    which neither end is under policy (nodes, host-network pods, outside addresses) are left out.
    """
    from tierwall.core.diagnostics import InputError, in_order
    from tierwall.network.closed import closed
    from tierwall.network.model.model import model
    from tierwall.network.model.shadow import notes

    if pairs and output in PICTURES:
        raise click.UsageError(f"--pairs makes no sense with -o {output}")
    if exposure and (sources or destinations or ports or pairs or denied or output not in LISTS):
        raise click.UsageError("--exposure goes with --explain and -o text, json, csv or md only")
    if hits:
        _hits(output)
        return
    world = world_from(paths)
    show(in_order([*closed(model(world.snapshot)), *notes(world.snapshot)]))
    if exposure:
        _write(listed(world.exposure(explain=explain), output, world.not_considered))
        return
    whole = output == "html"  # the page shows everything, reasons included
    try:
        connections = world.connections(
            sources=sources, destinations=destinations, ports=ports, explain=explain or whole, denied=denied or whole
        )
    except InputError as error:
        fail(error, world)
    if output in PICTURES:
        from tierwall.network.reach.picture import picture

        _write(drawn(lambda: picture(connections.matrix, connections.explain), output))
    else:
        _write(listed(connections.pairs() if pairs else connections, output, connections.not_considered))


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _hits(output: str) -> None:
    from tierwall.cli.audit import show_hits
    from tierwall.core.diagnostics import InputError

    if output not in ("text", "json"):
        raise click.UsageError("--hits goes with -o text or json only")
    try:
        show_hits(output)
    except InputError as error:
        fail(error)
