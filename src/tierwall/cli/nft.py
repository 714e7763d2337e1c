"""The commands of the engine nftables: `compile nft`, `enforce nft`, and `audit` of what the kernel decided."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.clusters import checked_namespace
from tierwall.cli.command import (
    HAS_FINDINGS,
    Params,
    address,
    choice,
    command,
    flag,
    option,
    output,
    print_diagnostics,
    print_line,
    print_output,
    print_report,
    print_unread,
    repeated_option,
    runs,
)
from tierwall.cli.objects import ObjectParams, RequiredPathParams, StateParams
from tierwall.engines.table import engine

if TYPE_CHECKING:
    from tierwall.engines.nftables.kernel.interfaces import InterfaceLookup
    from tierwall.engines.nftables.table.options import TableOptions
    from tierwall.serve.follower import ObjectSource, ReadableSource
    from tierwall.serve.report_sender import ReportSender


class TableParams(Params):
    """The options of the nftables table (`compile nft`, `enforce nft`)."""

    node: str | None = option(metavar="NAME", help="Only the pods on this node; by default all pods.")
    log: str = choice("none", "drop", "all", default="drop", help="What to log for `tierwall audit`.")
    log_group: int = option(type=click.IntRange(0, 65535), default=7, help="NFLOG group.")
    log_rate: int = option(
        type=click.IntRange(0, 100_000), default=10, help="Log lines per second for each rule; 0 for no limit."
    )
    exempt_own_node: bool = flag("Exempt traffic between a node and its own pods, as Kubernetes does.")
    exempt_probes: bool = flag("Exempt what a node sends to its own pods, as the probes of the kubelet.")

    @property
    def table(self) -> TableOptions:
        """The options of the compiler."""
        from tierwall.engines.nftables.table.options import LogScope, TableOptions

        return TableOptions(
            self.node,
            LogScope(self.log),
            self.log_group,
            self.log_rate,
            self.exempt_own_node,
            exempt_probes=self.exempt_probes,
        )


class CompileNftParams(TableParams, ObjectParams):
    """The options of `compile nft`."""

    asks = ("network",)


@command("nft", epilog="Example: tierwall compile nft -f manifests/ | sudo nft -f -")
@runs(CompileNftParams)
def compile(params: CompileNftParams) -> None:
    """Print the nftables table that enforces the network policies on the pods.

    A policy that an API server would refuse (see `tierwall check`) fails closed, and standard error says so.
    """
    from tierwall.core.diagnostics import Diagnostics, sorted_diagnostics
    from tierwall.engines.nftables.table.table import table_script

    world = params.world()
    compiled = engine("nft", options=params.table).compile(world.snapshot)
    print_diagnostics(sorted_diagnostics((*Diagnostics(world.diagnostics).serious, *compiled.diagnostics)), world)
    print_unread(world, *params.asks)
    _print_script(table_script(compiled.table))


def _print_script(script: str, is_marked: bool = False) -> None:
    """Print a script, or the difference of two: then each line begins with a mark. The tabs that indent lines stay."""
    from tierwall.core.unprintable import PrintableLine, escape_unprintable

    # Not `splitlines`: it takes other characters for line breaks, too.
    for line in script.removesuffix("\n").split("\n") if script else ():
        mark, text = (line[:1], line[1:]) if is_marked else ("", line)
        rest = text.lstrip("\t")
        print_line(PrintableLine(mark + "\t" * (len(text) - len(rest)) + escape_unprintable(rest)))


def _checked_names(_context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse names that no interface can have."""
    from tierwall.engines.nftables.kernel.interfaces import NAME

    for name in names:
        if not NAME.fullmatch(name.removesuffix("*") or name):
            raise click.BadParameter(f"expected the name of an interface, found `{name}`")
    return names


class EnforceNftParams(TableParams, StateParams, RequiredPathParams):
    """The options of `enforce nft`."""

    asks = ("network",)

    watch: bool = flag("Keep running and follow changes to the files. A cluster is always followed.")
    interval: float | None = option(
        type=click.FloatRange(0.05, 3600),
        show_default="0.5, longer where looking takes long",
        help="Seconds between polls where the file system does not report changes.",
    )
    dry_run: bool = flag("Print the checked nft script instead of running it.")
    diff: bool = flag("Print what would change in the kernel's table; exit code 4 if anything would.")
    remove: bool = flag("Remove the table; nothing is left behind.")
    cut: bool = option(
        "--cut/--no-cut",
        default=True,
        help="Cut open connections that the policies now deny; otherwise they stay open until they end.",
    )
    unknown_pods: str = choice(
        "closed",
        "open",
        help="What passes on a pod interface without a known pod: nothing while a policy could be about it, or all.",
    )
    interface_of: str | None = option(
        metavar="COMMAND",
        help="Command that prints the interfaces of a pod; it is run with `namespace/name`, without a shell.",
    )
    cni_results: str | None = option(
        type=click.Path(exists=True, file_okay=False),
        metavar="FOLDER",
        help="Folder with cached CNI results that name the interfaces of pods, such as /var/lib/cni/results.",
    )
    pod_interfaces: tuple[str, ...] = repeated_option(
        metavar="NAME",
        callback=_checked_names,
        help="Name of pod interfaces, which may end in `*`. Repeatable. By default every veth to another namespace.",
    )

    release_namespace: str | None = option(
        metavar="NAME",
        callback=checked_namespace,
        show_default="POD_NAMESPACE",
        help="With --cluster and --node, report here what is in force: a NodeReport and a Lease as heartbeat.",
    )
    http: str | None = option(
        metavar="HOST:PORT", help="While following, serve health and metrics at this address.", show_default="nowhere"
    )

    @property
    def table(self) -> TableOptions:
        """The options of the compiler."""
        from msgspec.structs import replace

        from tierwall.engines.nftables.table.options import UnknownPods

        return replace(super().table, unknown_pods=UnknownPods(self.unknown_pods), pod_interfaces=self.pod_interfaces)

    def engine(self) -> Any:
        """Make the engine, with what knows the interfaces of pods."""
        if self.interface_of is not None and self.cni_results is not None:
            raise click.UsageError("give only one of --interface-of and --cni-results")
        return engine("nft", options=self.table, cuts=self.cut, lookup=self._lookup())

    def report_sender(self) -> ReportSender | None:
        """Make what tells the cluster what is in force on this node; None, and it is said, if that is not possible."""
        import os

        cluster, namespace = self.cluster_to_read, self.release_namespace or os.environ.get("POD_NAMESPACE", "")
        if cluster is None:
            return None
        if not self.node or not namespace:
            missing = "--release-namespace NAME" if self.node else "--node NAME"
            print_line(f"the cluster is not told what is in force here: that needs {missing}", err=True)
            return None
        from tierwall.serve.report_sender import ReportSender

        assert self.cluster_access is not None
        return ReportSender(self.cluster_access, cluster.timeout, self.node, namespace, _print_message)

    def _lookup(self) -> InterfaceLookup | None:
        from tierwall.engines.nftables.kernel.lookups import CniLookup, CommandLookup

        if self.interface_of is not None:
            return CommandLookup(_words(self.interface_of))
        return CniLookup(self.cni_results) if self.cni_results is not None else None


def _print_message(message: str) -> None:
    print_line(message, err=True)


def _words(command: str) -> list[str]:
    """Split a command into words as a shell does, and find its program."""
    import shlex
    import shutil

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.BadParameter(str(error).lower(), param_hint="'--interface-of'") from None
    if not words or shutil.which(words[0]) is None:
        program = f"`{words[0]}`" if words else "nothing"
        raise click.BadParameter(f"expected a program, found {program}", param_hint="'--interface-of'")
    return words


@command("nft", epilog="Example: tierwall enforce nft manifests/ --node worker-1 --watch")
@runs(EnforceNftParams)
def enforce(params: EnforceNftParams) -> int:
    """Enforce the network policies in PATH..., or of a cluster, on the pods, in this machine's kernel.

    The table is checked first and loaded in one transaction. A policy that an API server would refuse
    (see `tierwall check`) fails closed, and a broken file keeps what it had. If only pods change, only elements of sets
    are updated. Needs root or CAP_NET_ADMIN.
    """
    if sum((params.watch, params.dry_run, params.diff, params.remove)) > 1:
        raise click.UsageError("give only one of --watch, --dry-run, --diff and --remove")
    if params.remove:
        _remove(params)
        return 0
    if params.dry_run or params.diff:
        return _preview(params)
    nft = params.engine()
    source = params.object_source(params.interval, params.state)
    if params.watch or params.cluster_to_read is not None:
        _follow(params, nft, source)
        hint = "`tierwall enforce nft --remove` removes it"
        print_line(f"stopped; the kernel keeps the table that it has ({hint})", err=True)
        return 0
    report = nft.apply(source)
    print_report(report)
    return 0


def _follow(params: EnforceNftParams, nft: Any, source: ObjectSource) -> None:
    """Keep the kernel in step, and report what is in force on this node."""
    http = address(params.http, "--http") if params.http is not None else None
    sender = params.report_sender()
    if sender is None:
        nft.follow(source, print_report, http=http)
        return
    from tierwall.engines.nftables.kernel.apply import table_exists
    from tierwall.serve.node_report import empty_report

    assert params.node is not None
    if not table_exists():
        # After a restart of the machine, the report says what was in force before.
        sender.put(empty_report(params.node, "no policies are in force yet"))
    sender.start()
    try:
        nft.follow(source, print_report, sender.put, http)
    finally:
        sender.close()


def _remove(params: EnforceNftParams) -> None:
    from tierwall.engines.nftables.kernel.apply import remove

    if params.paths or params.files:
        raise click.UsageError("--remove takes no PATH")
    remove()
    sender = params.report_sender()
    if sender is None:
        return
    from tierwall.cluster.failures import ClusterError
    from tierwall.core.diagnostics import InputError
    from tierwall.serve.node_report import empty_report

    assert params.node is not None
    try:
        sender.send_last(empty_report(params.node, "the table was removed, no policies are in force"))
    except ClusterError as error:
        raise InputError([error.diagnostic()]) from None


def _preview(params: EnforceNftParams) -> int:
    from contextlib import closing

    from tierwall.core.diagnostics import InputError
    from tierwall.engines.nftables.kernel.apply import difference, script_to

    with closing(params.engine().follower()) as keeper:
        load = keeper.next_load(_source_to_preview(params))
        assert load is not None, "the first load always counts as a change"
        if load.refusal:
            raise InputError(load.diagnostics, load.loaded)
        table = keeper.whole_table(load)
    print_diagnostics(load.diagnostics, load.loaded)
    if not params.diff:
        _print_script(script_to(table))
        return 0
    changes = difference(table)
    if changes:
        _print_script(changes, is_marked=True)
    return HAS_FINDINGS if changes else 0


def _source_to_preview(params: EnforceNftParams) -> ReadableSource:
    if params.cluster_to_read is None:
        return params.object_source()
    from tierwall.cli.followed import read_once

    return read_once(params)


class AuditParams(Params):
    """The options of `audit`."""

    log_group: int = option(type=click.IntRange(0, 65535), default=7, help="NFLOG group.")
    count: int | None = option(type=click.IntRange(1), help="Stop after this many lines.")
    seconds: float | None = option(type=click.FloatRange(0), help="Stop after this many seconds.")
    hits: bool = flag("Print how often each rule was hit so far, instead of decisions.")
    output: str = output("audit --hits")


@command("audit", epilog="Example: tierwall audit -o json | jq .decidedBy")
@runs(AuditParams)
def audit(params: AuditParams) -> None:
    """Stream what `tierwall enforce nft` logs: drops, and allows with `--log all`.

    Each line names source and destination by namespace and pod, and the policy and rule that decided. The rate of lines
    is limited for each rule (`--log-rate` of `enforce nft`). Needs root or CAP_NET_ADMIN.
    """
    if params.output == "prometheus" and not params.hits:
        raise click.UsageError("-o prometheus needs --hits")
    if params.hits:
        from tierwall.engines.nftables.kernel.audit import hits

        print_output("audit --hits", params.output, hits())
        return
    from tierwall.engines.nftables.table.options import TableOptions
    from tierwall.engines.table import engine

    events = engine("nft", options=TableOptions(group=params.log_group)).audit(params.seconds)
    try:
        print_output("audit", params.output, islice(events, params.count))
    except KeyboardInterrupt:
        return
