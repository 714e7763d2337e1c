"""The checks of `tierwall check`, each a function from a snapshot to findings, imported only when they run."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.progress import Progress
from tierwall.resources.snapshot import Snapshot

# `module:function` of every check; a function takes a snapshot and yields diagnostics.
CHECKS: tuple[str, ...] = (
    "tierwall.analyze.admission:admission",
    "tierwall.analyze.network:network",
    "tierwall.analyze.attachment:policies",
    "tierwall.analyze.attachment:parents",
    "tierwall.analyze.gateway:settings_that_never_count",
    "tierwall.analyze.gateway:widened_authorization",
    "tierwall.analyze.gateway:lost_halves",
    "tierwall.analyze.gateway:broken",
    "tierwall.analyze.gateway:profiles_that_differ",
    "tierwall.analyze.tool:policies",
    "tierwall.analyze.tool_levels:levels",
    "tierwall.analyze.tool_levels:names",
    "tierwall.analyze.api:api",
)


def check(snapshot: Snapshot, progress: Progress | None = None) -> Iterator[Diagnostic]:
    """All findings of all checks, in no particular order; `progress` is told after each check how many are done."""
    for number, entry in enumerate(CHECKS, 1):
        module, _, name = entry.partition(":")
        yield from getattr(importlib.import_module(module), name)(snapshot)
        if progress is not None:
            progress(f"check {module.rpartition('.')[2]}", number, len(CHECKS))
