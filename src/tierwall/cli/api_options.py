"""The options with which `explain api` and `can-i` say who asks for what."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tierwall.resources.snapshot import Snapshot

F = TypeVar("F", bound=Callable[..., Any])

_WHO = (
    click.option("--user", "--as", "user", default="", metavar="NAME", help="Who asks."),
    click.option(
        "--groups", "--as-group", "groups", multiple=True, metavar="NAME", help="A group of theirs; repeatable."
    ),
    click.option("--uid", "--as-uid", "uid", default="", help="Their uid."),
    click.option("--extra", multiple=True, metavar="KEY=VALUE", help="A value of `userInfo.extra`; repeatable."),
    click.option("-n", "--namespace", default="", metavar="NAME", help="The namespace of the request."),
)


def who_options(function: F) -> F:
    """`--user`, `--groups`, `--uid`, `--extra` and `-n`."""
    for option in reversed(_WHO):
        function = option(function)
    return function


def who(user: str, groups: tuple[str, ...], uid: str, extra: tuple[str, ...]) -> dict[str, Any]:
    """These options as keys of a question."""
    values: dict[str, list[str]] = {}
    for pair in extra:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"expected KEY=VALUE for --extra, found `{pair}`")
        values.setdefault(key, []).append(value)
    return {"user": user, "groups": list(groups), "uid": uid, "extra": values}


def resource(text: str) -> dict[str, str]:
    """`pods`, `pods/exec`, `deployments.apps` or `deployments.v1.apps`, as kubectl writes them."""
    whole, _, subresource = text.partition("/")
    name, _, rest = whole.partition(".")
    first, _, more = rest.partition(".")
    is_version = len(first) > 1 and first[0] == "v" and first[1].isdigit()
    version, group = (first, more) if is_version else ("", rest)
    return {"resource": name, "group": group, "version": version, "subresource": subresource}


def resolved(question: dict[str, Any], snapshot: Snapshot, given: Collection[str] = ()) -> dict[str, Any]:
    """The question with its resource by plural, group and version, as `kubectl` asks; doubts go to stderr.

    What is `given` (`group`, `version`) is meant as it is, also if it is empty.
    """
    from tierwall.api.api_resources import api_resources, doubts, resolve

    known = api_resources(snapshot)
    name, group = question.get("resource", ""), question.get("group", "")
    candidates = [one for one in known if one.group == ""] if "group" in given and not group else known
    found = resolve(name, group, candidates)
    for doubt in doubts(question["verb"], f"{name}.{group}" if group else name, found, known):
        click.echo(f"warning: {doubt}", err=True)
    if found is None:
        return question
    version = question.get("version") or ("" if "version" in given else found.version)
    return question | {"resource": found.plural, "group": found.group, "version": version}


def document_of(path: str) -> Any:
    """The one YAML or JSON document of a file (`-`: standard input); anything else ends the command with 1."""
    from tierwall.cli.input import fail
    from tierwall.core.diagnostics import Diagnostic, InputError
    from tierwall.resources.read import read_paths

    read = read_paths([path])
    errors = [one for one in read.diagnostics if one.level == "error"]
    if not errors and len(read.documents) != 1:
        errors = [Diagnostic("TW703", f"expected one document in `{path}`, found {len(read.documents)}")]
    if errors:
        fail(InputError(errors))
    return read.documents[0].value
