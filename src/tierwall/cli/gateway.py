"""The commands of the gateway plane: `effective` (also `explain gateway`), and `status` of policies."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.command import (
    TOOL_PROFILE,
    argument,
    choice,
    command,
    flag,
    named_values,
    option,
    output,
    print_line,
    print_output,
    repeated_option,
    runs,
)
from tierwall.cli.objects import AnswerParams, QuestionParams, backend_ref_grants

if TYPE_CHECKING:
    from tierwall.core.answer import Answer
    from tierwall.gateway.question import GatewayQuestion
    from tierwall.world import World


class EffectiveParams(QuestionParams):
    """The options of `effective`."""

    asks = ("gateway",)

    gateway: str | None = option(metavar="NS/NAME", help="The Gateway.")
    listener_set: str | None = option(metavar="NS/NAME", help="The ListenerSet.")
    listener: str | None = option(
        metavar="NAME", help="A listener of the Gateway, or of the ListenerSet if one is given."
    )
    route: str | None = option(metavar="KIND/NS/NAME", help="The route, such as HTTPRoute/shop/api.")
    parents: tuple[str, ...] = repeated_option(
        "--parent",
        metavar="HTTPRoute/NS/NAME#RULE",
        help="A rule that delegates to the route. Repeatable, outermost first.",
    )
    rule: str | None = option(metavar="RULE", help="A rule of the route: its number from 0, or its name.")
    backend: str | None = option(metavar="KIND/NS/NAME", help="The backend: a Service or AgentgatewayBackend.")
    backend_section: str | None = option(metavar="SECTION", help="A port of the Service, or a sub-backend.")
    profile: Any = choice(
        "docs", "agentgateway", help="Merge as the documentation says, or as agentgateway's code does."
    )
    phase: Any = choice("PostRouting", "PreRouting", help="Phase of the `traffic` section.")
    facts: tuple[str, ...] = repeated_option(
        "--request", metavar="NAME=VALUE", help="A value for conditions, such as request.path=/x. Repeatable."
    )
    backend_ref_grants: Any = backend_ref_grants()
    everywhere: bool = flag("Show every place that a request can reach, instead of one.", "--all")
    why: str | None = option(
        metavar="FIELD",
        help="Show every level that can set this field, such as traffic.timeouts, with losers struck out.",
    )
    output: str = output("effective --all")

    @cached_property
    def question(self) -> GatewayQuestion:
        """The question that the options ask."""
        from tierwall.gateway.question import GatewayQuestion

        question = GatewayQuestion(
            gateway=self.gateway,
            listener=self.listener,
            listener_set=self.listener_set,
            parents=self.parents,
            route=self.route,
            rule=_rule(self.rule),
            backend=self.backend,
            backend_section=self.backend_section,
            profile=self.profile,
            phase=self.phase,
            request=_facts(self.facts),
        )
        if self.everywhere and question.place:
            raise click.UsageError("--all means every place: do not name one")
        if not self.everywhere and not any((self.gateway, self.listener_set, self.route, self.backend)):
            raise click.UsageError("name a place with --gateway, --listener-set, --route or --backend, or give --all")
        if self.why is not None:
            self._check_field(self.why)
        return question

    def _check_field(self, field: str) -> None:
        from tierwall.gateway.model.fields import FIELDS, field_hint

        if field not in FIELDS:
            hint = field_hint(field) or f"such as {', '.join(list(FIELDS)[:3])}"
            raise click.BadParameter(f"there is no field `{field}` ({hint})", param_hint="--why")
        if self.output == "html":
            raise click.UsageError("-o html shows all fields: leave out --why, or use -o md")

    def answer(self, world: World) -> Answer:
        """Ask the question of a world."""
        if self.everywhere:
            raise click.UsageError("--all asks many questions: name one place")
        return world.ask(self.question)


@command(
    "effective",
    epilog="Example: tierwall effective --gateway infra/gw --listener web --route HTTPRoute/shop/api --rule 0 -f .",
)
@runs(EffectiveParams)
def effective(params: EffectiveParams) -> None:
    """Which settings are in force at this place, and who set them?

    Only the levels that you name take part. Name the Gateway, the listener, the route, the rule and the backend to see
    the settings for a request on that path. `tierwall check` reports conflicts everywhere.
    """
    question = params.question  # What is wrong with it is said before anything is read.
    world = params.world()
    if params.everywhere:
        answers = world.effective_everywhere(profile=params.profile, phase=params.phase, request=question.request)
        first = next(answers, None)
        if first is None and params.output == "text":
            print_line("there is no Gateway with a route or backend to show", err=True)
        answers = answers if first is None else chain([first], answers)
    else:
        answers = iter([world.ask(question)])
    if params.why is not None:
        from tierwall.render.field_stack import FieldStacks

        print_output("effective --why", params.output, FieldStacks(params.why, tuple(answers)))
    elif params.everywhere or params.output in ("md", "html"):
        print_output("effective --all", params.output, answers)
    else:
        print_output("explain", params.output, next(answers))


# The same command as `explain gateway`.
explain = copy(effective)
explain.epilog = str(effective.epilog).replace("tierwall effective", "tierwall explain gateway")


def _rule(text: str | None) -> int | str | None:
    """Read the number of a rule, or its name."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else text


def _facts(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Read `name=value` pairs. A value is JSON (a number, true, a map) if it can be read so, else a string."""
    import msgspec

    facts: dict[str, Any] = {}
    for name, value in named_values(pairs, "--request"):
        try:
            facts[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            facts[name] = value
    return facts


class StatusParams(AnswerParams):
    """The options of `status`."""

    asks = ("network", "tool", "gateway")

    policies: tuple[str, ...] = argument(nargs=-1, metavar="[POLICY]...")
    profile: Any = choice(
        "docs", "agentgateway", help="Merge settings as the documentation says, or as agentgateway's code does."
    )
    backend_ref_grants: Any = backend_ref_grants()
    tool_profile: str = TOOL_PROFILE
    output: str = output("status")


@command("status", epilog="Example: tierwall status AgentgatewayPolicy/shop/timeouts -f manifests/")
@runs(StatusParams)
def status(params: StatusParams) -> None:
    """Print the conditions that a controller would write, per policy and ancestor.

    Covers AgentgatewayPolicies, AccessPolicies, AdminNetworkPolicies, BaselineAdminNetworkPolicies and
    ClusterNetworkPolicies: all of them, or those named by reference. `-o json` prints objects with their `status`; a
    condition that did not change keeps its time.
    """
    statuses = params.world().statuses(*params.policies, tool_profile=params.tool_profile, profile=params.profile)
    if params.output == "text" and not statuses:
        print_line("no policy that has a status is among the objects", err=True)
    print_output("status", params.output, statuses)
