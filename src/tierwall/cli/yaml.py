"""`tierwall yaml`: each document as one line of JSON, exactly as Kubernetes reads it (docs/reference/yaml.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tierwall.core.diagnostics import Diagnostic


@click.command("yaml")
@click.argument("file", metavar="FILE")
def yaml_command(file: str) -> None:
    """Print every document of FILE as one line of JSON, exactly as Kubernetes reads it.

    `-` reads standard input. Empty documents are left out; of a repeated key the last counts, with a warning.

    Example: tierwall yaml deployment.yaml | jq .metadata.name
    """
    import sys

    from tierwall.cli.collector import uncollected
    from tierwall.resources.json_line import json_line
    from tierwall.resources.json_text import MAX_DEPTH
    from tierwall.resources.read import Limits, read_paths, repeated_keys

    with uncollected():
        read = read_paths([file], limits=Limits(depth=MAX_DEPTH))
    out = sys.stdout.buffer
    for document in read.documents:
        out.write(json_line(document.value).encode() + b"\n")
    out.flush()
    for repeated in repeated_keys(read.documents):
        click.echo(f"{repeated.at}: warning: {_told(repeated)}", err=True)
    for problem in read.diagnostics:
        click.echo(f"{problem.at}: {_told(problem)}", err=True)
    if read.diagnostics:
        sys.exit(1)


def _told(diagnostic: Diagnostic) -> str:
    return f"{diagnostic.message} ({diagnostic.hint})" if diagnostic.hint else diagnostic.message
