"""`tierwall diff`: what a change opens, closes and alters (docs/compare.md)."""

from __future__ import annotations

import click

from tierwall.cli.command import (
    HAS_FINDINGS,
    argument,
    left_out,
    output,
    print_diagnostics,
    print_output,
    repeated_option,
    runs,
)
from tierwall.cli.network import draw
from tierwall.cli.objects import SourceParams, strict

PLANES = ("network", "tool", "gateway", "api")
# Formats that show connections alone.
OF_CONNECTIONS = ("csv", "dot", "mermaid", "svg")


class DiffParams(SourceParams):
    """The options of `diff`."""

    old: str = argument(metavar="OLD")
    new: str = argument(metavar="NEW")
    planes: tuple[str, ...] = repeated_option(
        "--plane", type=click.Choice(PLANES), help="Compare this plane only. Repeatable.", show_default="all planes"
    )
    strict: bool = strict()
    output: str = output("diff")

    @property
    def asked_planes(self) -> tuple[str, ...]:
        """The planes to compare."""
        return self.compared_planes()

    def compared_planes(self) -> tuple[str, ...]:
        """The planes to compare; some formats show connections alone."""
        if self.output not in OF_CONNECTIONS:
            return self.planes or PLANES
        if self.planes not in ((), ("network",)):
            raise click.UsageError(f"-o {self.output} shows connections alone: leave out --plane, or use -o text")
        return ("network",)


@click.command("diff", epilog="Example: tierwall diff main/manifests/ manifests/ --plane network -o md")
@runs(DiffParams)
def diff(params: DiffParams) -> int:
    """Compare what two folders of manifests allow: connections, tool requests, gateway settings, API permissions.

    The first line counts what changes. `+` marks what may pass now, `-` what no longer may, `~` what passes under other
    conditions and settings with another value. Below each are the rules that decide it now and before. Exit code 0 if
    nothing changes, 4 if anything does.
    """
    from tierwall.analyze.diff import compare
    from tierwall.analyze.future_pods import lacks_pods
    from tierwall.core.diagnostics import Diagnostic, sorted_diagnostics
    from tierwall.network.model.policies import shadow_notes

    planes = params.compared_planes()
    before, after = params.worlds([params.old], [params.new])
    if "network" in planes:
        print_diagnostics(sorted_diagnostics([*shadow_notes(before.snapshot), *shadow_notes(after.snapshot)]))
        if lacks_pods(before.snapshot, after.snapshot):
            hint = "add the workloads to the input"
            message = "no pods were given, so policies are compared for pods that do not exist yet"
            print_diagnostics([Diagnostic("TW211", message, hint=hint)])
    compared = compare(before.snapshot, after.snapshot, planes, grouped=params.output != "json")
    left_out().update(dict.fromkeys((*before.omissions(*planes), *after.omissions(*planes), *compared.not_considered)))
    if params.output in ("dot", "mermaid", "svg"):
        print_output("diff", params.output, draw(compared.picture))
    elif params.output == "csv":
        print_output("diff", params.output, compared.connections)
    else:
        if params.output == "html":
            draw(compared.picture)
        print_output("diff", params.output, compared)
    return HAS_FINDINGS if compared else 0
