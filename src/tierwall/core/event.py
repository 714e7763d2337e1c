"""One form for what engines report of their own decisions (docs/enforce-network.md#audit, docs/run.md).

An `Answer` says how a question would be decided; an `Event` says what an engine did. `render` writes it down, for the
audit trail and the decision log.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tierwall.core.answer import Decider
from tierwall.core.verdict import StepVerdict


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that an engine made, and who made it so."""

    plane: str
    time: datetime
    verdict: StepVerdict
    decided_by: tuple[Decider, ...]
    # Only a policy in shadow mode says so, and nothing was done.
    shadow: bool = False
    # What only this plane has.
    detail: Any = None
