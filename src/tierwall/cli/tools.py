"""`tierwall tools`: what a caller may use, per backend, with the rules that grant it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.input import fail, file_option, output_option, snapshot_from
from tierwall.cli.tool_options import caller as caller_of
from tierwall.cli.tool_options import caller_option

if TYPE_CHECKING:
    from tierwall.resources.snapshot import Snapshot
    from tierwall.tool.grants import Listing, Passage
    from tierwall.tool.possible import Possibility


@click.command("tools", epilog="Example: tierwall tools --caller agents/shopper -f manifests/")
@caller_option
@click.option("--gateway", metavar="NS/NAME", help="Only through this Gateway.")
@click.option("--backend", metavar="NS/NAME", help="Only at this XBackend, or Service/NS/NAME.")
@click.option("--tool", "more", multiple=True, metavar="NAME", help="A tool to ask about that no policy names.")
@click.option("--all", "everything", is_flag=True, help="List denied tools too, with the policy that denies them.")
@file_option
@output_option("text", "json")
def command(
    caller: str | None,
    gateway: str | None,
    backend: str | None,
    more: tuple[str, ...],
    everything: bool,
    paths: tuple[str, ...],
    output: str,
) -> None:
    """List what a caller may use: every backend that a route leads to, every tool that is known there.

    Known tools are those that policies name and those that a backend declares in the annotation `tierwall.io/tools`;
    `*` stands for any other. `Conditional` means that it depends on the host, the headers, the arguments, the time, or
    an authorizer; the condition is shown.
    """
    from tierwall.core.diagnostics import InputError
    from tierwall.render import json
    from tierwall.tool.asked import caller_of as spiffe_id
    from tierwall.tool.grants import listings

    snapshot = snapshot_from(paths)
    try:
        who = spiffe_id(caller_of(caller))
        ways = _ways(snapshot, gateway, backend)
    except InputError as error:
        fail(error)
    found = list(listings(snapshot, who, ways, more))
    if output == "json":
        click.echo(json.dump({"caller": who, "ways": [_document(one, everything) for one in found]}))
        return
    if not found:
        click.echo("there is no Gateway and backend to list", err=True)
    lines = list(_blocks(found, everything))
    for line in lines:
        click.echo(line)
    if found and not lines:
        click.echo(f"no tool may be used by {who or 'a caller without an identity'}{_near(snapshot, who)}", err=True)


def _ways(snapshot: Snapshot, gateway: str | None, backend: str | None) -> list[Passage]:
    """The ways through the Gateway and to the backend given; InputError if one of them does not exist.

    Where no route takes such a way, as in a folder of policies alone, every Gateway is taken to lead to every backend.
    """
    from tierwall.core.diagnostics import input_error, near_miss, no_such_name
    from tierwall.tool.grants import combinations, passages

    backend = backend.removeprefix("XBackend/") if backend is not None else None
    routed, every = passages(snapshot), combinations(snapshot)
    problems = []
    for key, wanted, name_of in (("Gateway", gateway, _gateway_name), ("backend", backend, _backend_name)):
        known = {name_of(one) for one in (*routed, *every)}
        if wanted is not None and wanted not in known:
            problems.append(no_such_name(f"there is no {key} `{wanted}`", near_miss(wanted, known)))
    if problems:
        raise input_error(problems)
    for ways in (routed, every):
        found = [one for one in ways if gateway in (None, _gateway_name(one)) and backend in (None, _backend_name(one))]
        if found:
            break
    if found and ways is every:
        click.echo("no route in the manifests leads there: taking every Gateway to lead to every backend", err=True)
    return found


def _near(snapshot: Snapshot, caller: str | None) -> str:
    """A hint at the nearest caller that some rule names, where none names this one."""
    from tierwall.core.diagnostics import near_miss
    from tierwall.tool.model import model

    this = model(snapshot)
    named = {
        rule.source.spiffe
        for one in this.resources
        for rule in this.policy(one).allows.all
        if rule.source.spiffe is not None
    }
    hint = near_miss(caller, named) if caller is not None and caller not in named else ""
    return f": no rule names it ({hint})" if hint else ""


def _gateway_name(one: Passage) -> str:
    return f"{one.gateway.namespace}/{one.gateway.name}"


def _backend_name(one: Passage) -> str:
    return str(one.backend).removeprefix("XBackend/")


def _shown(listing: Listing, everything: bool) -> Iterator[tuple[str, Possibility]]:
    for name, one in listing.tools.items():
        if everything or one.verdict != "Deny":
            yield name, one


def _document(listing: Listing, everything: bool) -> dict[str, Any]:
    passage = listing.passage
    return {
        "gateway": _gateway_name(passage),
        "listener": passage.listener.name,
        "backend": str(passage.backend),
        "initialize": _possibility(listing.initialize),
        "tools": [{"tool": name, **_possibility(one)} for name, one in _shown(listing, everything)],
    }


def _possibility(one: Possibility) -> dict[str, Any]:
    out: dict[str, Any] = {"verdict": str(one.verdict), "decidedBy": list(_settled(one))}
    return out | ({"conditions": list(one.conditions)} if one.conditions else {})


def _settled(one: Possibility) -> Iterator[dict[str, str]]:
    for part in one.parts:
        for label in [rule.label for rule in part.rules] or ["spec"]:
            yield {"policy": part.policy.reference, "rule": label}
    if not one.parts:
        yield {"policy": "Default"}


def _blocks(found: Iterable[Listing], everything: bool) -> Iterator[str]:
    """A block for each way: a line for each tool with the rules that grant it, its conditions below."""
    first = True
    for listing in found:
        rows = list(_shown(listing, everything))
        if not rows:
            continue
        if listing.initialize.verdict == "Deny":
            rows.insert(0, ("(initialize)", listing.initialize))
        if not first:
            yield ""
        first = False
        yield f"{listing.passage.backend} through {listing.passage.entrance}"
        width = max(len(name) for name, _ in rows)
        for name, one in rows:
            yield f"  {name.ljust(width)}  {one.verdict:11}  {_by(one)}"
            for number, condition in enumerate(one.conditions):
                yield f"  {' ' * width}  {'and if' if number else 'if':>11}  {condition}"


def _by(one: Possibility) -> str:
    return ", ".join(
        f"{entry['policy']} {entry['rule']}" if entry.get("rule", "spec") != "spec" else entry["policy"]
        for entry in _settled(one)
    )
