"""`tierwall`: the root of the command line (docs/reference/exit-codes.md: data to stdout, all else to stderr)."""

from __future__ import annotations

import click

from tierwall.cli.lazy import Lazy, LazyGroup
from tierwall.engines.table import enforced_with, offered_by
from tierwall.version import __version__

COMMANDS = {
    "check": Lazy("tierwall.cli.check:command", "Find everything that is wrong with manifests and policies."),
    "test": Lazy("tierwall.cli.test:command", "Run policy tests."),
    "explain": Lazy("tierwall.cli.groups:explain", "Ask one question and see which policy decides it, and why."),
    "tools": Lazy("tierwall.cli.tool:tools", "List the tools that a caller may use, per backend, and why."),
    "can-i": Lazy("tierwall.cli.api:can_i", "May this user do this? In the manner of `kubectl auth can-i`."),
    "list": Lazy("tierwall.cli.network:list_connections", "List who can reach whom on what."),
    "diff": Lazy("tierwall.cli.network:diff", "Compare the connections two folders of manifests let pass."),
    "effective": Lazy("tierwall.cli.gateway:effective", "See the gateway settings in force, and who set them."),
    "status": Lazy("tierwall.cli.gateway:status", "Print the conditions a controller would write on each policy."),
    "run": Lazy("tierwall.cli.envoy:run", "Enforce the tool policies of a folder with Envoy."),
    "compile": Lazy(
        "tierwall.cli.groups:compile", f"Print what an engine would be given: {', '.join(offered_by('compile'))}."
    ),
    "enforce": Lazy(
        "tierwall.cli.groups:enforce",
        "Make an engine obey the policies: "
        + ", ".join(
            name if command in ("enforce", name) else f"{name} (`{command}`)"
            for name, command in enforced_with().items()
        )
        + ".",
    ),
    "audit": Lazy("tierwall.cli.nft:audit", "Stream what the kernel dropped, by pod, policy and rule."),
    "authorizer": Lazy("tierwall.cli.authorizer:group", "Serve API authorization to API servers, as webhooks."),
    "cel": Lazy("tierwall.cli.cel:group", "Evaluate, partially evaluate and check CEL expressions."),
    "yaml": Lazy("tierwall.cli.yaml:command", "Print YAML as JSON, exactly as Kubernetes reads it."),
    "crds": Lazy("tierwall.cli.crds:command", "Print the CustomResourceDefinitions of the kinds Tierwall knows."),
    "completion": Lazy("tierwall.cli.main:completion", "Print the shell completion script."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: tierwall check manifests/ && tierwall test tests/",
)
@click.version_option(__version__, prog_name="tierwall")
def root() -> None:
    """Every tier of Kubernetes policy, one verdict.

    Reads network policies, tool policies, gateway settings and API authorization; decides as the specifications say;
    explains every decision down to the rule and line.

    Exit codes: 0 done, allowed or passed; 1 the input or the tool failed; 2 usage; 3 denied; 4 findings, differences
    or failed cases; 5 conditional.
    """


@click.command("completion", epilog='Example: eval "$(tierwall completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(root, {}, "tierwall", "_TIERWALL_COMPLETE").source())


def main() -> None:
    """Run the command line; a closed pipe and Ctrl-C end it quietly."""
    import os
    import sys

    try:
        root()
    except BrokenPipeError:
        # The reader went away (`tierwall list | head`); what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
