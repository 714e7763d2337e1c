"""The answer that every plane gives (docs/reference/decision-document.md).

An `Answer` is a value: the verdict, the deciders, the steps in order, one sentence, and what was not considered.
`detail` has the fields of one plane. Verdicts and reasons are data; `render` puts them into words. `Step.at` looks its
position up on demand, so an answer that is not shown does not pay for positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from tierwall.core.reference import Reference
from tierwall.core.source import Origin, Path, Position
from tierwall.core.unprintable import escape_unprintable
from tierwall.core.verdict import StepVerdict, Verdict


class Reason(StrEnum):
    """The reason of a step's verdict; stable words that scripts may compare."""

    # On every plane.
    RULE_MATCHED = "RuleMatched"
    NO_RULE_MATCHED = "NoRuleMatched"
    NO_POLICY = "NoPolicy"
    FAILS_CLOSED = "FailsClosed"
    # Network.
    ISOLATED = "Isolated"
    DOMAIN_MAY_MATCH = "DomainMayMatch"
    NOT_UNDER_POLICY = "NotUnderPolicy"
    SAME_POD = "SamePod"
    POD_ENDED = "PodEnded"
    # Tool.
    NOT_SELECTED = "NotSelected"
    AUTHORIZER_ALLOWED = "AuthorizerAllowed"
    AUTHORIZER_DENIED = "AuthorizerDenied"
    AUTHORIZER_UNREACHABLE = "AuthorizerUnreachable"
    NOT_READ_AS_MCP = "NotReadAsMcp"
    # Gateway.
    SETS_FIELD = "SetsField"
    JOINS_UNION = "JoinsUnion"
    LESS_SPECIFIC = "LessSpecific"
    LOSES_TIE = "LosesTie"
    LOCKED_BY_OVERRIDE = "LockedByOverride"
    LEAST_SPECIFIC_KEPT = "LeastSpecificKept"
    NO_ENTRY_SELECTED = "NoEntrySelected"
    # API.
    EXPRESSION_TRUE = "ExpressionTrue"
    EXPRESSION_FALSE = "ExpressionFalse"
    EXPRESSION_FAILED = "ExpressionFailed"
    NEEDS_OBJECT = "NeedsObject"
    SELECTORS_SUFFICE = "SelectorsSuffice"
    SELECTORS_SHOW_MORE = "SelectorsShowMore"
    GRANTED_BY_BINDING = "GrantedByBinding"
    GRANTED_TO_NODES = "GrantedToNodes"
    AUTHORIZER_SILENT = "AuthorizerSilent"
    # Admission.
    OBJECT_REFUSED = "ObjectRefused"


class Decider(msgspec.Struct, frozen=True, order=True):
    """A policy and its rule that settled a question. `policy` is a string for authorizers and for `Default`."""

    policy: Reference | str
    rule: str | None = None
    # The rule's own name, if it has one.
    name: str | None = None

    @property
    def short(self) -> str:
        """The form for sentences: without the rule if the policy decides as a whole."""
        return str(self.policy) if self.rule == "spec" and not self.name else str(self)

    def __str__(self) -> str:
        return format_decider(self.policy, self.rule, self.name)


# The decider if no policy decided.
DEFAULT = Decider("Default")


def format_decider(policy: Reference | str, rule: str | None, name: str | None) -> str:
    """Format a decider: `AdminNetworkPolicy/guard egress[0] (deny-finance)`."""
    place = f"{policy} {rule}" if rule else str(policy)
    return f"{place} ({escape_unprintable(name)})" if name else place


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One policy, or the absence of any, that a question met on its way."""

    tier: str
    verdict: StepVerdict
    reason: Reason
    direction: str | None = None
    policy: Reference | None = None
    rule: str | None = None
    name: str | None = None
    note: str | None = None
    # The object that finds the position, and the path inside it.
    origin: Origin | None = None
    path: Path = ()

    @property
    def at(self) -> Position | None:
        """The position of the rule, or None if it was not written in a file."""
        return self.origin.position(self.path) if self.origin is not None else None

    def __str__(self) -> str:
        return format_decider(self.policy, self.rule, self.name) if self.policy is not None else self.tier


class Omission(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could have changed the answer but was not considered."""

    reason: str
    count: int
    effect: str
    kind: str | None = None
    group: str | None = None
    owner: str | None = None
    examples: tuple[Reference, ...] = ()
    at: Position | None = None
    form: str | None = None
    namespaces: tuple[str, ...] = ()
    # Why a kind could not be read; text shows it in place of the effect.
    why: str = ""

    @property
    def is_harmless(self) -> bool:
        """Whether it is only said: documents that are not objects, and pods for which those of a file stand in."""
        return self.reason in ("unread", "replaced")

    def __str__(self) -> str:
        """Say in one line what was left out, what it may mean, and where the first of it stands."""
        kind = self.kind or self.form or self.reason
        if self.why:
            name = plural(self.kind) if self.kind else f"all of {self.group}"
            # Several systems have NetworkPolicies.
            is_named = self.owner and self.owner[0].isupper() and self.owner not in name
            return f"{name}{f' of {self.owner}' if is_named else ''} ({self.why})"
        stays = self.count == 1 or (self.form is not None and kind.endswith("s"))
        owner = self.owner or ""
        effect = f"{owner[:1].upper()}{owner[1:]} may decide otherwise" if self.reason == "foreign" else self.effect
        first = f", first {self.at.without_column}" if self.at is not None else ""
        return f"{self.count} {kind if stays else plural(kind)} ({effect}){first}"


def plural(kind: str) -> str:
    """Return the plural of a kind or form: NetworkPolicies, Ingresses, Pods."""
    if kind.endswith("y") and kind[-2:-1] not in "aeiou":
        return f"{kind[:-1]}ies"
    if kind.endswith("ss"):
        return f"{kind}es"
    return kind if kind.endswith("s") else f"{kind}s"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question. `verdict` is None on the gateway plane, which answers with settings.

    A hop of a path may be `StepVerdict.NOT_APPLICABLE`; every other verdict is a `Verdict`.
    """

    plane: str
    verdict: Verdict | StepVerdict | None
    sentence: str
    decided_by: tuple[Decider, ...]
    steps: tuple[Step, ...]
    # The fields of one plane: `NetworkDetail`, `ToolDetail`, `GatewayDetail`, `ApiDetail` or `PathDetail`.
    detail: Any = None
    not_considered: tuple[Omission, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the document that `tierwall explain … -o json` prints."""
        from tierwall.render.json import answer_document

        return answer_document(self)

    def __bool__(self) -> bool:
        raise TypeError("an answer is not a truth value: compare `answer.verdict` with a Verdict")


def unique_deciders(candidates: Iterable[Decider]) -> tuple[Decider, ...]:
    """Drop repeated deciders; return `Default` if there are no deciders."""
    return tuple(dict.fromkeys(candidates)) or (DEFAULT,)
