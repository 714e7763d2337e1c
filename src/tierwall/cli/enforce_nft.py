"""`tierwall enforce nft`: put the table of the network policies into the kernel, and keep it up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.input import FAILED, FOUND, fail, show, tell
from tierwall.cli.nft_options import options, table_options

if TYPE_CHECKING:
    from tierwall.core.protocols import Engine
    from tierwall.serve.watch import Files


@click.command("nft", epilog="Example: tierwall enforce nft manifests/ --node worker-1 --watch")
@click.argument("paths", nargs=-1, metavar="PATH...")
@table_options
@click.option("--watch", is_flag=True, help="Stay, and follow changes of the files.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    default=10,
    show_default=True,
    help="Seconds between looks where the file system does not tell of changes.",
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
    force. Objects that an API server would refuse are wrong, as `tierwall check` says. A change of pods alone changes
    elements of sets. Needs root, or CAP_NET_ADMIN.
    """
    from tierwall.cli.collector import CommandLoader
    from tierwall.core.diagnostics import InputError, errors_of
    from tierwall.engines.table import engine
    from tierwall.serve.watch import Files

    if sum((watch, dry_run, diff, remove)) > 1:
        raise click.UsageError("only one of --watch, --dry-run, --diff and --remove makes sense at a time")
    if remove is bool(paths):
        raise click.UsageError("--remove takes no PATH" if remove else "Missing argument 'PATH...'.")
    try:
        if remove:
            from tierwall.engines.nftables.kernel.apply import remove as remove_table

            remove_table()
            return
        nft = engine("nft", options=options(given), cuts=cut)
        source = Files(CommandLoader(paths), interval)
        if watch:
            nft.follow(source, tell)
            click.echo("stopped; the table stays in force (`tierwall enforce nft --remove` removes it)", err=True)
        elif dry_run or diff:
            _preview(nft, source, diff)
        else:
            step = nft.apply(source)
            tell(step)
            if errors_of(step.diagnostics):
                sys.exit(FAILED)
    except InputError as error:
        fail(error)


def _preview(nft: Engine[Any, Any, Any], source: Files, diff: bool) -> None:
    from tierwall.core.diagnostics import InputError, errors_of, in_order
    from tierwall.engines.nftables.kernel.apply import difference, script_to
    from tierwall.serve.follower import problems

    loaded = source.read()
    assert loaded is not None
    noticed = problems(loaded)
    if errors_of(noticed):
        fail(InputError(noticed), loaded)
    compiled = nft.compile(loaded.snapshot)
    show(in_order((*noticed, *compiled.diagnostics)), loaded)
    if not diff:
        click.echo(script_to(compiled.table), nl=False)
        return
    changes = difference(compiled.table)
    if changes:
        click.echo(changes)
        sys.exit(FOUND)
