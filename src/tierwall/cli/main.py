"""`tierwall`: the root of the command line (docs/reference/exit-codes.md: data to stdout, all else to stderr)."""

from __future__ import annotations

import click

from tierwall.cli.lazy import Lazy, LazyGroup
from tierwall.version import __version__

COMMANDS = {
    "check": Lazy("tierwall.cli.check:command", "Find everything that is wrong with manifests and policies."),
    "test": Lazy("tierwall.cli.test:command", "Run policy tests."),
    "explain": Lazy("tierwall.cli.explain:group", "Ask one question and see which policy decides it, and why."),
    "tools": Lazy("tierwall.cli.tools:command", "List the tools that a caller may use, per backend, and why."),
    "can-i": Lazy("tierwall.cli.can_i:command", "May this user do this? In the manner of `kubectl auth can-i`."),
    "list": Lazy("tierwall.cli.list:command", "List who can reach whom on what."),
    "diff": Lazy("tierwall.cli.diff:command", "Compare the connections two folders of manifests let pass."),
    "effective": Lazy("tierwall.cli.effective:command", "See the gateway settings in force, and who set them."),
    "status": Lazy("tierwall.cli.status:command", "Print the conditions a controller would write on each policy."),
    "run": Lazy("tierwall.cli.run:command", "Enforce the tool policies of a folder with Envoy."),
    "compile": Lazy("tierwall.cli.compile:group", "Print what an engine would be given: nftables."),
    "enforce": Lazy("tierwall.cli.enforce:group", "Make an engine obey the policies: nftables."),
    "audit": Lazy("tierwall.cli.audit:command", "Stream what the kernel dropped, by pod, policy and rule."),
    "authorizer": Lazy("tierwall.cli.authorizer:group", "Serve API authorization to API servers, as webhooks."),
    "cel": Lazy("tierwall.cli.cel:cel", "Evaluate, partially evaluate and check CEL expressions."),
    "yaml": Lazy("tierwall.cli.yaml:yaml_command", "Print YAML as JSON, exactly as Kubernetes reads it."),
    "crds": Lazy("tierwall.cli.crds:crds", "Print the CustomResourceDefinitions of the kinds Tierwall knows."),
    "completion": Lazy("tierwall.cli.completion:command", "Print the shell completion script."),
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
