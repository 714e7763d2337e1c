"""`tierwall explain api`: may this user do this, under which conditions, and which policy says so?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.answer import ask, exit_code, write
from tierwall.cli.api_options import extra_values, resolved, who_options
from tierwall.cli.input import fail, file_option, output_option, world_from

if TYPE_CHECKING:
    from tierwall.api.question import ApiQuestion

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
def command(paths: tuple[str, ...], output: str, **given: Any) -> None:
    """May this user do this, and under which conditions?

    The first line is the answer in plain words. Conditions follow as CEL, each with the policy it came from. With
    `--object` (or other data) the conditions are evaluated and the final decision is shown.

    Group and version of what Kubernetes or a CustomResourceDefinition has are known; `--group` and `--version` are
    taken as they are, also if they are empty. Exit code 0 allowed, 3 denied, 5 conditional, 1 the input failed.
    """
    if given["resource"] and given["path"]:
        raise click.UsageError("--resource and --path exclude each other")
    if not given["resource"] and not given["path"]:
        raise click.UsageError("say what is asked for with --resource or --path")
    world = world_from(paths)
    answer = ask(world, resolved(world.snapshot, _question(**given)))
    write(answer, world, output)
    sys.exit(exit_code(answer.detail.final or answer.verdict))


def _question(conditions: str, operation: str | None, extra: tuple[str, ...], **given: Any) -> ApiQuestion:
    """The question of these options; a file of data that cannot be read ends the command with exit code 1."""
    from tierwall.api.question import ApiQuestion
    from tierwall.core.diagnostics import InputError
    from tierwall.resources.load import read_document

    try:
        data = {name: read_document(path) for name in _DATA if (path := given.pop(name)) is not None}
    except InputError as error:
        fail(error)
    if operation is not None:
        data["operation"] = operation
    known = "" if conditions == "none" else conditions
    return ApiQuestion(conditions=known, extra=extra_values(extra), **given, **data)
