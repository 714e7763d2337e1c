"""The results of proofs (docs/prove.md#results): Proved, Refuted with a counterexample, or Unknown with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import Struct

from tierwall.core.answer import Answer, Omission
from tierwall.core.question import Question


class ProofStatus(StrEnum):
    """The word for a result."""

    PROVED = "Proved"
    REFUTED = "Refuted"
    UNKNOWN = "Unknown"


class Counterexample(Struct, frozen=True):
    """A question that refutes a claim: with these objects added, it has this answer.

    `objects` do not exist yet. Of a change, `answer` is that of the new objects and `before` that of the old ones.
    """

    objects: tuple[Mapping[str, Any], ...]
    question: Question
    answer: Answer
    before: Answer | None = None


class ProofResult(Struct, frozen=True, kw_only=True):
    """The result of a proof. `bool(result)` raises: Unknown is neither true nor false."""

    proof: ProofStatus
    sentence: str
    counterexample: Counterexample | None = None
    # Why nothing is known: a construct and its place, or a limit.
    why: str = ""
    # What `assume` said, in its YAML form.
    assume: Mapping[str, Any] = {}
    not_considered: tuple[Omission, ...] = ()
    # Whether a counterexample was found that the decision does not confirm: a defect of the prover.
    is_defect: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the document that `tierwall test -o json` has as `got`."""
        from tierwall.render.proofs import result_document

        return result_document(self)

    def __bool__(self) -> bool:
        raise TypeError("a result of a proof is not a truth value: compare `result.proof` with Proved")


class NoCounterexample(Struct, frozen=True):
    """A plane found that nothing that may come refutes the claim; where it is vacuous, because its region is empty."""

    is_vacuous: bool = False


class RefutationCandidate(Struct, frozen=True):
    """A plane found objects and a question that refute the claim. They count once the decision confirms them.

    `objects` are put over the (new) objects; `old_objects` over the old ones of a change. `note` is a sentence about
    the counterexample that its readers should know.
    """

    objects: tuple[Mapping[str, Any], ...]
    question: Question
    old_objects: tuple[Mapping[str, Any], ...] = ()
    note: str = ""
    # Expressions without a translation on which it hangs: if the decision does not confirm it, nobody knows.
    hangs_on: str = ""


# The short name that planes use.
Candidate: TypeAlias = RefutationCandidate


class Unsolved(Struct, frozen=True):
    """A plane cannot tell: the construct that it does not know and where it stands, or the limit."""

    why: str


PlaneFinding: TypeAlias = NoCounterexample | RefutationCandidate | Unsolved
