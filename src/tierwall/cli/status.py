"""`tierwall status`: the conditions that a controller would write on each policy, in Gateway API form."""

from __future__ import annotations

import click

from tierwall.cli.command import argument, output, runs, write
from tierwall.cli.objects import ReadsObjects


class Params(ReadsObjects):
    """Which policies."""

    policies: tuple[str, ...] = argument(nargs=-1, metavar="[POLICY]...")
    output: str = output("status")


@click.command("status", epilog="Example: tierwall status AgentgatewayPolicy/shop/timeouts -f manifests/")
@runs(Params)
def command(params: Params) -> None:
    """Print, per policy and ancestor, the conditions that a controller would write.

    All AgentgatewayPolicies and AccessPolicies, or those named by reference. `-o json` prints objects with their
    `status`; the times of conditions that did not change are kept from the status that an object has.
    """
    from tierwall.gateway.standing import statuses

    write("status", params.output, statuses(params.world().snapshot, *params.policies))
