"""`tierwall`: the root of the command line (docs/reference/exit-codes.md: data to stdout, all else to stderr)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from copy import copy
from typing import TypeAlias

import click
from click.exceptions import NoArgsIsHelpError

from tierwall.cli.kubectl import PROGRAM as PLUGIN
from tierwall.cli.sections import HelpContext
from tierwall.engines.table import enforced_with, offered_by
from tierwall.version import __version__

# The place of a command, as `module:attribute`, and its line in `--help`.
Lazy: TypeAlias = tuple[str, str]

COMMANDS: Mapping[str, Lazy] = {
    "check": ("tierwall.cli.checks:check", "Find everything that is wrong with manifests and policies."),
    "test": ("tierwall.cli.checks:test", "Run policy tests."),
    "explain": ("tierwall.cli.groups:explain", "Ask one question and see which policy decides it, and why."),
    "tools": ("tierwall.cli.tool:tools", "List the tools that a caller may use, per backend, and why."),
    "can-i": ("tierwall.cli.api:can_i", "May this user do this? Works like `kubectl auth can-i`."),
    "list": ("tierwall.cli.network:list_connections", "List which endpoints can reach which, on which ports."),
    "diff": ("tierwall.cli.compare:diff", "See what a change opens and closes, in folders or in a cluster."),
    "ui": ("tierwall.cli.explorer:ui", "See all planes in a browser: ask, look, try a change."),
    "convert": ("tierwall.cli.convert:convert", "Convert network policies to another kind, and say what changes."),
    "snapshot": ("tierwall.cli.snapshot:snapshot", "Write what decisions read of a cluster, as a file for `-f`."),
    "effective": ("tierwall.cli.gateway:effective", "See the gateway settings in force, and who set them."),
    "status": ("tierwall.cli.gateway:status", "Print the conditions a controller would write on each policy."),
    "run": ("tierwall.cli.envoy:run", "Enforce the tool policies of a folder with Envoy."),
    "compile": (
        "tierwall.cli.groups:compile",
        f"Print the configuration that an engine would get: {', '.join(offered_by('compile'))}.",
    ),
    "enforce": (
        "tierwall.cli.groups:enforce",
        "Enforce the policies with an engine: "
        + ", ".join(
            name if command in ("enforce", name) else f"{name} (`{command}`)"
            for name, command in enforced_with().items()
        )
        + ".",
    ),
    "audit": ("tierwall.cli.nft:audit", "Stream what the kernel dropped, by pod, policy and rule."),
    "authorizer": ("tierwall.cli.authorizer:group", "Serve API authorization to API servers, as webhooks."),
    "controller": ("tierwall.cli.controller:controller", "Write the status of policies in a cluster, and more."),
    "envoy": ("tierwall.cli.gateway_envoy:envoy", "Run the Envoy of a Gateway in a cluster, fed by controllers."),
    "cel": ("tierwall.cli.cel:group", "Evaluate, partially evaluate and check CEL expressions."),
    "yaml": ("tierwall.cli.documents:yaml", "Print YAML as JSON, exactly as Kubernetes reads it."),
    "crds": ("tierwall.cli.documents:crds", "Print the CustomResourceDefinitions of the kinds Tierwall knows."),
    "completion": ("tierwall.cli.main:completion", "Print the shell completion script."),
}


class LazyGroup(click.Group):
    """A group that imports a command only when it is run or its help is shown.

    `tierwall --help` would otherwise import the modules of every command.
    """

    context_class = HelpContext

    def __init__(
        self, *args: object, lazy: Mapping[str, Lazy], elsewhere: Mapping[str, str] | None = None, **kwargs: object
    ) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.lazy = lazy
        # What could be looked for here, and the command that does it.
        self.elsewhere = elsewhere or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all command names, in the order of the table."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        if ctx.find_root().info_name == PLUGIN and command.epilog:
            command = copy(command)
            command.epilog = str(command.epilog).replace("tierwall ", f"{PLUGIN} ")
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; what the command line holds cannot fake lines of an error."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            from tierwall.core.unprintable import escape_unprintable

            words = escape_unprintable(error.message)
            # A list of choices and help have lines of their own, and nothing from the command line.
            if words == error.message or isinstance(error, click.MissingParameter | NoArgsIsHelpError):
                raise
            raise click.UsageError(words, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for `--help`, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does; the error for an unknown command suggests the nearest one."""
        try:
            name, command, words = super().resolve_command(ctx, args)
        except click.UsageError as error:
            from tierwall.core.diagnostics import near_miss

            elsewhere = self.elsewhere.get(args[0])
            hint = f"use `tierwall {elsewhere}`" if elsewhere else near_miss(args[0], self.list_commands(ctx))
            problem = error.message.rstrip(".")
            raise click.UsageError(f"{problem}; {hint}" if hint else problem, ctx=ctx) from None
        is_last = command is not None and not isinstance(command, LazyGroup)
        if is_last and any(word.startswith("--cluster") for word in words):
            from tierwall.cli.clusters import refuse_cluster_name

            assert command is not None
            refuse_cluster_name(words, command.context_class(command, info_name=name, parent=ctx))
        return name, command, words


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

    Exit codes: 0 done, allowed or passed; 1 the input or the tool failed; 2 wrong usage; 3 denied; 4 findings,
    differences or failed cases; 5 conditional; 6 the answer may be incomplete (only with --strict).
    """


@click.command("completion", epilog='Example: eval "$(tierwall completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(root, {}, "tierwall", "_TIERWALL_COMPLETE").source())


def main(program: str | None = None) -> None:
    """Run the command line under a name. The exit code is that of the answer, even if nobody reads it to the end."""
    import sys

    from tierwall.cli.streams import dropping_streams, exit_code

    dropping_streams()
    try:
        root(prog_name=program)
    except SystemExit as ended:
        sys.exit(exit_code(ended.code) if isinstance(ended.code, int) else ended.code)
