"""`tierwall audit`: what the kernel dropped, and let pass where asked, in the names of pods, policies and rules."""

from __future__ import annotations

from itertools import islice

import click

from tierwall.cli.command import Params, flag, option, output, runs, write


class AuditParams(Params):
    """What is shown, and until when."""

    log_group: int = option(type=click.IntRange(0, 65535), default=7, help="NFLOG group.")
    count: int | None = option(type=click.IntRange(1), help="Stop after so many lines.")
    seconds: float | None = option(type=click.FloatRange(0), help="Stop after so many seconds.")
    hits: bool = flag("Print instead how often each rule was hit so far.")
    output: str = output("audit --hits")


@click.command("audit", epilog="Example: tierwall audit -o json | jq .decidedBy")
@runs(AuditParams)
def command(params: AuditParams) -> None:
    """Stream what `tierwall enforce nft` logs: drops, and allows with `--log all`.

    Every line names source and destination by namespace and pod, and the policy and rule that settled it. Lines are
    limited for each rule (`--log-rate` of enforce). Needs root, or CAP_NET_ADMIN.
    """
    if params.output == "prometheus" and not params.hits:
        raise click.UsageError("-o prometheus goes with --hits")
    if params.hits:
        from tierwall.engines.nftables.kernel.audit import hits

        write("audit --hits", params.output, hits())
        return
    from tierwall.engines.nftables.table.options import Options
    from tierwall.engines.table import engine

    events = engine("nft", options=Options(group=params.log_group)).audit(params.seconds)
    try:
        write("audit", params.output, islice(events, params.count))
    except KeyboardInterrupt:
        return
