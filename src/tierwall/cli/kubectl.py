"""`kubectl tierwall …`: the same commands as a plugin of kubectl (docs/clusters.md#as-a-kubectl-plugin).

kubectl starts `kubectl-tierwall` with the words after `tierwall`, and takes over nothing of its own command line: flags
before the name of a plugin are an error there. Without files, the plugin reads the current context.

For completion kubectl starts `kubectl_complete-tierwall` with the same words, the last of which is to be completed. It
expects one completion per line, and then a line with a colon and what the shell may add.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM = "kubectl tierwall"
# What the shell may add to the completions, in the numbers that kubectl expects.
_FILES, _NOTHING, _FOLDERS = 0, 4, 16


def is_plugin() -> bool:
    """Whether kubectl started this command."""
    context = click.get_current_context(silent=True)
    return context is not None and context.find_root().info_name == PROGRAM


def completions(words: Sequence[str]) -> list[str]:
    """Return the lines that complete the last of some words."""
    from click.shell_completion import ShellComplete

    from tierwall.cli.main import root

    items = ShellComplete(root, {}, PROGRAM, "").get_completions(list(words[:-1]), words[-1] if words else "")
    lines = [f"{item.value}\t{item.help}" if item.help else item.value for item in items if item.type == "plain"]
    return [*lines, f":{_directive(items)}"]


def _directive(items: Iterable[CompletionItem]) -> int:
    types = {item.type for item in items}
    return _FILES if "file" in types else _FOLDERS if "dir" in types else _NOTHING


def complete() -> None:
    """Print the completions that kubectl asks for. A completion never fails: it would be printed into the prompt."""
    try:
        lines = completions(sys.argv[1:])
    except Exception:
        lines = [f":{_NOTHING}"]
    print("\n".join(lines))
