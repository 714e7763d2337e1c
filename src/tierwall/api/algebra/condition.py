"""One condition: a pure function from the data of the second phase to a bool, and what its being true means.

KEP-5681, "Condition and ConditionSet data model". Ids and types are label keys, the text is at most 1,024 bytes; a
condition that breaks a rule is never dropped: the whole set falls to its failure mode (`condition_set.conditional`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import assert_never

import msgspec

from tierwall.core.answer import Reason, Step
from tierwall.core.reference import Reference
from tierwall.core.source import Origin, Path
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.values import names

MAX_CONDITION_BYTES = 1024

# The CEL environment of ValidatingAdmissionPolicy plus `authorizer`; evaluated by the API server itself where it can.
CEL_TYPE = "k8s.io/authorization-cel"
# The same language, deflated and in base 85, for texts over the limit. Only the authorizer that wrote it can read it.
PACKED_CEL_TYPE = "tierwall.io/authorization-cel-packed"
CEL_TYPES = frozenset((CEL_TYPE, PACKED_CEL_TYPE))
NODE_TYPE = "k8s.io/node-authorizer"

# Where the expression of a policy stands.
EXPRESSION: Path = ("spec", "expression")

# What Kubernetes itself has put under its reserved prefix so far; later CEL generations carry a version.
_KUBERNETES_TYPE = re.compile(r"k8s\.io/(?:(?:authorization-)?cel(?:-v[0-9]+)?|node-authorizer)", re.ASCII)


class Effect(StrEnum):
    """How a condition that is true is treated: each effect beats those listed after it."""

    DENY = "Deny"
    NO_OPINION = "NoOpinion"
    ALLOW = "Allow"

    @property
    def if_true(self) -> StepVerdict:
        """What a condition of this effect says when it is true."""
        return _IF_TRUE[self]

    def if_failed(self, failure_mode: FailureMode) -> StepVerdict:
        """What a condition of this effect says when it fails; an Allow that fails is passed over."""
        match self:
            case Effect.DENY:
                return StepVerdict(failure_mode)
            case Effect.NO_OPINION:
                return StepVerdict.NO_OPINION
            case Effect.ALLOW:
                return StepVerdict.NO_MATCH
            case _:
                assert_never(self)


_IF_TRUE = {effect: StepVerdict(effect) for effect in Effect}


class FailureMode(StrEnum):
    """What an authorizer answers if a Deny condition fails, or its set breaks a rule."""

    DENY = "Deny"
    NO_OPINION = "NoOpinion"

    @property
    def verdict(self) -> Verdict:
        """The answer that this mode stands for."""
        return Verdict(self)


# INVARIANT: `gc=False` here and on policies holds because none of these takes part in a reference cycle.
class Source(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The policy a condition came from. No part of the condition: it never travels and plays no part in evaluation."""

    policy: Reference
    origin: Origin | None = None


class Condition(msgspec.Struct, frozen=True, gc=False):
    """A condition as an authorizer returns it; `text` means whatever `type` says, and is never code."""

    id: str
    effect: Effect
    text: str
    type: str = CEL_TYPE
    description: str = ""
    source: Source | None = None

    def step(self, authorizer: str, verdict: StepVerdict, reason: Reason, note: str = "") -> Step:
        """What this condition said; one that came back without its policy is named by its id."""
        note_or_none = note or None
        if self.source is None:
            return Step(tier=authorizer, verdict=verdict, reason=reason, name=self.id, note=note_or_none)
        return Step(
            tier=authorizer,
            verdict=verdict,
            reason=reason,
            policy=self.source.policy,
            rule="spec",
            note=note_or_none,
            origin=self.source.origin,
            path=EXPRESSION,
        )

    def problems(self) -> Iterator[str]:
        """What is wrong with this condition by itself."""
        if (why := label_key_problem(self.id)) is not None:
            yield f"condition id `{_short(self.id)}` {why}"
        elif self.id.startswith("k8s.io/"):
            yield f"condition id `{self.id}` uses the reserved prefix `k8s.io/`"
        if self.type in CEL_TYPES:
            pass
        elif (why := label_key_problem(self.type)) is not None:
            yield f"type `{_short(self.type)}` of condition `{_short(self.id)}` {why}"
        elif self.type.startswith("k8s.io/") and not _KUBERNETES_TYPE.fullmatch(self.type):
            yield f"type `{self.type}` of condition `{_short(self.id)}` is reserved to Kubernetes"
        if (size := len(self.text.encode("utf-8", "surrogatepass"))) > MAX_CONDITION_BYTES:
            yield f"condition `{_short(self.id)}` has {size:,} bytes, at most {MAX_CONDITION_BYTES:,} are allowed"


def label_key_problem(key: str) -> str | None:
    """Why `key` is not a label key (`[prefix/]name`), or None if it is one."""
    prefix, slash, name = key.rpartition("/")
    if slash and names.dns_subdomain(prefix):
        return "has a prefix that is not a DNS subdomain"
    if names.label_key(name):
        return "is not a label key: expected at most 63 of `-A-Za-z0-9_.`, a letter or digit first and last"
    return None


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
