"""`tierwall can-i`: may I, in the manner of `kubectl auth can-i`, with the conditions where the answer depends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tierwall.cli.command import DENIED, argument, exit_code, flag, option, output, runs, write
from tierwall.cli.objects import ReadsObjects
from tierwall.cli.options import Who

if TYPE_CHECKING:
    from tierwall.api.question import ApiQuestion


class Params(Who, ReadsObjects):
    """Who asks for what."""

    verb: str | None = argument(required=False)
    what: str | None = argument(required=False, metavar="[RESOURCE[.GROUP][/NAME] | URL]")
    subresource: str = option(default="", help="The subresource, such as `exec`.")
    listed: bool = flag("Print everything the user may do in the namespace.", "--list")
    quiet: bool = flag("Print nothing; the exit code answers.", "-q", "--quiet")
    output: str = output("can-i")

    @property
    def request(self) -> dict[str, str]:
        """The attributes of the request that is asked about."""
        if self.listed and (self.verb or self.what):
            raise click.UsageError("--list takes no VERB and no RESOURCE")
        if self.listed:
            return {}
        if not self.verb or not self.what:
            raise click.UsageError("expected VERB and RESOURCE or URL, or --list")
        if self.what.startswith("/"):
            if self.namespace or self.subresource:
                raise click.UsageError("a URL is in no namespace and has no subresource")
            return {"verb": self.verb, "path": self.what}
        resource, _, name = self.what.partition("/")
        return {"verb": self.verb, "resource": resource, "name": name, "subresource": self.subresource}


@click.command("can-i", epilog="Example: tierwall can-i create deployments.apps --as alice -n dev -f policies/")
@runs(Params)
def command(params: Params) -> int:
    """May this user do VERB to RESOURCE, or to a URL?

    Prints `yes`, `no`, or `yes, if` and the conditions. Exit code 0 yes, 3 no, 5 under conditions. RESOURCE may be a
    short or singular name (`deploy`); group and version of what Kubernetes or a CustomResourceDefinition has are known.
    """
    question = params.question(**params.request)
    if params.listed:
        return _list(params, question)
    world = params.world()
    answer = world.ask(params.resolved(world, question))
    if params.output == "json" or not params.quiet:
        write("can-i", params.output, answer)
    may_not = answer.detail.final is None and not answer.detail.can_become_allowed
    return DENIED if may_not else exit_code(answer.detail.final or answer.verdict)


def _list(params: Params, asked: ApiQuestion) -> int:
    from tierwall.api.permissions import permissions

    snapshot = params.world().snapshot
    found = permissions(snapshot, asked.user, asked.groups, asked.namespace, uid=asked.uid, extra=asked.extra)
    write("can-i --list", params.output, found.listed)
    for authorizer in found.unlisted:
        click.echo(f"warning: what authorizer `{authorizer}` allows cannot be listed", err=True)
    return 0
