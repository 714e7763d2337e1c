"""Commands about documents: `yaml` shows how Kubernetes reads a file (docs/reference/yaml.md), `crds` prints CRDs."""

from __future__ import annotations

import sys

import click

from tierwall.cli.command import FAILED, Params, argument, output, print_line, print_output, runs


class YamlParams(Params):
    """The options of `yaml`."""

    file: str = argument(metavar="FILE")


@click.command("yaml", epilog="Example: tierwall yaml deployment.yaml | jq .metadata.name")
@runs(YamlParams)
def yaml(params: YamlParams) -> int:
    """Print every document of FILE as one line of JSON, exactly as Kubernetes reads it.

    `-` reads standard input. Empty documents are left out. If a key is repeated, the last value counts, with a warning.
    """
    from tierwall.cli.collector import collector_off
    from tierwall.core.diagnostics import shown
    from tierwall.core.unprintable import printable_json_bytes
    from tierwall.resources.json_text import MAX_DEPTH, json_line
    from tierwall.resources.read import Limits, ReadSettings, read_paths, repeated_keys

    with collector_off():
        read = read_paths([params.file], limits=Limits(depth=MAX_DEPTH), settings=ReadSettings(plain=True))
    out = sys.stdout.buffer
    for document in read.documents:
        out.write(printable_json_bytes(json_line(document.value).encode()) + b"\n")
    out.flush()
    repeated = shown(repeated_keys(read.documents))
    for problem in repeated.diagnostics:
        print_line(f"{problem.at}: warning: {problem.message_with_hint}", err=True)
    problems = shown(read.diagnostics)
    for problem in problems.diagnostics:
        print_line(f"{problem.at}: {problem.message_with_hint}", err=True)
    for line in (*repeated.lines, *problems.lines):
        print_line(line, err=True)
    return FAILED if read.diagnostics else 0


class CrdsParams(Params):
    """The options of `crds`."""

    kinds: tuple[str, ...] = argument(nargs=-1)
    output: str = output("crds")


@click.command(
    "crds", epilog="Example: tierwall crds ClusterAuthorizationPolicy AuthorizationPolicy | kubectl apply -f -"
)
@runs(CrdsParams)
def crds(params: CrdsParams) -> None:
    """Print the CustomResourceDefinitions of KINDS, or of all kinds that are custom resources.

    A kind is named as in a manifest (`AdminNetworkPolicy`), by its plural or by a short name. The annotation
    `tierwall.io/release` says which release of which project a definition describes.
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
    print_output("crds", params.output, crd_documents(chosen if params.kinds else known))
