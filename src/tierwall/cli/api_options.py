"""The options with which `explain api` and `can-i` say who asks for what."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tierwall.api.question import ApiQuestion
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


def extra_values(pairs: tuple[str, ...]) -> dict[str, list[str]]:
    """The values of `--extra`, by key."""
    values: dict[str, list[str]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"expected KEY=VALUE for --extra, found `{pair}`")
        values.setdefault(key, []).append(value)
    return values


def resolved(snapshot: Snapshot, question: ApiQuestion) -> ApiQuestion:
    """The question as kubectl would ask it; doubts go to stderr."""
    from tierwall.api.resource_names import resolve

    completed, doubts = resolve(snapshot, question)
    for doubt in doubts:
        click.echo(f"warning: {doubt}", err=True)
    return completed
