"""A reference model of the api plane: docs/semantics.md#api-plane line by line, evaluated by brute force.

The exact evaluator tells whether an expression is true, false, an error or a residual in the first phase, with every
completion of the few fields that the random policies use. Names are those of `tierwall.api`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from tierwall.api.authorizers.expression import ENVIRONMENT
from tierwall.cel.errors import Failure
from tierwall.cel.evaluate.program import Program, compile

Question = dict[str, Any]
Data = dict[str, Any]

# Every value that a field of the object may have in a completion; None is a missing field.
FIELDS = {"a": (1, 2, 3, None), "b": (1, 2, None), "c": (1, 2, 3, None), "flag": (True, False, "text", None)}
NAMES = ("n", "m", None)
OPERATIONS = ("CREATE", "UPDATE")
UNKNOWN = ("object", "oldObject", "options", "operation", "namespaceObject", "impersonatedRequest")
# The outcomes of a policy: true, false, an error, or a residual.
T, F, E, R = "T", "F", "E", "R"


class Policy(NamedTuple):
    """An AuthorizationPolicy, or a ClusterAuthorizationPolicy without a namespace."""

    effect: str
    expression: str
    authorizer: str = "one"
    namespace: str = ""


class Member(NamedTuple):
    """An authorizer of the chain: `CEL`, `AlwaysAllow` or `AlwaysDeny`."""

    type: str
    name: str
    failure_mode: str = "Deny"


class Decision(NamedTuple):
    """The first phase of an authorizer, and how many conditions it has by effect; None if any number is right."""

    verdict: str
    error: bool = False
    allow: int | None = 0
    deny: int = 0
    no_opinion: int | None = 0

    @property
    def can_become_allowed(self) -> bool:
        """Whether it is Allow, or Conditional with an Allow condition."""
        return self.verdict == "Allow" or (self.verdict == "Conditional" and self.allow != 0)


class TwoPhaseDecision(NamedTuple):
    """The decision of a chain. `final` is None if any is right, or if it depends on data that is not given."""

    verdict: str
    final: str | None
    called: list[str]
    # Every authorizer's answer up to the first Allow or Deny, where the verdict is Conditional.
    entries: list[tuple[str, Decision]]


# One expression -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=20_000)
def program(text: str) -> Program:
    return compile(text, ENVIRONMENT)


def outcome(policy: Policy, question: Question, data: Data) -> str:
    """Return T, F or E for a policy with everything known."""
    if policy.namespace and question.get("namespace", "") != policy.namespace:
        return F
    variables = {"request": request(question, data), **{name: data.get(name) for name in UNKNOWN}}
    try:
        value = program(policy.expression).evaluate(variables)
    except Failure:
        return E
    return {True: T, False: F}[value] if isinstance(value, bool) else E


def request(question: Question, data: Data) -> dict[str, Any]:
    """Return the variable `request`; a missing attribute is empty."""
    keys = {"verb": "verb", "group": "apiGroup", "version": "apiVersion", "path": "path", "namespace": "namespace"}
    keys |= {"resource": "resource", "subresource": "subresource", "name": "name"}
    known: dict[str, Any] = {there: question.get(here, "") for here, there in keys.items()}
    groups = question.get("groups", [])
    known["userInfo"] = {"username": question.get("user", ""), "groups": groups, "uid": "", "extra": {}}
    if is_name_unknown(question):
        metadata = (data.get("object") or {}).get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        known["name"] = name if isinstance(name, str) else ""
    return known


def is_name_unknown(question: Question) -> bool:
    return question.get("verb") == "create" and not question.get("name")


def completions(expression: str) -> Iterator[Data]:
    """Yield every completion of the fields that the expression reads."""
    fields = [name for name in FIELDS if f"object.{name}" in expression]
    names = NAMES if "request.name" in expression else (None,)
    operations = OPERATIONS if "operation" in expression else (None,)
    for values in itertools.product(*(FIELDS[field] for field in fields)):
        for name, operation in itertools.product(names, operations):
            completed: dict[str, Any] = {
                field: value for field, value in zip(fields, values, strict=True) if value is not None
            }
            if name is not None:
                completed["metadata"] = {"name": name}
            yield {"object": completed, "operation": operation}
    yield {"object": None, "operation": None}


def first_outcome(policy: Policy, question: Question) -> str:
    """Return T, F, E or R for a policy in the first phase; an Allow that cannot become true is F."""
    possible = {outcome(policy, question, data) for data in completions(policy.expression)}
    if len(possible) == 1:
        return possible.pop()
    return F if policy.effect == "Allow" and T not in possible else R


def is_open(policy: Policy, question: Question) -> bool:
    """Whether a policy that fails for every object may count as failing now or as a residual that can only fail.

    `request.nope == "x"` fails now. `object.a == 1 && request.nope == "x" || request.nope == "x"` fails too, whatever
    the object is, but it reads the object (docs/semantics.md#allow-conditions-that-cannot-hold-are-dropped).
    """
    completed = list(completions(policy.expression))
    reads_unknown = len(completed) > 2
    return reads_unknown and policy.effect != "Allow" and {outcome(policy, question, data) for data in completed} == {E}


# One authorizer -------------------------------------------------------------------------------------------------------


def authorize(member: Member, policies: list[Policy], question: Question) -> Decision:
    """Decide the first phase of one authorizer, folded for a client that does not understand conditions."""
    if member.type == "AlwaysAllow":
        return Decision("Allow")
    if member.type == "AlwaysDeny":
        return Decision("NoOpinion")
    outcomes = [
        (policy.effect, first_outcome(policy, question)) for policy in policies if policy.authorizer == member.name
    ]
    decision = settle(member, lambda effect, kind: outcomes.count((effect, kind)))
    if decision.verdict == "Conditional" and not question.get("conditions", "HumanReadable"):
        return Decision("Deny" if decision.deny else "NoOpinion", decision.error)
    return decision


def settle(member: Member, n: Callable[[str, str], int]) -> Decision:
    """Return the first line that applies of docs/semantics.md#what-one-cel-authorizer-answers."""
    deny_left, allows = n("Deny", R), n("Allow", T) + n("Allow", R)
    grants = n("Allow", R) if not n("Allow", T) else 1 if n("Allow", T) == 1 else None
    if n("Deny", T):
        return Decision("Deny")
    if n("Deny", E) and member.failure_mode == "Deny":
        return Decision("Deny", error=True)
    if deny_left and (n("Deny", E) or n("NoOpinion", T) or n("NoOpinion", E)):
        return Decision("Conditional", deny=deny_left)
    if deny_left and allows:
        return Decision("Conditional", deny=deny_left, no_opinion=n("NoOpinion", R), allow=grants)
    if deny_left:
        return Decision("Conditional", deny=deny_left, no_opinion=None)
    if n("Deny", E):
        return Decision("NoOpinion", error=True)
    if n("NoOpinion", T) or n("NoOpinion", E):
        return Decision("NoOpinion", error=not n("NoOpinion", T) and bool(allows))
    if not allows:
        return Decision("NoOpinion")
    if n("Allow", T) and not n("NoOpinion", R):
        return Decision("Allow")
    return Decision("Conditional", no_opinion=n("NoOpinion", R), allow=grants)


def evaluate(member: Member, policies: list[Policy], question: Question, data: Data) -> tuple[str, bool]:
    """Return the verdict of an authorizer that has the data from the start, and whether it is an error."""
    if member.type != "CEL":
        return ("Allow" if member.type == "AlwaysAllow" else "NoOpinion"), False
    outcomes = {
        (policy.effect, outcome(policy, question, data)) for policy in policies if policy.authorizer == member.name
    }
    if ("Deny", T) in outcomes:
        return "Deny", False
    if ("Deny", E) in outcomes:
        return member.failure_mode, True
    if ("NoOpinion", T) in outcomes:
        return "NoOpinion", False
    if ("NoOpinion", E) in outcomes:
        return "NoOpinion", True
    return ("Allow" if ("Allow", T) in outcomes else "NoOpinion"), False


# The chain ------------------------------------------------------------------------------------------------------------


def decide(chain: list[Member], policies: list[Policy], question: Question, data: Data | None) -> TwoPhaseDecision:
    """Decide both phases: docs/semantics.md#how-a-chain-is-walked to docs/semantics.md#the-final-decision."""
    opinions = [(member.name, authorize(member, policies, question)) for member in chain]
    verdict, asked = first_phase([decision for _, decision in opinions])
    called = [member.name for member in chain[:asked]]
    if verdict != "Conditional":
        return TwoPhaseDecision(verdict, verdict, called, [])
    entries = shown(opinions)
    if data is None and question.get("verb") in ("list", "watch") and not question.get("path"):
        # docs/semantics.md#conditional-reads: without selectors, it is refused.
        refused = "Deny" if any(decision.deny or decision.verdict == "Deny" for _, decision in entries) else "NoOpinion"
        return TwoPhaseDecision(refused, refused, called, entries)
    if data is None:
        denies = any(decision.deny or decision.verdict == "Deny" for _, decision in entries)
        final = None if supports_conditions(question) else "Deny" if denies else "NoOpinion"
        return TwoPhaseDecision(verdict, final, called, entries)
    for number, member in enumerate(chain):
        if number >= asked:
            called.append(member.name)
        final, _ = evaluate(member, policies, question, data)
        if final != "NoOpinion":
            return TwoPhaseDecision(verdict, final, called, entries)
    return TwoPhaseDecision(verdict, "NoOpinion", called, entries)


def first_phase(decisions: list[Decision]) -> tuple[str, int]:
    """Return the verdict, and how many authorizers are asked for it."""
    remembered = False
    for number, decision in enumerate(decisions, 1):
        if decision.verdict == "NoOpinion":
            continue
        if decision.verdict == "Conditional" and decision.can_become_allowed:
            return "Conditional", number
        if decision.verdict == "Conditional":
            remembered = True
            continue
        return ("Conditional" if remembered and decision.verdict == "Allow" else decision.verdict), number
    return ("Conditional" if remembered else "NoOpinion"), len(decisions)


def shown(opinions: list[tuple[str, Decision]]) -> list[tuple[str, Decision]]:
    """Return the opinions that an answer shows: docs/semantics.md#condition-sets-of-an-answer."""
    entries = []
    for name, decision in opinions:
        if decision.verdict != "NoOpinion":
            entries.append((name, decision))
        if decision.verdict in ("Allow", "Deny"):
            break
    return entries


def supports_conditions(question: Question) -> bool:
    """Whether conditions can be enforced: docs/semantics.md#which-requests-support-conditions."""
    if question.get("path") or any("*" in question.get(key, "") for key in ("group", "version", "resource")):
        return False
    if question.get("verb") in ("create", "update", "patch", "delete", "deletecollection"):
        return True
    connect = {"pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy", "nodes/proxy"}
    what = f"{question.get('resource')}/{question.get('subresource')}"
    return question.get("verb") in ("get", "create") and what in connect
