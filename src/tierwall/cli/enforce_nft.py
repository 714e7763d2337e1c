"""`tierwall enforce nft`: put the table of the network policies into the kernel, and keep it up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.input import FAILED, FOUND, fail, show, world_from
from tierwall.cli.nft_options import options, table_options

if TYPE_CHECKING:
    from tierwall.engines.nftables.options import Options
    from tierwall.engines.nftables.watch import Step


@click.command("nft", epilog="Example: tierwall enforce nft manifests/ --node worker-1 --watch")
@click.argument("paths", nargs=-1, metavar="PATH...")
@table_options
@click.option("--watch", is_flag=True, help="Stay, and follow changes of the files.")
@click.option(
    "--interval", type=click.FloatRange(0.05, 3600), default=0.5, show_default=True, help="Seconds between looks."
)
@click.option("--dry-run", is_flag=True, help="Print the checked nft script instead of running it.")
@click.option("--diff", is_flag=True, help="Print what would change in the kernel's table; exit code 4 if anything.")
@click.option("--remove", is_flag=True, help="Remove the table; nothing is left behind.")
@click.option(
    "--cut/--no-cut",
    default=True,
    show_default=True,
    help="Cut open connections that the policies now forbid; without it they stay open until they end.",
)
def command(
    paths: tuple[str, ...],
    watch: bool,
    interval: float,
    dry_run: bool,
    diff: bool,
    remove: bool,
    cut: bool,
    **given: Any,
) -> None:
    """Enforce the network policies in PATH... on the pods, in this machine's kernel.

    The table is checked first and loaded in one transaction; if anything is wrong, the last good table stays in
    force. A change of pods alone changes elements of sets. Needs root, or CAP_NET_ADMIN.
    """
    from tierwall.core.diagnostics import InputError

    if sum((watch, dry_run, diff, remove)) > 1:
        raise click.UsageError("only one of --watch, --dry-run, --diff and --remove makes sense at a time")
    if remove is bool(paths):
        raise click.UsageError("--remove takes no PATH" if remove else "Missing argument 'PATH...'.")
    try:
        if remove:
            from tierwall.engines.nftables.apply import remove as remove_table

            remove_table()
        elif dry_run or diff:
            _preview(paths, options(given), diff)
        else:
            _enforce(paths, options(given), cut, interval if watch else None)
    except InputError as error:
        fail(error)


def _preview(paths: tuple[str, ...], wanted: Options, diff: bool) -> None:
    from tierwall.engines.nftables.apply import difference, script_to
    from tierwall.engines.nftables.compile import compile_model
    from tierwall.network.model.model import model_with_shadow

    compiled = compile_model(model_with_shadow(world_from(paths).snapshot), wanted)
    show(compiled.diagnostics)
    if not diff:
        click.echo(script_to(compiled.table), nl=False)
        return
    found = difference(compiled.table)
    if found:
        click.echo(found)
        sys.exit(FOUND)


def _enforce(paths: tuple[str, ...], wanted: Options, cut: bool, interval: float | None) -> None:
    from tierwall.cli.collector import CommandLoader, load
    from tierwall.engines.nftables.watch import Keeper, follow, wait

    keeper = Keeper(wanted, cut)
    if interval is None:
        step = keeper.take(load(paths))
        _tell(step)
        if any(one.severity == "error" for one in step.diagnostics):
            sys.exit(FAILED)
        return
    try:
        for step in follow(keeper, CommandLoader(paths), interval, wait):
            _tell(step)
    except KeyboardInterrupt:
        click.echo("stopped; the table stays in force (`tierwall enforce nft --remove` removes it)", err=True)


def _tell(step: Step) -> None:
    show(step.diagnostics)
    cut = f"; {step.cut} connection{'s' if step.cut > 1 else ''} cut" if step.cut else ""
    click.echo(f"{step.words}{cut}", err=True)
