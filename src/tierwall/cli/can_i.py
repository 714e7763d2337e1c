"""`tierwall can-i`: may I, in the manner of `kubectl auth can-i`, with the conditions where the answer depends."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.api_options import resolved, resource, who, who_options
from tierwall.cli.input import fail, file_option, loaded_from, output_option

if TYPE_CHECKING:
    from tierwall.api.permissions import Permission
    from tierwall.api.question import Asked


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
    from tierwall.api.configuration import chain_of
    from tierwall.api.permissions import permissions
    from tierwall.api.question import attributes_of, decided, document
    from tierwall.core.diagnostics import InputError
    from tierwall.core.verdict import EXIT_CODES
    from tierwall.render import json

    if listed and (verb or what):
        raise click.UsageError("--list takes no VERB and no RESOURCE")
    if not listed and not (verb and what):
        raise click.UsageError("expected VERB and RESOURCE or URL, or --list")
    question = who(user, groups, uid, extra) | {"namespace": namespace}
    if not listed:
        question |= {"verb": verb} | _place(what or "", namespace, subresource)
    loaded = loaded_from(paths)
    if not listed:
        question = resolved(question, loaded.snapshot)
    try:
        chain, attributes = chain_of(loaded.snapshot), attributes_of(question)
    except InputError as error:
        fail(error, loaded)
    if listed:
        _write_list(permissions(chain, attributes), output)
        return
    asked = decided(chain, attributes, None)
    if output == "json":
        click.echo(json.dump(document(asked)))
    elif not quiet:
        for line in _lines(asked):
            click.echo(line)
    answer = asked.final if asked.final is not None else asked.first
    conditional = asked.final is None and not asked.first.can_become_allowed
    sys.exit(3 if conditional else EXIT_CODES[answer.verdict])


def _place(what: str, namespace: str, subresource: str) -> dict[str, Any]:
    if what.startswith("/"):
        if namespace or subresource:
            raise click.UsageError("a URL is in no namespace and has no subresource")
        return {"path": what, "namespace": ""}
    named, _, name = what.partition("/")
    return resource(named) | {"name": name, "subresource": subresource}


def _lines(asked: Asked) -> Iterator[str]:
    from tierwall.api.sentence import walk

    first, final = asked.first, asked.final
    if final is None and first.can_become_allowed:
        yield "yes, if the conditions hold"
        yield from walk(asked)
        return
    answer = final if final is not None else first
    if str(answer.verdict) == "Allow":
        yield "yes"
        return
    reason = answer.error or answer.reason
    yield f"no - {reason}" if reason else "no"


def _write_list(found: Iterable[Permission], output: str) -> None:
    import msgspec

    from tierwall.render import json

    rows = list(found)
    if output == "json":
        click.echo(json.dump({"permissions": [msgspec.to_builtins(one) for one in rows]}))
        return
    table = [("RESOURCES", "URLS", "NAMES", "VERBS", "EFFECT", "FROM", "CONDITION")]
    for one in rows:
        groups = [group for group in one.groups if group] or [""]
        resources = [f"{name}.{group}" if group else name for name in one.resources for group in groups]
        table.append(
            (
                _listed(resources),
                _listed(one.urls),
                _listed(one.names),
                _listed(one.verbs),
                one.effect,
                one.policy,
                f"fails: {one.error}" if one.error else one.condition or "-",
            )
        )
    widths = [max(len(row[column]) for row in table) for column in range(6)]
    for row in table:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[6]]).rstrip())


def _listed(words: list[str]) -> str:
    return ",".join(words) or "-"
