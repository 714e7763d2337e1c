"""Comparison of two worlds, and proofs about them: the public functions `diff` and `prove` (docs/python-api.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.world import World, strings

if TYPE_CHECKING:
    from tierwall.analyze.diff import DifferenceStream
    from tierwall.proofs.proof import Proof
    from tierwall.proofs.result import ProofResult


def diff(
    old: World, new: World, planes: Sequence[str] | None = None, *, profile: str | None = None
) -> DifferenceStream:
    """Compare two worlds: what a change opens, closes or alters. InputError for a plane that cannot be compared.

    With a `profile`, settings of gateways are compared under it alone, without one under both. `not_considered` of the
    result says what was too much to compare, once all differences have been read.
    """
    from tierwall.analyze.diff import differences

    return differences(old.snapshot, new.snapshot, None if planes is None else strings(planes), profile)


def prove(world: World, proof: Proof, *, against: World | None = None) -> ProofResult:
    """Prove a claim about everything that may ever come. `against` has the old objects of `noNew` and `noLoss`."""
    from tierwall.proofs.proof import Change
    from tierwall.proofs.proving import prove as prove_claim

    if isinstance(proof.claim, Change) and against is None:
        message = f"expected the world to compare with as `against`: `{proof.claim.word}` is about a change"
        raise InputError([Diagnostic("TW703", message)])
    old = None if against is None else against.snapshot
    return prove_claim(world.snapshot, proof, against=old, namespace=world.namespace)
