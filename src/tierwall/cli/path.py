"""The command `explain path`: a call from a pod to a backend, through all planes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import click

from tierwall.cli.command import command, exit_code, option, print_output, runs
from tierwall.cli.tool import CallParams, note_missing_route

if TYPE_CHECKING:
    from tierwall.core.answer import Answer
    from tierwall.path.question import PathQuestion
    from tierwall.world import World


class ExplainPathParams(CallParams):
    """The options of `explain path`."""

    asks = ("network", "tool")

    source: str = option(
        "--from", required=True, metavar="NS/POD", help="The pod that calls, or a workload such as Deployment/NS/NAME."
    )
    gateway_pods: str | None = option(
        metavar="NS/LABELS",
        help="The Gateway's pods, if they do not carry its label: `infra/app=envoy,tier=edge`.",
    )

    @cached_property
    def question(self) -> PathQuestion:
        """The question that the options ask."""
        from tierwall.path.question import PathQuestion

        return PathQuestion(**self.call, source=self.source, gateway_pods=_gateway_pods(self.gateway_pods))

    def answer(self, world: World) -> Answer:
        """Ask the question of a world."""
        return world.ask(self.question)


@command(
    "path",
    epilog="Example: tierwall explain path --from agents/shopper-0 --tool refund --gateway prod/gw "
    "--backend prod/payments -f manifests/",
)
@runs(ExplainPathParams)
def explain(params: ExplainPathParams) -> int:
    """May this pod's agent make this call, all planes considered?

    Three hops: the pod opens a connection to the Gateway's pods, the Gateway lets the call through for the pod's
    ServiceAccount, and the Gateway's pods open a connection to those of the backend. The first line answers in plain
    words. Below it is a picture of the hops, then each hop with the policies that decide it.

    Exit code 0 allowed, 3 denied, 5 conditional, 1 invalid input.
    """
    question = params.question  # What is wrong with it is said before anything is read.
    world = params.world()
    answer = world.ask(question)
    print_output("explain", params.output, answer)
    if params.output == "text":
        note_missing_route(answer.detail.hops[1].detail.request, world)
    return exit_code(answer.verdict)


def _gateway_pods(text: str | None) -> dict[str, object] | None:
    """Read `NAMESPACE/KEY=VALUE,…`; a label's key may have a slash too."""
    if text is None:
        return None
    namespace, slash, labels = text.partition("/")
    pairs = [pair.partition("=") for pair in labels.split(",")]
    if not namespace or not slash or not all(key and equals for key, equals, _ in pairs):
        raise click.UsageError(f"expected NAMESPACE/KEY=VALUE,… as `--gateway-pods`, found `{text}`")
    return {"namespace": namespace, "selector": {"matchLabels": {key: value for key, _, value in pairs}}}
