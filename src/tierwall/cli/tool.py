"""The commands of the tool plane: `explain tool`, and `tools`, which lists what a caller may use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.command import (
    Params,
    command,
    exit_code,
    flag,
    left_out,
    named_values,
    option,
    output,
    print_line,
    print_output,
    repeated_option,
    runs,
)
from tierwall.cli.objects import AnswerParams, QuestionParams

if TYPE_CHECKING:
    from tierwall.core.answer import Answer
    from tierwall.tool.detail import RequestDetail
    from tierwall.tool.question import ToolQuestion
    from tierwall.world import World


class CallerParams(Params):
    """The caller of a tool (`explain tool`, `tools`)."""

    caller: str | None = option(
        metavar="ID", help="SPIFFE ID or NS/SERVICEACCOUNT; by default the caller has no identity."
    )

    @property
    def caller_value(self) -> Any:
        """The caller of a question: a SPIFFE ID, or else a ServiceAccount `namespace/name`."""
        if self.caller is None or self.caller.startswith("spiffe:"):
            return self.caller
        return {"serviceAccount": self.caller}


class CallParams(QuestionParams):
    """The options that describe a call through a Gateway (`explain tool`, `explain path`)."""

    gateway: str = option(required=True, metavar="NS/NAME", help="The Gateway that receives the request.")
    listener: str | None = option(metavar="NAME", help="Its listener; required if it has several.")
    backend: str = option(
        required=True, metavar="NS/NAME", help="The XBackend, or Service/NS/NAME, or AgentgatewayBackend/NS/NAME."
    )
    tool: str | None = option(
        metavar="NAME", help="The tool or prompt; the method is tools/call unless --method is given."
    )
    method: str | None = option(metavar="METHOD", help="The JSON-RPC method, such as tools/list.")
    uri: str | None = option(metavar="URI", help="The resource of resources/read and similar methods.")
    arguments: str | None = option(metavar="JSON", help="The arguments of the call, for expressions that read them.")
    http_method: str | None = option(metavar="VERB", help="The HTTP method: GET, POST (default), DELETE, …")
    path: str | None = option(
        metavar="PATH", help="The path of the request; by default that of the backend.", shell_complete=None
    )
    host: str | None = option(metavar="HOST", help="The Host header.")
    headers: tuple[str, ...] = repeated_option("--header", metavar="NAME:VALUE", help="A header. Repeatable.")
    answers: tuple[str, ...] = repeated_option(
        "--external-auth",
        metavar="POLICY=ANSWER",
        help="The answer (Allow or Deny) of a policy's authorizer; without one it counts as unreachable. Repeatable.",
    )
    time: str | None = option(metavar="RFC3339", help="The time of the request, for expressions that read it.")
    output: str = output("explain")

    @property
    def call(self) -> dict[str, Any]:
        """The fields of a question that describe the call."""
        headers = dict(named_values(self.headers, "--header", "NAME:VALUE")) or None
        http = {"method": self.http_method, "path": self.path, "host": self.host, "headers": headers}
        return {
            "gateway": self.gateway,
            "listener": self.listener,
            "backend": self.backend,
            "method": "tools/call" if self.method is None and self.tool is not None else self.method,
            "tool": self.tool,
            "uri": self.uri,
            "arguments": _arguments(self.arguments),
            "http": {key: value for key, value in http.items() if value is not None},
            "external_auth": dict(named_values(self.answers, "--external-auth", "POLICY=ANSWER")),
            "time": self.time,
        }


class ExplainToolParams(CallerParams, CallParams):
    """The options of `explain tool`."""

    asks = ("tool",)

    @cached_property
    def question(self) -> ToolQuestion:
        """The question that the options ask."""
        from tierwall.tool.question import ToolQuestion

        return ToolQuestion(**self.call, caller=self.caller_value)

    def answer(self, world: World) -> Answer:
        """Ask the question of a world."""
        return world.ask(self.question)


@command(
    "tool",
    epilog="Example: tierwall explain tool --gateway prod/prod-gateway --backend prod/payment-service "
    "--caller agents/shopper --tool refund -f manifests/",
)
@runs(ExplainToolParams)
def explain(params: ExplainToolParams) -> int:
    """May this caller use this tool through this Gateway?

    The first line answers in plain words. Below it is every policy that was evaluated, in order, with its line in the
    manifests. Exit code 0 allowed, 3 denied, 1 invalid input.
    """
    question = params.question  # What is wrong with it is said before anything is read.
    world = params.world()
    answer = world.ask(question)
    print_output("explain", params.output, answer)
    if params.output == "text":
        note_missing_route(answer.detail.request, world)
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
        raise click.UsageError(f"expected a JSON object as `--arguments`, found `{text}`")
    return arguments


def note_missing_route(request: RequestDetail, world: World) -> None:
    """Print a note where the manifests have routes, but none from this Gateway to this backend."""
    from tierwall.tool.ways import is_unrouted

    if is_unrouted(world.snapshot, request.gateway, request.backend):
        print_line(f"note: no route among the objects leads from {request.gateway} to {request.backend}", err=True)


def _compare_with_log(params: ToolsParams, file: str) -> None:
    """Print who called what, against what they may call."""
    from tierwall.tool.usage import MAX_LINE, CallLog

    if params.tools or params.everything:
        raise click.UsageError("`--from-log` shows the tools of the log and of policies: leave out --tool and --all")
    log = CallLog()
    with click.open_file(file, "rb") as stream:
        # A line that is too long is read in parts, none of which is a decision.
        log.read(iter(lambda: stream.readline(MAX_LINE + 1), b""))
    usage = params.world().tool_usage(log, params.caller_value, params.gateway, params.backend)
    print_output("tools --from-log", params.output, usage)


class ToolsParams(CallerParams, AnswerParams):
    """The options of `tools`."""

    asks = ("tool",)

    gateway: str | None = option(metavar="NS/NAME", help="Only through this Gateway.")
    backend: str | None = option(
        metavar="NS/NAME", help="Only at this XBackend, or Service/NS/NAME, or AgentgatewayBackend/NS/NAME."
    )
    tools: tuple[str, ...] = repeated_option(
        "--tool", metavar="NAME", help="Also list this tool, even if no policy names it. Repeatable."
    )
    everything: bool = flag("List denied tools too, with the policy that denies them.", "--all")
    from_log: str | None = option(
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, allow_dash=True),
        help="Compare with the calls in a decision log of `tierwall run` (- is standard input): who called what, who "
        "may call more, and what nobody called. Without --caller, for all callers.",
    )
    output: str = output("tools")


@command("tools", epilog="Example: tierwall tools --caller agents/shopper -f manifests/")
@runs(ToolsParams)
def tools(params: ToolsParams) -> None:
    """List what a caller may use: every backend that a route leads to, with its known tools.

    Known tools are those that policies name, and those that a backend declares in the annotation `tierwall.io/tools`;
    `*` stands for all others. `Conditional` means that the verdict depends on the host, the headers, the arguments,
    the time or an authorizer; the condition is shown.
    """
    from tierwall.core.verdict import Verdict
    from tierwall.tool.grants import nearest_caller
    from tierwall.tool.sentence import describe_caller

    if params.from_log is not None:
        _compare_with_log(params, params.from_log)
        return
    world = params.world()
    granted = world.grants(params.caller_value, params.gateway, params.backend, params.tools)
    if not granted.routed:
        print_line("no route among the objects leads there: assuming every Gateway leads to every backend", err=True)
    if params.output == "text" and not granted.ways:
        print_line("there is no Gateway with a backend to list", err=True)
    left_out().update(dict.fromkeys(granted.not_considered))
    print_output("tools", params.output, (granted, params.everything))
    denied = all(row.verdict is Verdict.DENY for row in granted.rows)
    if params.output == "text" and granted.ways and denied and not params.everything:
        hint = nearest_caller(world.snapshot, granted.caller)
        unknown = f": no rule names it ({hint})" if hint else ""
        print_line(f"no tool may be used by {describe_caller(granted.caller)}{unknown}", err=True)
