"""The two readings of the precedence, the two phases of a request, and where Override counts in them.

`docs` is the precedence that agentgateway publishes; `agentgateway` is what its data plane does
(docs/gateway.md#two-profiles).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Profile: TypeAlias = Literal["docs", "agentgateway"]
PROFILES: tuple[Profile, ...] = ("docs", "agentgateway")

Phase: TypeAlias = Literal["PostRouting", "PreRouting"]
PHASES: tuple[Phase, ...] = ("PostRouting", "PreRouting")

Section: TypeAlias = Literal["frontend", "traffic", "backend"]


# The fields that go to the least specific level (docs/semantics.md#oddities-of-the-agentgateway-profile): the data
# plane fills them only while they are unset, going up.
LEAST_SPECIFIC_WINS: Mapping[Profile, frozenset[str]] = {
    "docs": frozenset(),
    "agentgateway": frozenset(("traffic.buffer",)),
}


def override_locks(section: Section, profile: Profile, phase: Phase) -> bool:
    """Whether Override keeps more specific levels from the fields of a section.

    docs/semantics.md#override-locks-a-field. The strategy is the traffic section's alone, and the data plane does not
    look at it before routing.
    """
    return section == "traffic" and (profile == "docs" or phase != "PreRouting")
