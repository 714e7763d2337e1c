"""Checks every object against admission: would an API server with these kinds refuse it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.core.diagnostics import Diagnostic, Diagnostics
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import DEFINITION, admission_problems, built_in_problems, installed_definitions


def admission_findings(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield the problems that admission has with each object of a known kind."""
    # Few sources hold definitions.
    defined = installed_definitions(snapshot)
    for resource in snapshot:
        yield from admission_problems(snapshot, resource) if defined else built_in_problems(resource)


class AdmissionIndex:
    """The same for one snapshot after the other: only objects that have changed are looked at again.

    INVARIANT: `_found` has the problems of `_snapshot`, those of policies that are set aside excepted. What admission
    has against an object depends on the object and the definition of its kind alone (`resources.validity`).
    """

    def __init__(self) -> None:
        self._snapshot = Snapshot({})
        self._found: dict[Resource, Diagnostics] = {}

    def findings(self, snapshot: Snapshot) -> Iterator[Diagnostic]:
        """Yield the problems that admission has with each object of a known kind."""
        changes = tuple(snapshot.changes(self._snapshot))
        changed: Iterable[Resource] = (new for _, new in changes if new is not None)
        if any((either.group, either.kind) == DEFINITION for old, new in changes if (either := old or new) is not None):
            changed, self._found = snapshot, {}
        for old, _ in changes:
            if old is not None:
                self._found.pop(old, None)
        for resource in changed:
            if problems := admission_problems(snapshot, resource):
                self._found[resource] = problems
        self._snapshot = snapshot
        aside = tuple(snapshot.set_aside)
        for resource in aside:
            self._found.pop(resource, None)
        for problems in (*self._found.values(), *(admission_problems(snapshot, resource) for resource in aside)):
            yield from problems
