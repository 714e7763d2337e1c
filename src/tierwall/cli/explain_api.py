"""`tierwall explain api`: may this user do this, under which conditions, and which policy says so?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.api_options import document_of, resolved, resource, who, who_options
from tierwall.cli.input import fail, file_option, loaded_from, output_option

if TYPE_CHECKING:
    from tierwall.api.question import Asked

# Taken as they are where they are given, whatever the name of the resource says.
_ATTRIBUTES = ("group", "version", "subresource")
_DATA = {
    "object": "The object as it is to be.",
    "old_object": "The object as it is stored.",
    "options": "The options of the operation.",
    "namespace_object": "The namespace of the object.",
    "impersonated_request": "The request made under another name.",
}


def _data_options(function: Any) -> Any:
    for name, text in reversed(_DATA.items()):
        function = click.option(f"--{name.replace('_', '-')}", name, metavar="FILE", help=text)(function)
    return function


@click.command(
    "api",
    epilog="Example: tierwall explain api --user alice --verb create --resource persistentvolumeclaims -n dev "
    "-f policies/ --object claim.yaml",
)
@who_options
@click.option("--verb", required=True, help="create, update, get, impersonate, …")
@click.option(
    "--resource",
    "what",
    default="",
    metavar="RESOURCE[.VERSION][.GROUP][/SUBRESOURCE]",
    help="The resource by any name that kubectl takes: `deployments`, `deploy`, `deployments.apps`, `pods/log`.",
)
@click.option("--group", "--api-group", "group", default=None, help="Its API group, if not that of the name.")
@click.option("--version", "--api-version", "version", default=None, help="Its API version, if not that of the name.")
@click.option("--subresource", default=None, help="Its subresource.")
@click.option("--name", default="", help="The name of the object.")
@click.option("--path", default="", help="A path, for requests that are about no resource.")
@click.option(
    "--conditions",
    type=click.Choice(["HumanReadable", "Optimized", "none"]),
    default="HumanReadable",
    help="Whether the caller knows conditions.",
)
@click.option(
    "--operation", default=None, help="What admission calls the request; by default it follows from the verb."
)
@_data_options
@file_option
@output_option("text", "json")
def command(paths: tuple[str, ...], output: str, conditions: str, operation: str | None, **given: Any) -> None:
    """May this user do this, and under which conditions?

    The first line is the answer in plain words. Conditions follow as CEL, each with the policy it came from. With
    `--object` (or other data) the conditions are evaluated and the final decision is shown.

    Group and version of what Kubernetes or a CustomResourceDefinition has are known; `--group` and `--version` are
    taken as they are, also if they are empty. Exit code 0 allowed, 3 denied, 5 conditional, 1 the input failed.
    """
    from tierwall.api.configuration import chain_of
    from tierwall.api.question import decide, document
    from tierwall.core.diagnostics import InputError
    from tierwall.core.verdict import EXIT_CODES
    from tierwall.render import json

    question = _question(given, conditions, operation)
    loaded = loaded_from(paths)
    if given["what"]:
        question = resolved(question, loaded.snapshot, [key for key in _ATTRIBUTES if given[key] is not None])
    try:
        asked = decide(chain_of(loaded.snapshot), question)
    except InputError as error:
        fail(error, loaded)
    if output == "json":
        click.echo(json.dump(document(asked)))
    else:
        for line in _lines(asked):
            click.echo(line)
    answer = asked.final if asked.final is not None else asked.first
    sys.exit(EXIT_CODES[answer.verdict])


def _question(given: dict[str, Any], conditions: str, operation: str | None) -> dict[str, Any]:
    from tierwall.api.enforcement import OPERATIONS

    question = who(given["user"], given["groups"], given["uid"], given["extra"])
    question |= {key: given[key] for key in ("verb", "name", "namespace", "path")}
    if given["what"]:
        question |= resource(given["what"])
    question |= {key: given[key] for key in _ATTRIBUTES if given[key] is not None}
    if given["what"] and given["path"]:
        raise click.UsageError("--resource and --path exclude each other")
    if not given["what"] and not given["path"]:
        raise click.UsageError("say what is asked for with --resource or --path")
    question["conditions"] = "" if conditions == "none" else conditions
    names = {name: name.split("_")[0] + "".join(part.title() for part in name.split("_")[1:]) for name in _DATA}
    data = {names[name]: document_of(given[name]) for name in _DATA if given[name]}
    if operation is not None:
        data["operation"] = operation
    elif data and given["verb"] in OPERATIONS:
        data["operation"] = OPERATIONS[given["verb"]]
    return question | data


def _lines(asked: Asked) -> Iterator[str]:
    from tierwall.api.sentence import sentence, walk

    yield sentence(asked)
    said = list(walk(asked))
    if said:
        yield ""
        yield from said
    yield ""
    yield f"verdict: {asked.first.verdict}"
    if asked.final is not None:
        yield f"final:   {asked.final.verdict}"
    yield f"asked:   {', '.join(asked.called)}"
    steps = asked.final.steps if asked.final is not None and asked.final.steps else asked.first.steps
    if steps:
        yield ""
    for step in steps:
        at = f"{step.position}: " if step.position is not None else ""
        policy = f" {step.policy}" if step.policy is not None else ""
        rule = f" {step.rule}" if step.rule else ""
        note = f" ({step.note})" if step.note else ""
        yield f"{at}{step.tier}{policy}{rule} {step.outcome}{note}"
