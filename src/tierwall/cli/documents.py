"""`tierwall yaml`: each document as one line of JSON, exactly as Kubernetes reads it (docs/reference/yaml.md)."""

from __future__ import annotations

import sys

import click

from tierwall.cli.command import FAILED, Params, argument, runs


class YamlParams(Params):
    """Which file."""

    file: str = argument(metavar="FILE")


@click.command("yaml")
@runs(YamlParams)
def command(params: YamlParams) -> int:
    """Print every document of FILE as one line of JSON, exactly as Kubernetes reads it.

    `-` reads standard input. Empty documents are left out; of a repeated key the last counts, with a warning.

    Example: tierwall yaml deployment.yaml | jq .metadata.name
    """
    from tierwall.cli.collector import uncollected
    from tierwall.resources.json_text import MAX_DEPTH, json_line
    from tierwall.resources.read import Limits, read_paths, repeated_keys

    with uncollected():
        read = read_paths([params.file], limits=Limits(depth=MAX_DEPTH))
    out = sys.stdout.buffer
    for document in read.documents:
        out.write(json_line(document.value).encode() + b"\n")
    out.flush()
    for repeated in repeated_keys(read.documents):
        click.echo(f"{repeated.at}: warning: {repeated.told}", err=True)
    for problem in read.diagnostics:
        click.echo(f"{problem.at}: {problem.told}", err=True)
    return FAILED if read.diagnostics else 0
