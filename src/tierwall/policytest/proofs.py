"""Cases of a policy test that are proofs: how they are read, and what is expected of them (docs/prove.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.expectation import DECIDED_BY
from tierwall.core.source import Path, Position
from tierwall.proofs.proof import Proof, read_effort
from tierwall.proofs.reader import ProofReader
from tierwall.proofs.result import ProofResult, ProofStatus
from tierwall.resources.resource import Resource


class ProofCases:
    """Reads the proofs of one test. Everything that is wrong with them is added to `problems`."""

    def __init__(self, resource: Resource, problems: list[Diagnostic]) -> None:
        self._resource = resource
        self._problems = problems
        given = (resource.spec.get("defaults") or {}).get("proofEffort")
        self.effort = read_effort(given, problems, lambda _: resource.position(("spec", "defaults", "proofEffort")))

    def read(self, case: Mapping[str, Any], path: tuple[str | int, ...]) -> Proof | None:
        """Read the proof of a case and check what it expects; None after adding problems."""

        def locate(inside: Path) -> Position | None:
            return self._resource.position((*path, "prove", *inside))

        before = len(self._problems)
        proof = Proof.read(case["prove"], self._problems, locate)
        if "expect" in case:
            expect = (*path, "expect")
            reader = ProofReader(self._problems, lambda inside: self._resource.position((*expect, *inside)))
            _check_expectation(case["expect"], reader)
        return proof if len(self._problems) == before else None


def _check_expectation(value: object, reader: ProofReader) -> None:
    given = reader.map(value, "`expect` of a proof", ("proof", "decidedBy"))
    if "proof" in given:
        reader.at("proof").one_of(given["proof"], ProofStatus, "proof")
    if "decidedBy" in given:
        if given.get("proof") != ProofStatus.REFUTED:
            reader.at("decidedBy").refuse("`decidedBy` goes with `proof: Refuted` alone")
        for problem in DECIDED_BY.problems("decidedBy", given["decidedBy"]):
            reader.at("decidedBy").refuse(problem.message, problem.hint)


def differences(expect: Mapping[str, Any], result: ProofResult) -> list[str]:
    """Return the parts of an expectation that do not hold. A proof without one must be Proved."""
    wanted = expect.get("proof", ProofStatus.PROVED)
    if result.proof != wanted:
        return [f"proof: expected {wanted}, got {result.proof}"]
    if "decidedBy" in expect and result.counterexample is not None:
        return list(DECIDED_BY.differences("decidedBy", expect["decidedBy"], result.counterexample.answer))
    return []
