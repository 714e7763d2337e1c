"""`tierwall status`: the conditions that a controller would write on each policy, in Gateway API form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from tierwall.cli.input import fail, file_option, loaded_from, output_option


@click.command("status", epilog="Example: tierwall status AgentgatewayPolicy/shop/timeouts -f manifests/")
@click.argument("policies", nargs=-1, metavar="[POLICY]...")
@file_option
@output_option("text", "json")
def command(policies: tuple[str, ...], paths: tuple[str, ...], output: str) -> None:
    """Print, per policy and ancestor, the conditions that a controller would write.

    All AgentgatewayPolicies and AccessPolicies, or those named by reference. `-o json` prints objects with their
    `status`; the times of conditions that did not change are kept from the status that an object has.
    """
    from tierwall.attach.index import ACCESS_POLICIES, GATEWAY_POLICIES, attachments
    from tierwall.attach.status import ancestors, document
    from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
    from tierwall.gateway.policy_status import standing
    from tierwall.render import json

    loaded = loaded_from(paths)
    snapshot = loaded.snapshot
    found = [
        one
        for kinds in (GATEWAY_POLICIES, ACCESS_POLICIES)
        for one in attachments(snapshot, kinds, admitted=False).policies
    ]
    known = {str(one.reference): one for one in found}
    unknown = [name for name in policies if name not in known]
    if unknown:
        fail(InputError(Diagnostic("TW703", f"there is no policy `{n}`", hint=near_miss(n, known)) for n in unknown))
    found = sorted(
        (one for one in found if not policies or str(one.reference) in policies),
        key=lambda one: (one.kind, one.namespace, one.name, one.group),
    )
    documents = [document(one, ancestors(snapshot, one, standing(snapshot, one))) for one in found]
    if output == "json":
        click.echo(json.dump(documents))
        return
    for number, one in enumerate(documents):
        if number:
            click.echo("")
        for line in _lines(one):
            click.echo(line)


def _lines(document: dict[str, Any]) -> Iterator[str]:
    metadata = document["metadata"]
    yield f"{document['kind']}/{metadata['namespace']}/{metadata['name']}"
    for ancestor in document["status"]["ancestors"]:
        ref = ancestor["ancestorRef"]
        place = f"{ref['kind']}/{ref['namespace']}/{ref['name']}" if "namespace" in ref else ref["name"]
        yield f"  {place}"
        for one in ancestor["conditions"]:
            first, *rest = one["message"].split("\n")
            yield f"    {one['type']:<13} {one['status']:<6} {one['reason']:<23} {first}"
            yield from (f"{'':<49}{line}" for line in rest)
    if not document["status"]["ancestors"]:
        yield "  no target that could be read"
