"""A reason why an API server would refuse an object or warn about it."""

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct

PathStep: TypeAlias = str | int
# The place of a check: the trail to the parent and the step from there; None at the root. Cheaper than a path per node.
Trail: TypeAlias = "tuple[Trail, PathStep] | None"


class AdmissionProblem(Struct, frozen=True):
    """A refusal or a warning.

    `path` always leads to a node of the document as written; for a missing field, to the object that lacks it.
    `message` names the field itself, in the API server's words.
    """

    code: str
    path: tuple[PathStep, ...]
    message: str
    expected: str = ""
    actual: str = ""
    hint: str = ""

    @property
    def refuses(self) -> bool:
        """Whether this refuses the object. If not, it is a warning."""
        return self.code != WARNING


AdmissionProblems: TypeAlias = list[AdmissionProblem]


class MeteredProblems(list[AdmissionProblem]):
    """The problems of an object of an installed definition, and the CEL cost that its rules may still use."""

    budget = 10_000_000  # apiserver's RuntimeCELCostBudget


# Appends the problems of a value. Returns whether CEL rules may read it.
ValueCheck: TypeAlias = Callable[[Any, Trail, AdmissionProblems], bool]

UNKNOWN_FIELD = "TW101"
REQUIRED = "TW102"
WRONG_TYPE = "TW103"
UNSUPPORTED = "TW104"
INVALID = "TW105"
COUNT = "TW106"
DUPLICATE = "TW107"
RULE = "TW108"
WARNING = "TW109"
UNKNOWN_KIND = "TW110"
UNSERVED_POLICY = "TW115"
UNSERVED = "TW116"


def path_of_trail(trail: Trail) -> tuple[PathStep, ...]:
    """Return a trail as a path from the root."""
    out: list[PathStep] = []
    while trail is not None:
        trail, step = trail
        out.append(step)
    return tuple(reversed(out))


def existing_path(path: tuple[PathStep, ...], document: object) -> tuple[PathStep, ...]:
    """Return the longest part of `path` that exists in `document`: defaults add nodes that are not written there."""
    node = document
    for depth, step in enumerate(path):
        match node:
            case dict() if step in node:
                node = node[step]
            case list() if isinstance(step, int) and step < len(node):
                node = node[step]
            case _:
                return path[:depth]
    return path
