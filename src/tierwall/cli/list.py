"""`tierwall list`: who can reach whom on what, for all ends at once."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import click

from tierwall.cli.input import FAILED, fail, output_option, show, world_from

if TYPE_CHECKING:
    from tierwall.network.reach.connections import Connections
    from tierwall.network.reach.matrix import Matrix
    from tierwall.world import World

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
@output_option("text", "json", "csv", "md", "dot", "mermaid", "html")
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

    if pairs and output in ("dot", "mermaid", "html"):
        raise click.UsageError(f"--pairs makes no sense with -o {output}")
    if hits:
        _hits(output)
        return
    world = world_from(paths)
    show(in_order([*closed(model(world.snapshot)), *notes(world.snapshot)]))
    if exposure:
        _exposed(world, bool(sources or destinations or ports or pairs or denied), explain, output)
        return
    drawn = output == "html"
    try:
        connections = world.connections(
            sources=sources, destinations=destinations, ports=ports, explain=explain or drawn, denied=denied or drawn
        )
    except InputError as error:
        fail(error, world)
    for line in _lines(connections, explain, pairs, output):
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


def _exposed(world: World, narrowed: bool, explain: bool, output: str) -> None:
    from tierwall.render import reach_csv, reach_json, reach_md, reach_text

    renderers = {"text": reach_text.lines, "json": reach_json.lines, "csv": reach_csv.lines, "md": reach_md.lines}
    if narrowed or output not in renderers:
        raise click.UsageError("--exposure goes with --explain and -o text, json, csv or md only")
    for line in renderers[output](world.exposure(explain=explain)):
        click.echo(line)


def _lines(connections: Connections, explain: bool, pairs: bool, output: str) -> Iterable[str]:
    from tierwall.render import reach_csv, reach_json, reach_md, reach_text

    if output in ("dot", "mermaid", "html"):
        return _drawn(connections.matrix, explain, output)
    listed = connections.pairs() if pairs else iter(connections)
    if output == "json":
        return reach_json.lines(listed, connections.not_considered)
    renderers = {"text": reach_text.lines, "json": reach_json.lines, "csv": reach_csv.lines, "md": reach_md.lines}
    return renderers[output](listed)


def _drawn(found: Matrix, explain: bool, output: str) -> Iterable[str]:
    from tierwall.network.reach.blocks import TooManyBlocks
    from tierwall.network.reach.picture import picture
    from tierwall.render import reach_dot, reach_html, reach_mermaid

    try:
        drawn = picture(found, explain or output == "html")
    except TooManyBlocks as error:
        _too_large(str(error))
    renderers = {"dot": reach_dot.lines, "mermaid": reach_mermaid.lines, "html": reach_html.lines}
    return renderers[output](drawn)


def _too_large(reason: str) -> NoReturn:
    click.echo(
        f"error: this is too large for a picture: {reason} (hint: narrow it with --from, --to, --port)", err=True
    )
    sys.exit(FAILED)
