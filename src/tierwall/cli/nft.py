"""`tierwall enforce`: make an engine obey the policies; each engine of the table has a command here."""

from __future__ import annotations

import click

from tierwall.cli.command import FAILED, FOUND, flag, option, runs, show, tell
from tierwall.cli.lazy import Lazy, LazyGroup
from tierwall.cli.objects import NeedsPaths
from tierwall.cli.options import Table
from tierwall.engines.table import enforced_with, engine, offered_by


@click.group(
    "enforce",
    cls=LazyGroup,
    lazy={name: Lazy(f"tierwall.cli.enforce:{name}", entry.title) for name, entry in offered_by("enforce").items()},
    help="Make an engine obey the policies. Where that takes a process that stays, it is a command of its own: "
    + ", ".join(f"`tierwall {command}` ({name})" for name, command in enforced_with().items() if command != "enforce")
    + ".",
    epilog="Example: tierwall enforce nft manifests/ --node worker-1 --diff",
)
def group() -> None:
    """Make an engine obey the policies."""


class NftParams(Table, NeedsPaths):
    """What to enforce, and whether to do it, to keep doing it, or only to show it."""

    watch: bool = flag("Stay, and follow changes of the files.")
    interval: float = option(
        type=click.FloatRange(0.05, 3600),
        default=10,
        help="Seconds between looks where the file system does not tell of changes.",
    )
    dry_run: bool = flag("Print the checked nft script instead of running it.")
    diff: bool = flag("Print what would change in the kernel's table; exit code 4 if anything.")
    remove: bool = flag("Remove the table; nothing is left behind.")
    cut: bool = option(
        "--cut/--no-cut",
        default=True,
        help="Cut open connections that the policies now forbid; without it they stay open until they end.",
    )


@click.command("nft", epilog="Example: tierwall enforce nft manifests/ --node worker-1 --watch")
@runs(NftParams)
def nft(params: NftParams) -> int:
    """Enforce the network policies in PATH... on the pods, in this machine's kernel.

    The table is checked first and loaded in one transaction; if anything is wrong, the last good table stays in
    force. Objects that an API server would refuse are wrong, as `tierwall check` says. A change of pods alone changes
    elements of sets. Needs root, or CAP_NET_ADMIN.
    """
    from tierwall.core.diagnostics import Diagnostics

    if sum((params.watch, params.dry_run, params.diff, params.remove)) > 1:
        raise click.UsageError("only one of --watch, --dry-run, --diff and --remove makes sense at a time")
    if params.remove:
        _remove(params)
        return 0
    if params.dry_run or params.diff:
        return _preview(params)
    nft = engine("nft", options=params.table, cuts=params.cut)
    source = params.followed(params.interval)
    if params.watch:
        nft.follow(source, tell)
        click.echo("stopped; the table stays in force (`tierwall enforce nft --remove` removes it)", err=True)
        return 0
    report = nft.apply(source)
    tell(report)
    return FAILED if Diagnostics(report.diagnostics).errors else 0


def _remove(params: NftParams) -> None:
    from tierwall.engines.nftables.kernel.apply import remove

    if params.paths or params.files:
        raise click.UsageError("--remove takes no PATH")
    remove()


def _preview(params: NftParams) -> int:
    from tierwall.core.diagnostics import InputError
    from tierwall.engines.nftables.kernel.apply import difference, script_to
    from tierwall.engines.nftables.table.compile import Compiled
    from tierwall.serve.nftables import Keeper

    load = Keeper(params.table, params.cut).look(params.followed())
    assert load is not None, "the first reading is news"
    if load.errors:
        raise InputError(load.diagnostics, load.loaded)
    assert isinstance(load.state, Compiled), "there is no table yet whose pods could be followed"
    show(load.diagnostics, load.loaded)
    if not params.diff:
        click.echo(script_to(load.state.table), nl=False)
        return 0
    changes = difference(load.state.table)
    if changes:
        click.echo(changes)
    return FOUND if changes else 0
