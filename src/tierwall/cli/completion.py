"""`tierwall completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click


@click.command("completion", epilog='Example: eval "$(tierwall completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL."""
    from click.shell_completion import get_completion_class

    from tierwall.cli.main import root

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(root, {}, "tierwall", "_TIERWALL_COMPLETE").source())
