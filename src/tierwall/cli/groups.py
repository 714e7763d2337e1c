"""`tierwall explain`: ask one question of one plane, and see which policy decides it, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.command import choice, exit_code, option, output, runs, several, write
from tierwall.cli.lazy import Lazy, LazyGroup
from tierwall.cli.objects import ReadsObjects, take_stdin
from tierwall.cli.options import Caller, Who, pairs

if TYPE_CHECKING:
    from tierwall.core.answer import Answer
    from tierwall.world import World

QUESTIONS = {
    "network": Lazy("tierwall.cli.explain:network", "May this pod open a connection to that one?"),
    "tool": Lazy("tierwall.cli.explain:tool", "May this caller use this tool through this Gateway?"),
    "gateway": Lazy("tierwall.cli.effective:command", "Which settings are in force at this place, and who set them?"),
    "api": Lazy("tierwall.cli.explain:api", "May this user do this, and under which conditions?"),
}
END = "`namespace/pod`, an IP address, or `node:NAME`"
DATA = ("object", "old_object", "options", "namespace_object", "impersonated_request")


@click.group(
    "explain",
    cls=LazyGroup,
    lazy=QUESTIONS,
    epilog="Example: tierwall explain network --from shop/web-0 --to shop/db-0 --port 5432 -f manifests/",
)
def group() -> None:
    """Ask one question and see which policy decides it, and why.

    The first line is a plain sentence; the walk through the tiers and the source lines follow. `-o json` prints the
    same decision as a document.
    """


class NetworkParams(ReadsObjects):
    """Between whom, and on which port."""

    source: str = option("--from", required=True, metavar="END", help=f"Who opens the connection: {END}.")
    destination: str = option("--to", required=True, metavar="END", help=f"Who is to accept it: {END}.")
    port: int = option(required=True, type=int, help="Destination port number.")
    protocol: str = option(
        type=click.Choice(("TCP", "UDP", "SCTP"), case_sensitive=False), default="TCP", show_default=False
    )
    output: str = output("explain")


@click.command(
    "network", epilog="Example: tierwall explain network --from shop/web-0 --to shop/db-0 --port 5432 -f manifests/"
)
@runs(NetworkParams)
def network(params: NetworkParams) -> int:
    """May this pod open a connection to that one?

    The first line is the answer in plain words, and a second what policies in shadow mode would change. Then each
    direction's walk through the tiers, then the lines of the manifests that were looked at.

    Exit code 0 allowed, 3 denied, 5 conditional, 1 the input failed.
    """
    from tierwall.network.question import NetworkQuestion

    ends = _end(params.source), _end(params.destination)
    question = NetworkQuestion(source=ends[0], to=ends[1], port=params.port, protocol=params.protocol.upper())
    answer = params.world().ask(question)
    write("explain", params.output, answer)
    return exit_code(answer.verdict)


def _end(text: str) -> str | dict[str, str]:
    from tierwall.values.addresses import parse_address

    if parse_address(text) is not None:
        return {"ip": text}
    return {"node": text.removeprefix("node:")} if text.startswith("node:") else text


class ToolParams(Caller, ReadsObjects):
    """Who uses which tool, and on which way."""

    gateway: str = option(required=True, metavar="NS/NAME", help="The Gateway that the request comes in at.")
    listener: str | None = option(metavar="NAME", help="Its listener; needed where it has several.")
    backend: str = option(required=True, metavar="NS/NAME", help="The XBackend, or Service/NS/NAME.")
    tool: str | None = option(
        metavar="NAME", help="The tool or prompt; the method is tools/call unless --method says else."
    )
    method: str | None = option(metavar="METHOD", help="The JSON-RPC method, such as tools/list.")
    uri: str | None = option(metavar="URI", help="The resource of resources/read and its kin.")
    arguments: str | None = option(metavar="JSON", help="The arguments of the call, for expressions that look at them.")
    http_method: str | None = option(metavar="VERB", help="GET, POST (default), DELETE, …")
    path: str | None = option(metavar="PATH", help="The path of the request; the backend's own by default.")
    host: str | None = option(metavar="HOST", help="The Host header.")
    headers: tuple[str, ...] = several("--header", metavar="NAME:VALUE", help="A header; may be repeated.")
    answers: tuple[str, ...] = several(
        "--external-auth",
        metavar="POLICY=ANSWER",
        help="What an authorizer answers, Allow or Deny, by the policy that asks it; others cannot be reached.",
    )
    time: str | None = option(metavar="RFC3339", help="When the request is made, for expressions that look at it.")
    output: str = output("explain")


@click.command(
    "tool",
    epilog="Example: tierwall explain tool --gateway prod/prod-gateway --backend prod/payment-service "
    "--caller agents/shopper --tool refund -f manifests/",
)
@runs(ToolParams)
def tool(params: ToolParams) -> int:
    """May this caller use this tool through this Gateway?

    The first line is the answer in plain words. Then every policy that was evaluated, in order, with the lines of the
    manifests. Exit code 0 allowed, 3 denied, 1 the input failed.
    """
    from tierwall.tool.question import ToolQuestion

    headers = pairs(params.headers, "--header", ":") or None
    http = {"method": params.http_method, "path": params.path, "host": params.host, "headers": headers}
    question = ToolQuestion(
        gateway=params.gateway,
        listener=params.listener,
        backend=params.backend,
        caller=params.who,
        method="tools/call" if params.method is None and params.tool is not None else params.method,
        tool=params.tool,
        uri=params.uri,
        arguments=_arguments(params.arguments),
        http={key: value for key, value in http.items() if value is not None},
        external_auth=pairs(params.answers, "--external-auth", "="),
        time=params.time,
    )
    world = params.world()
    answer = world.ask(question)
    write("explain", params.output, answer)
    if params.output == "text":
        _note_missing_route(answer, world)
    return exit_code(answer.verdict)


def _arguments(text: str | None) -> Any:
    import json

    if text is None:
        return None
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise click.UsageError(f"expected a JSON object for --arguments, found `{text}`")
    return arguments


def _note_missing_route(answer: Answer, world: World) -> None:
    """Say so where the manifests hold routes to backends, but none on the way that was asked about."""
    from tierwall.tool.ways import is_unrouted

    request = answer.detail.request
    if is_unrouted(world.snapshot, request.gateway, request.backend):
        click.echo(f"note: no route in the manifests leads from {request.gateway} to {request.backend}", err=True)


class ApiParams(Who, ReadsObjects):
    """Who asks for what, and the data that conditions look at."""

    verb: str = option(required=True, help="create, update, get, impersonate, …")
    resource: str = option(
        default="",
        metavar="RESOURCE[.VERSION][.GROUP][/SUBRESOURCE]",
        help="The resource by any name that kubectl takes: `deployments`, `deploy`, `deployments.apps`, `pods/log`.",
    )
    group: str | None = option("--group", "--api-group", help="Its API group, if not that of the name.")
    version: str | None = option("--version", "--api-version", help="Its API version, if not that of the name.")
    subresource: str | None = option(help="Its subresource.")
    name: str = option(default="", help="The name of the object.")
    path: str = option(default="", help="A path, for requests that are about no resource.")
    conditions: str = choice(
        "HumanReadable", "Optimized", "none", show_default=False, help="Whether the caller knows conditions."
    )
    operation: str | None = option(help="What admission calls the request; by default it follows from the verb.")
    object: str | None = option(metavar="FILE", help="The object as it is to be.")
    old_object: str | None = option(metavar="FILE", help="The object as it is stored.")
    options: str | None = option(metavar="FILE", help="The options of the operation.")
    namespace_object: str | None = option(metavar="FILE", help="The namespace of the object.")
    impersonated_request: str | None = option(metavar="FILE", help="The request made under another name.")
    output: str = output("explain")


@click.command(
    "api",
    epilog="Example: tierwall explain api --user alice --verb create --resource persistentvolumeclaims -n dev "
    "-f policies/ --object claim.yaml",
)
@runs(ApiParams)
def api(params: ApiParams) -> int:
    """May this user do this, and under which conditions?

    The first line is the answer in plain words. Conditions follow as CEL, each with the policy it came from. With
    `--object` (or other data) the conditions are evaluated and the final decision is shown.

    Group and version of what Kubernetes or a CustomResourceDefinition has are known; `--group` and `--version` are
    taken as they are, also if they are empty. Exit code 0 allowed, 3 denied, 5 conditional, 1 the input failed.
    """
    if params.resource and params.path:
        raise click.UsageError("--resource and --path exclude each other")
    if not params.resource and not params.path:
        raise click.UsageError("say what is asked for with --resource or --path")
    world = params.world()
    question = params.question(
        verb=params.verb,
        resource=params.resource,
        group=params.group,
        version=params.version,
        subresource=params.subresource,
        name=params.name,
        path=params.path,
        conditions="" if params.conditions == "none" else params.conditions,
        **_data(params),
    )
    answer = world.ask(params.resolved(world, question))
    write("explain", params.output, answer)
    return exit_code(answer.detail.final or answer.verdict)


def _data(params: ApiParams) -> dict[str, Any]:
    """What conditions look at, as far as it is given."""
    from tierwall.resources.load import read_document

    files = {name: file for name in DATA if (file := getattr(params, name)) is not None}
    for file in files.values():
        take_stdin([file])
    operation = {"operation": params.operation} if params.operation is not None else {}
    return {**{name: read_document(file) for name, file in files.items()}, **operation}
