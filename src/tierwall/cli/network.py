"""The commands of the network plane: `explain network`, `list` of connections, and `diff` between two lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tierwall.cli.command import (
    command,
    exit_code,
    fail,
    flag,
    left_out,
    option,
    output,
    print_diagnostics,
    print_line,
    print_lines,
    print_output,
    repeated_option,
    runs,
)
from tierwall.cli.objects import PathParams, QuestionParams
from tierwall.render.formats import LISTS, PICTURES

if TYPE_CHECKING:
    from tierwall.core.answer import Answer
    from tierwall.network.reach.listing import Picture
    from tierwall.world import World

# The most pods of which a page names the reason of every connection.
MAX_EXPLAINED = 400
ENDPOINT = "`namespace/name` of a pod or workload, `Kind/namespace/name`, `outside`, an IP address, or `node:NAME`"
ENDPOINTS = (
    "`namespace`, `namespace/name` of a pod or workload, `*` for any part of it, `outside`, an IP address, `node:NAME`"
)


class ExplainNetworkParams(QuestionParams):
    """The options of `explain network`."""

    asks = ("network",)

    source: str = option(
        "--from", required=True, metavar="ENDPOINT", help=f"The endpoint that opens the connection: {ENDPOINT}."
    )
    destination: str = option(
        "--to", required=True, metavar="ENDPOINT", help="The endpoint that accepts it, in the same form, or a Service."
    )
    port: str = option(required=True, help="Destination port number; of a Service its port, by number or name.")
    protocol: str = option(
        type=click.Choice(("TCP", "UDP", "SCTP"), case_sensitive=False),
        default="TCP",
        show_default=False,
        help="Transport protocol; TCP by default.",
    )
    output: str = output("explain")

    def answer(self, world: World) -> Answer:
        """Ask the question of a world."""
        from tierwall.network.question import NetworkQuestion

        question = NetworkQuestion(
            source=_endpoint(self.source),
            to=_endpoint(self.destination),
            port=int(self.port) if self.port.isascii() and self.port.isdigit() else self.port,
            protocol=self.protocol.upper(),
        )
        return world.ask(question)


@command(
    "network", epilog="Example: tierwall explain network --from shop/web-0 --to shop/db-0 --port 5432 -f manifests/"
)
@runs(ExplainNetworkParams)
def explain(params: ExplainNetworkParams) -> int:
    """May this pod open a connection to that one?

    The first line answers in plain words; a second line says what policies in shadow mode would change. Below are
    the walk of each direction through the tiers, and the lines of the manifests that were evaluated.

    A workload stands for all its pods, a Service for the pods behind its port, `outside` for every address that no pod
    and no node has. The answer is conditional if they are not all decided alike.

    Exit code 0 allowed, 3 denied, 5 conditional, 1 invalid input.
    """
    answer = params.answer(params.world())
    print_output("explain", params.output, answer)
    return exit_code(answer.verdict)


def _endpoint(text: str) -> str | dict[str, str]:
    from tierwall.values.addresses import parse_address

    if parse_address(text) is not None:
        return {"ip": text}
    return {"node": text.removeprefix("node:")} if text.startswith("node:") else text


class ListParams(PathParams):
    """The options of `list`."""

    asks = ("network", "ways")

    sources: tuple[str, ...] = repeated_option(
        "--from", metavar="ENDPOINT", help=f"Only connections from these: {ENDPOINTS}."
    )
    destinations: tuple[str, ...] = repeated_option(
        "--to", metavar="ENDPOINT", help="Only connections to these, in the same form."
    )
    focus: tuple[str, ...] = repeated_option(
        "--focus", metavar="ENDPOINT", help="Only connections to or from these, in the same form."
    )
    ports: tuple[str, ...] = repeated_option(
        "--port", metavar="PORT", help="Only these ports: `80`, `53/UDP`, `8000-8080/TCP`."
    )
    explain: bool = flag("Name the rules that decide each direction.")
    denied: bool = flag("Also show what is denied.")
    names: bool = flag("Name every pod and node of a group.")
    pairs: bool = flag("Print one entry for each pair of endpoints instead of groups.")
    exposure: bool = flag("Show what future pods could reach, and what could reach them, by label.")
    hits: bool = option(is_flag=True, hidden=True)
    output: str = output("list")


@command("list", epilog="Example: tierwall list manifests/ --to shop --explain")
@runs(ListParams)
def list_connections(params: ListParams) -> None:
    """List which pods, nodes and outside addresses can reach which, on which ports.

    Endpoints that policies treat alike share a line: `shop/web[Deployment] => shop/db[StatefulSet] : TCP 5432`. A pair
    is left out if policies apply to neither endpoint (nodes, host-network pods, outside addresses).

    Lines that begin with `through` are ways in from outside: Ingresses, routes of Gateways, Services that nodes or load
    balancers offer. At the end, standard error names the pods that no policy protects.
    """
    from tierwall.core.diagnostics import sorted_diagnostics
    from tierwall.network.model.model import network_model
    from tierwall.network.model.policies import fail_closed_warnings, shadow_notes
    from tierwall.network.reach.connections import left_out_of_ways
    from tierwall.network.reach.exposure import exposure_limits

    _check_options(params)
    world = params.world()
    print_diagnostics(
        sorted_diagnostics(
            [*fail_closed_warnings(network_model(world.snapshot).policies), *shadow_notes(world.snapshot)]
        )
    )
    if params.exposure:
        print_diagnostics(sorted_diagnostics(exposure_limits(world.snapshot)))
        print_output("list --exposure", params.output, world.exposure(explain=params.explain))
        return
    is_picture, is_page = params.output in PICTURES, params.output == "html"
    # The page of a small cluster shows everything, with reasons; that of a large one would be too large.
    whole = is_page and len(network_model(world.snapshot).pods) <= MAX_EXPLAINED
    connections = world.connections(
        sources=params.sources,
        destinations=params.destinations,
        ports=params.ports,
        focus=params.focus,
        explain=params.explain or whole,
        denied=params.denied or whole,
        names=params.names,
    )
    left_out().update(dict.fromkeys(connections.not_considered))
    # The ways in and the summary are about everybody: a list of what some pods reach does not ask for them.
    destinations = params.destinations or params.focus
    explain = params.explain and not is_picture
    is_from_outside = not params.sources or "outside" in params.sources
    ways_in = world.ways_in(destinations, params.ports, explain=explain) if is_from_outside else ()
    if is_from_outside:
        left_out().update(dict.fromkeys(left_out_of_ways(world.snapshot, destinations)))
    if any(judged.way.controller_is_unknown for judged in ways_in):
        print_diagnostics(sorted_diagnostics(exposure_limits(world.snapshot)))
    if is_page:
        from tierwall.explore.one_file import ListedConnections

        given = {"focus": params.focus, "from": params.sources, "to": params.destinations, "port": params.ports}
        filters = {name: values for name, values in given.items() if values}
        print_output("list", params.output, ListedConnections(world.snapshot, connections, ways_in, filters))
        return
    if is_picture:
        from tierwall.network.reach.ways_in import with_ways

        drawn = draw(connections.picture, "narrow it with --focus, --from, --to, --port")
        print_output("list", params.output, with_ways(drawn, connections.matrix, ways_in))
        return
    from tierwall.render.listing import ConnectionReport

    narrowed = params.sources or destinations or params.ports
    unprotected = () if narrowed else connections.unprotected()
    entries = connections.pairs() if params.pairs else connections
    print_output("list", params.output, ConnectionReport(entries, ways_in, unprotected, connections.parts))
    if params.output in ("text", "md"):
        # Scripts read the connections line by line; the summary is for people.
        print_lines(map(str, unprotected), err=True)
        model = network_model(world.snapshot)
        if not model.pods:
            exposure = ": --exposure shows what policies let future pods do" if model.policies else ""
            print_line(f"no pods are among the objects{exposure}", err=True)


def _check_options(params: ListParams) -> None:
    if params.hits:
        raise click.UsageError("--hits is an option of `tierwall audit`: tierwall audit --hits")
    if params.pairs and params.output in PICTURES:
        raise click.UsageError(f"--pairs cannot be combined with -o {params.output}")
    narrowed = any((params.sources, params.destinations, params.focus, params.ports))
    changed = params.pairs or params.denied or params.names
    if params.exposure and (narrowed or changed or params.output not in LISTS):
        raise click.UsageError("--exposure can be combined only with --explain and with -o text, json, csv or md")


def draw(draw: Callable[[], Picture], hint: str = "") -> Picture:
    """Draw a picture; a picture that would be too large ends the command."""
    from tierwall.network.reach.listing import TooManyBlocks

    try:
        return draw()
    except TooManyBlocks as error:
        fail(f"error: too large for a picture: {error}" + (f" (hint: {hint})" if hint else ""))
