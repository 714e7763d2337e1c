"""`tierwall can-i`: may I, in the manner of `kubectl auth can-i`, with the conditions where the answer depends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tierwall.cli.answer import ask, exit_code
from tierwall.cli.api_options import extra_values, resolved, who_options
from tierwall.cli.input import DENIED, fail, file_option, output_option, world_from

if TYPE_CHECKING:
    from tierwall.api.question import ApiQuestion
    from tierwall.core.answer import Answer
    from tierwall.world import World


@click.command("can-i", epilog="Example: tierwall can-i create deployments.apps --as alice -n dev -f policies/")
@click.argument("verb", required=False)
@click.argument("what", required=False, metavar="[RESOURCE[.GROUP][/NAME] | URL]")
@who_options
@click.option("--subresource", default="", help="The subresource, such as `exec`.")
@click.option("--list", "listed", is_flag=True, help="Print everything the user may do in the namespace.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code answers.")
@file_option
@output_option("text", "json")
def command(
    verb: str | None,
    what: str | None,
    user: str,
    groups: tuple[str, ...],
    uid: str,
    extra: tuple[str, ...],
    namespace: str,
    subresource: str,
    listed: bool,
    quiet: bool,
    paths: tuple[str, ...],
    output: str,
) -> None:
    """May this user do VERB to RESOURCE, or to a URL?

    Prints `yes`, `no`, or `yes, if` and the conditions. Exit code 0 yes, 3 no, 5 under conditions. RESOURCE may be a
    short or singular name (`deploy`); group and version of what Kubernetes or a CustomResourceDefinition has are known.
    """
    from tierwall.api.question import ApiQuestion

    if listed and (verb or what):
        raise click.UsageError("--list takes no VERB and no RESOURCE")
    if not listed and not (verb and what):
        raise click.UsageError("expected VERB and RESOURCE or URL, or --list")
    asked = ApiQuestion(user=user, groups=groups, uid=uid, extra=extra_values(extra), namespace=namespace)
    if not listed:
        asked = _question(asked, verb or "", what or "", subresource)
    world = world_from(paths)
    if listed:
        _list(world, asked, output)
        return
    answer = ask(world, resolved(world.snapshot, asked))
    _write(answer, output, quiet)
    may_not = answer.detail.final is None and not answer.detail.can_become_allowed
    sys.exit(DENIED if may_not else exit_code(answer.detail.final or answer.verdict))


def _question(asked: ApiQuestion, verb: str, what: str, subresource: str) -> ApiQuestion:
    from msgspec.structs import replace

    if what.startswith("/"):
        if asked.namespace or subresource:
            raise click.UsageError("a URL is in no namespace and has no subresource")
        return replace(asked, verb=verb, path=what)
    resource, _, name = what.partition("/")
    return replace(asked, verb=verb, resource=resource, name=name, subresource=subresource)


def _write(answer: Answer, output: str, quiet: bool) -> None:
    from tierwall.render import api_text, json

    if output == "json":
        click.echo(json.dump(answer.to_dict()))
    elif not quiet:
        for line in api_text.yes_or_no(answer):
            click.echo(line)


def _list(world: World, asked: ApiQuestion, output: str) -> None:
    from tierwall.api.permissions import permissions
    from tierwall.core.diagnostics import InputError
    from tierwall.render import api_text, json
    from tierwall.render.json.api import permissions_document

    try:
        found = permissions(world.snapshot, asked.user, asked.groups, asked.namespace, uid=asked.uid, extra=asked.extra)
    except InputError as error:
        fail(error, world)
    if output == "json":
        click.echo(json.dump(permissions_document(found.listed, world.not_considered)))
    else:
        for line in api_text.permission_table(found.listed):
            click.echo(line)
    for authorizer in found.unlisted:
        click.echo(f"warning: what authorizer `{authorizer}` allows cannot be listed", err=True)
