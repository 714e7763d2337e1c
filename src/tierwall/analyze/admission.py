"""Checks every object against admission: would an API server with these kinds refuse it?"""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.diagnostics import Diagnostic
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import admission_problems, built_in_problems, installed_definitions


def admission_findings(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield the problems that admission has with each object of a known kind."""
    # A follower runs this for every object at every change, and few sources hold definitions.
    defined = installed_definitions(snapshot)
    for resource in snapshot:
        yield from admission_problems(snapshot, resource) if defined else built_in_problems(resource)
