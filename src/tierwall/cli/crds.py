"""`tierwall crds`: the CustomResourceDefinitions of the kinds that are custom resources, ready for `kubectl apply`."""

from __future__ import annotations

import click


@click.command("crds")
@click.argument("kinds", nargs=-1)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def crds(kinds: tuple[str, ...], output: str) -> None:
    """Print the CustomResourceDefinitions of KINDS, or of all kinds that are custom resources.

    A kind is named as in a manifest (`AdminNetworkPolicy`), by its plural or by a short name.

    Example: tierwall crds ClusterAuthorizationPolicy AuthorizationPolicy | kubectl apply -f -
    """
    import json

    from tierwall.core.diagnostics import near_miss
    from tierwall.resources.crd import definitions, to_yaml
    from tierwall.resources.kinds.registry import all_kinds

    known = [kind for kind in all_kinds() if kind.is_crd]
    chosen = []
    for name in kinds:
        found = [one for one in known if name in (one.kind, one.plural, one.kind.lower(), *one.short_names)]
        if not found:
            hint = near_miss(name, [one.kind for one in known])
            raise click.BadParameter(f"no custom resource is called `{name}`" + (f"; {hint}" if hint else ""))
        chosen += found
    documents = definitions(chosen if kinds else known)
    if output == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}, indent=2))
    else:
        click.echo(to_yaml(documents), nl=False)
