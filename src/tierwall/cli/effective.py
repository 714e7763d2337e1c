"""`tierwall effective`: the settings in force at a place, who set each, whom it beat, and where the profiles differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from tierwall.cli.input import fail, file_option, loaded_from, output_option


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
    profile: str,
    phase: str,
    facts: tuple[str, ...],
    everywhere: bool,
    paths: tuple[str, ...],
    output: str,
) -> None:
    """Which settings are in force at this place, and who set them?

    Only the levels that you name take part: name the Gateway, the listener, the route, the rule and the backend to see
    what a request on that way meets. `tierwall check` reports conflicts everywhere.
    """
    from tierwall.core.diagnostics import Diagnostic, InputError
    from tierwall.gateway.everywhere import ways
    from tierwall.gateway.provenance import both, explain
    from tierwall.gateway.question import Question, read, terms
    from tierwall.render import json

    place = {
        "gateway": gateway,
        "listenerSet": listener_set,
        "listener": listener,
        "route": route,
        "rule": int(rule) if rule and rule.isascii() and rule.isdigit() and len(rule) < 6 else rule,
        "backend": backend,
        "backendSection": backend_section,
    }
    if everywhere and any(value is not None for value in place.values()):
        raise click.UsageError("--all means every place: name none beside it")
    if not everywhere and not any((gateway, listener_set, route, backend)):
        raise click.UsageError("name a place with --gateway, --listener-set, --route or --backend, or say --all")
    loaded = loaded_from(paths)
    question: dict[str, Any] = {key: value for key, value in place.items() if value is not None}
    question |= {"profile": profile, "phase": phase, "request": _facts(facts)}
    try:
        if everywhere:
            problems: list[Diagnostic] = []
            words = terms(question, {}, problems)
            if problems:
                raise InputError(problems)
            found = [Question(asked, *words) for asked in ways(loaded.snapshot)]
        else:
            found = [read(loaded.snapshot, question, {})]
    except InputError as error:
        fail(error, loaded)
    merges = both(loaded.snapshot, found[0].phase, found[0].facts) if found else None
    documents = [explain(loaded.snapshot, one, merges) for one in found]
    if output == "json":
        click.echo(json.dump(documents if everywhere else documents[0]))
    else:
        for number, document in enumerate(documents):
            if number:
                click.echo("")
            for line in _lines(document):
                click.echo(line)


def _facts(texts: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` pairs; a value that is JSON (a number, true, a map) is that, any other is a text."""
    import msgspec

    out: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"expected NAME=VALUE after --request, found `{text}`")
        try:
            out[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            out[name] = value
    return out


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    count = len(document["effective"])
    settings = "1 setting is" if count == 1 else f"{count or 'no'} settings are"
    other = {"docs": "agentgateway", "agentgateway": "docs"}[document["profile"]]
    yield f"At {document['place']}: {settings} in force (profile {document['profile']}, {document['phase']})."
    for field in document["fields"]:
        yield ""
        yield f"{field['field']}" + ("  CONFLICT at equal precedence" if field.get("conflict") else "")
        values = field["value"] if isinstance(field["from"], list) else [field["value"]]
        for value, party in zip(values, field["set"], strict=False):
            shown = "not set" if field["from"] is None else _short(value)
            yield f"  = {shown}"
            words = f"    {party['policy']} ({party['level']})"
            words += ", Override" if "inheritance" in party else ""
            words += f", entry {party['entry']}" if party.get("entry") is not None else ""
            yield words + _at(party)
            if "note" in party:
                yield f"    {party['note']}"
        if not field["set"]:
            yield "  = not set"
        for one in field["over"]:
            yield f"  over {one['policy']} ({one['level']}): {one['why']}{_at(one)}"
    if document["profilesDiffer"]:
        yield ""
    for one in document["profilesDiffer"]:
        answer = one[other]
        yield (
            f"profile {other} differs: {one['field']} "
            + (f"= {_short(answer['value'])} from {_names(answer['from'])}" if answer else "is not set")
            + (" (a conflict in one of the two)" if "conflict" in one else "")
        )
    if document["notes"]:
        yield ""
    for note in document["notes"]:
        yield f"note: {note}"


def _short(value: Any) -> str:
    import msgspec

    from tierwall.render.text import shortened

    text = msgspec.json.encode(value).decode()
    return shortened(text, 160)


def _names(sources: str | list[str]) -> str:
    return sources if isinstance(sources, str) else ", ".join(sources)


def _at(party: Mapping[str, Any]) -> str:
    source = party.get("source")
    return f"  {source['file']}:{source['line']}" if source else ""
