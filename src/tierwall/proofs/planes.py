"""The planes that can be proved, and what each offers (docs/prove.md).

Adding a plane: write a module with these names, and add a line here. The frame reads claims, assumptions and sets of
values, confirms counterexamples with the decision of the plane, and writes results; a plane reads its region and
searches.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol, cast

from tierwall.core.answer import Answer
from tierwall.core.verdict import Verdict
from tierwall.proofs.proof import Assumptions, Change, Claim
from tierwall.proofs.reader import ProofReader
from tierwall.proofs.result import PlaneFinding
from tierwall.resources.snapshot import Snapshot

# The planes that a region can be about, and the modules of those that can be proved.
REGIONS = ("network", "tool", "api")
PROVING = {name: f"tierwall.proofs.{name}.plane" for name in REGIONS}


class ProvingPlane(Protocol):
    """A module that proves claims about one plane."""

    # The verdicts that a claim may name.
    VERDICTS: tuple[Verdict, ...]
    # The keys of `assume` that mean something on this plane.
    ASSUMPTIONS: tuple[str, ...]

    def read_region(self, value: object, reader: ProofReader) -> Any:
        """Read a region without looking at objects. Everything wrong with it is noted by the reader."""

    def scope(self, assume: Assumptions) -> str:
        """Say in a few words what "everything that may come" was: `every pod, namespace and address, but …`."""

    def prove(self, snapshot: Snapshot, region: Any, claim: Claim, assume: Assumptions, effort: float) -> PlaneFinding:
        """Search for something in the region that refutes the claim. InputError if the region names what is not there.

        `effort` is a limit in units of work, never of time: the same input gives the same answer everywhere.
        """

    def prove_change(
        self, old: Snapshot, new: Snapshot, change: Change, assume: Assumptions, effort: float
    ) -> PlaneFinding:
        """Search for a question that the change lets through and that was not before, or the other way round."""

    def known_part(self, question: Any, snapshot: Snapshot) -> Any:
        """Return a question without answers of authorizers that the objects do not have: of the other side of a change.

        Nobody asks them there.
        """

    def outcomes(self, answer: Answer) -> frozenset[Verdict]:
        """Return the verdicts that an answer may come to: of a Conditional one, all that its conditions leave open."""


@cache
def proving_plane(name: str) -> ProvingPlane | None:
    """Import the module of a plane on first use; None if claims about this plane cannot be proved yet."""
    return cast("ProvingPlane", importlib.import_module(PROVING[name])) if name in PROVING else None


def given_planes(value: Mapping[str, Any]) -> list[str]:
    """Return the regions that a proof has."""
    return [name for name in REGIONS if name in value]
