"""`tierwall audit`: what the kernel dropped, and let pass where asked, in the names of pods, policies and rules."""

from __future__ import annotations

import click

from tierwall.cli.input import fail


@click.command("audit", epilog="Example: tierwall audit -o json | jq .decidedBy")
@click.option("-o", "--output", type=click.Choice(["text", "json", "prometheus"]), default="text", show_default=True)
@click.option("--log-group", type=click.IntRange(0, 65535), default=7, show_default=True, help="NFLOG group.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many lines.")
@click.option("--seconds", type=click.FloatRange(0), help="Stop after so many seconds.")
@click.option("--hits", is_flag=True, help="Print instead how often each rule was hit so far.")
def command(output: str, log_group: int, count: int | None, seconds: float | None, hits: bool) -> None:
    """Stream what `tierwall enforce nft` logs: drops, and allows with `--log all`.

    Every line names source and destination by namespace and pod, and the policy and rule that settled it. Lines are
    limited for each rule (`--log-rate` of enforce). Needs root, or CAP_NET_ADMIN.
    """
    from tierwall.core.diagnostics import InputError

    if output == "prometheus" and not hits:
        raise click.UsageError("-o prometheus goes with --hits")
    try:
        if hits:
            show_hits(output)
        else:
            _stream(output, log_group, count, seconds)
    except InputError as error:
        fail(error)
    except KeyboardInterrupt:
        return


def _stream(output: str, group: int, count: int | None, seconds: float | None) -> None:
    from tierwall.engines.nftables.table.options import Options
    from tierwall.engines.table import engine
    from tierwall.render.audit_text import event_line
    from tierwall.render.json import line
    from tierwall.render.json.audit import event_document

    for number, event in enumerate(engine("nft", options=Options(group=group)).audit(seconds), 1):
        click.echo(line(event_document(event)) if output == "json" else event_line(event))
        if number == count:
            return


def show_hits(output: str) -> None:
    """Print the counters of every rule."""
    from tierwall.engines.nftables.kernel.audit import hits
    from tierwall.render.audit_text import hits_lines
    from tierwall.render.json import line
    from tierwall.render.json.audit import hits_document
    from tierwall.render.prometheus import hits_metrics

    found = hits()
    if output == "json":
        click.echo(line(hits_document(found)))
    elif output == "prometheus":
        click.echo(hits_metrics(found), nl=False)
    else:
        for text in hits_lines(found):
            click.echo(text)
