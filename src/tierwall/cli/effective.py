"""`tierwall effective`: the settings in force at a place, who set each, whom it beat, and where the profiles differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.answer import ask, write
from tierwall.cli.input import fail, file_option, output_option, world_from

if TYPE_CHECKING:
    from tierwall.gateway.model.profile import Phase, Profile
    from tierwall.gateway.question import GatewayQuestion
    from tierwall.world import World


@click.command(
    "effective",
    epilog="Example: tierwall effective --gateway infra/gw --listener web --route HTTPRoute/shop/api --rule 0 -f .",
)
@click.option("--gateway", metavar="NS/NAME", help="The Gateway.")
@click.option("--listener-set", metavar="NS/NAME", help="The ListenerSet.")
@click.option("--listener", metavar="NAME", help="A listener, of the ListenerSet where one is given.")
@click.option("--route", metavar="KIND/NS/NAME", help="The route, such as HTTPRoute/shop/api.")
@click.option("--rule", metavar="RULE", help="A rule of the route: its number from 0, or its name.")
@click.option("--backend", metavar="KIND/NS/NAME", help="The backend: a Service or AgentgatewayBackend.")
@click.option("--backend-section", metavar="SECTION", help="A port of the Service, or a sub-backend.")
@click.option("--profile", type=click.Choice(("docs", "agentgateway")), default="docs", show_default=True)
@click.option("--phase", type=click.Choice(("PostRouting", "PreRouting")), default="PostRouting", show_default=True)
@click.option("--request", "facts", multiple=True, metavar="NAME=VALUE", help="A fact for conditions: request.path=/x.")
@click.option("--all", "everywhere", is_flag=True, help="Every place that a request can reach, instead of one.")
@file_option
@output_option("text", "json")
def command(
    gateway: str | None,
    listener_set: str | None,
    listener: str | None,
    route: str | None,
    rule: str | None,
    backend: str | None,
    backend_section: str | None,
    profile: Profile,
    phase: Phase,
    facts: tuple[str, ...],
    everywhere: bool,
    paths: tuple[str, ...],
    output: str,
) -> None:
    """Which settings are in force at this place, and who set them?

    Only the levels that you name take part: name the Gateway, the listener, the route, the rule and the backend to see
    what a request on that way meets. `tierwall check` reports conflicts everywhere.
    """
    from tierwall.gateway.question import GatewayQuestion

    question = GatewayQuestion(
        gateway=gateway,
        listener=listener,
        listener_set=listener_set,
        route=route,
        rule=_rule(rule),
        backend=backend,
        backend_section=backend_section,
        profile=profile,
        phase=phase,
        request=_facts(facts),
    )
    if everywhere and question.place:
        raise click.UsageError("--all means every place: name none beside it")
    if not everywhere and not any((gateway, listener_set, route, backend)):
        raise click.UsageError("name a place with --gateway, --listener-set, --route or --backend, or say --all")
    world = world_from(paths)
    if everywhere:
        _write_all(world, question, output)
    else:
        write(ask(world, question), world, output)


def _write_all(world: World, question: GatewayQuestion, output: str) -> None:
    from tierwall.core.diagnostics import InputError
    from tierwall.render import json

    try:
        answers = world.effective_everywhere(profile=question.profile, phase=question.phase, request=question.request)
    except InputError as error:
        fail(error, world)
    if output == "json":
        click.echo(json.dump(json.items_document((answer.to_dict() for answer in answers), world.not_considered)))
        return
    for number, answer in enumerate(answers):
        if number:
            click.echo("")
        write(answer, world, output)


def _rule(text: str | None) -> int | str | None:
    """A number is a rule's number, any other text its name."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else text


def _facts(texts: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` pairs; a value that is JSON (a number, true, a map) is that, any other is a text."""
    import msgspec

    facts: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"expected NAME=VALUE after --request, found `{text}`")
        try:
            facts[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            facts[name] = value
    return facts
