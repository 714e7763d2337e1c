"""Whether an object of a snapshot would pass admission, as diagnostics at their places; judged once an object.

Planes ask this to fail closed: an object that fails validation never silently disappears from a decision.

INVARIANT: what admission says depends on the object alone (kinds and their schemas are ours, and fixed; CRDs among the
objects define none), so that it holds in every snapshot that has the object.
"""

from __future__ import annotations

from tierwall.core.catalogue import CATALOGUE
from tierwall.core.diagnostics import Diagnostic, Diagnostics
from tierwall.resources.admission import admit
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource


@per_resource
def problems(resource: Resource) -> Diagnostics:
    """Every problem admission has with the object, warnings included."""
    return Diagnostics(
        Diagnostic(
            problem.code,
            problem.message,
            resource.position(problem.path, key=CATALOGUE[problem.code].at_key),
            problem.expected,
            problem.found,
            problem.hint,
            resource.reference,
        )
        for problem in admit(resource.value)
    )


def is_valid(resource: Resource) -> bool:
    """Whether admission takes the object."""
    return not problems(resource).errors
