"""The two readings of the precedence, the two phases of a request, and where Override counts in them.

`docs` is the precedence that agentgateway publishes; `agentgateway` is what its data plane does
(docs/gateway.md#two-profiles).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

Profile: TypeAlias = Literal["docs", "agentgateway"]
PROFILES: tuple[Profile, ...] = ("docs", "agentgateway")

Phase: TypeAlias = Literal["PostRouting", "PreRouting"]
PHASES: tuple[Phase, ...] = ("PostRouting", "PreRouting")

Section: TypeAlias = Literal["frontend", "traffic", "backend"]


def override_locks(section: Section, profile: Profile, phase: Phase) -> bool:
    """Whether Override keeps more specific levels from the fields of a section.

    docs/semantics.md#override-locks-a-field. The strategy is the traffic section's alone.
    """
    match section:
        case "traffic":
            return _locks_traffic(profile, phase)
        case "frontend" | "backend":
            return False
        case _:
            assert_never(section)


def _locks_traffic(profile: Profile, phase: Phase) -> bool:
    match profile:
        case "docs":
            return True
        case "agentgateway":
            return phase != "PreRouting"
        case _:
            assert_never(profile)


def least_specific_wins(profile: Profile) -> frozenset[str]:
    """The fields that go to the least specific level (docs/semantics.md#oddities-of-the-agentgateway-profile).

    The data plane fills them only while they are unset, going up.
    """
    match profile:
        case "docs":
            return frozenset()
        case "agentgateway":
            return frozenset(("traffic.buffer",))
        case _:
            assert_never(profile)
