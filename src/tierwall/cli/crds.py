"""`tierwall crds`: the CustomResourceDefinitions of the kinds that are custom resources, ready for `kubectl apply`."""

from __future__ import annotations

import click

from tierwall.cli.command import Params, argument, output, runs, write


class CrdsParams(Params):
    """Which kinds."""

    kinds: tuple[str, ...] = argument(nargs=-1)
    output: str = output("crds")


@click.command("crds")
@runs(CrdsParams)
def command(params: CrdsParams) -> None:
    """Print the CustomResourceDefinitions of KINDS, or of all kinds that are custom resources.

    A kind is named as in a manifest (`AdminNetworkPolicy`), by its plural or by a short name.

    Example: tierwall crds ClusterAuthorizationPolicy AuthorizationPolicy | kubectl apply -f -
    """
    from tierwall.core.diagnostics import near_miss
    from tierwall.resources.crd import crd_documents
    from tierwall.resources.kinds.registry import all_kinds

    known = [kind for kind in all_kinds() if kind.is_crd]
    chosen = []
    for name in params.kinds:
        named = [kind for kind in known if name in (kind.kind, kind.plural, kind.kind.lower(), *kind.short_names)]
        if not named:
            hint = near_miss(name, [kind.kind for kind in known])
            raise click.BadParameter(f"no custom resource is called `{name}`" + (f"; {hint}" if hint else ""))
        chosen += named
    write("crds", params.output, crd_documents(chosen if params.kinds else known))
