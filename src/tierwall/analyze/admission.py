"""Everything an API server with these kinds would refuse, object by object."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.diagnostics import Diagnostic
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import built_in_problems, definitions, problems


def admission(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """The problems admission has with each object of a kind that is ours to judge."""
    # Whoever follows a source asks this of every object at every change, and few sources hold definitions.
    defined = definitions(snapshot)
    for resource in snapshot:
        yield from problems(snapshot, resource) if defined else built_in_problems(resource)
