"""`tierwall convert`: network policies of one kind as another, and what that changes (docs/compare.md#convert)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tierwall.cli.command import (
    HAS_FINDINGS,
    command,
    left_out,
    option,
    output,
    print_diagnostics,
    print_lines,
    print_output,
    runs,
)
from tierwall.cli.objects import PathParams

if TYPE_CHECKING:
    from tierwall.analyze.conversion import ConversionComparison, ConversionResult

KINDS = ("ClusterNetworkPolicy", "NetworkPolicy")
# The most changes for pods that do not exist yet that are printed.
MAX_FUTURE = 20


class ConvertParams(PathParams):
    """The options of `convert`."""

    asks = ("network",)

    to: str = option(required=True, type=click.Choice(KINDS), help="The kind of policy to convert to.")
    output: str = output("convert")


@command("convert", epilog="Example: tierwall convert manifests/ --to ClusterNetworkPolicy > converted.yaml")
@runs(ConvertParams)
def convert(params: ConvertParams) -> int:
    """Convert network policies to another kind, and say what that changes.

    AdminNetworkPolicies and the BaselineAdminNetworkPolicy become ClusterNetworkPolicies. These and
    ClusterNetworkPolicies become NetworkPolicies, where these can express them. Only the converted policies go to
    standard output. What cannot be expressed, and every connection that changes, goes to standard error. Exit code 0 if
    nothing changes, 4 if anything does.
    """
    world = params.world()
    converted = world.convert(params.to)
    if converted.manifests or params.output == "json":
        print_output("convert", params.output, converted.manifests)
    print_diagnostics(converted.problems, world)
    compared = converted.compare()
    print_lines(_report(converted, compared), err=True)
    left_out().update(dict.fromkeys(world.omissions("network")))
    print_lines((f"not considered: {omission}" for omission in left_out()), err=True)
    return HAS_FINDINGS if compared.given or compared.future else 0


def _report(converted: ConversionResult, compared: ConversionComparison) -> Iterator[str]:
    """Say how many policies were converted, and what that changes."""
    from tierwall.render.connections import text
    from tierwall.render.formats import View

    if not converted.total:
        yield "there are no policies to convert"
        return
    yield f"{converted.total - len(converted.problems)} of {converted.total} policies converted"
    if not compared.given and not compared.future:
        known = "the given pods and for pods that do not exist yet" if compared.is_complete else "the given pods"
        yield f"nothing changes, {'for all pods' if compared.is_proven else f'for {known}'}"
    if compared.given:
        yield "what changes for the given pods:"
        yield from text(compared.given, View())
    if compared.future:
        yield "what changes for pods that do not exist yet, such as:"
        yield from text(compared.future[:MAX_FUTURE], View())
        if len(compared.future) > MAX_FUTURE:
            yield f"and {len(compared.future) - MAX_FUTURE} more"
    if not compared.is_complete:
        yield "policies tell too many sorts of future pods apart: not all of them were compared"
