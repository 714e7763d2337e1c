"""The ordered trace of a decision: what was looked at, in which order, and what it said (docs/concepts.md).

A step names its policy and rule and can say where they were written. Positions are looked up only when the step is
shown, so a decision that nobody reads costs nothing for them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tierwall.core.reference import Reference
from tierwall.core.source import Origin, Path, Position


class Step(msgspec.Struct, frozen=True):
    """One policy (or the absence of one) that a question met on its way."""

    tier: str
    outcome: str
    policy: Reference | None = None
    rule: str = ""
    note: str = ""
    origin: Origin | None = None
    path: Path = ()

    @property
    def position(self) -> Position | None:
        """Where the rule was written, if it was."""
        return self.origin.position(self.path) if self.origin is not None else None

    def document(self) -> dict[str, Any]:
        """This step as the decision document shows it; what is empty is left out."""
        out: dict[str, Any] = {"tier": self.tier, "outcome": self.outcome}
        if self.policy is not None:
            out["policy"] = str(self.policy)
        if self.rule:
            out["rule"] = self.rule
        if self.note:
            out["note"] = self.note
        if (position := self.position) is not None:
            out["source"] = {"file": position.file, "line": position.line, "column": position.column}
        return out


class Settled(msgspec.Struct, frozen=True, order=True):
    """A policy and the rule of it that settled a question, as `decidedBy` names it; no policy is `Default`."""

    policy: str
    rule: str = ""

    def document(self) -> dict[str, str]:
        """This entry as the decision document shows it."""
        return {"policy": self.policy, "rule": self.rule} if self.rule else {"policy": self.policy}

    def __str__(self) -> str:
        return f"{self.policy} {self.rule}" if self.rule else self.policy


DEFAULT = Settled("Default")
