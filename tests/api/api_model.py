"""docs/semantics.md#api-plane, read off line by line and evaluated by brute force.

Whether an expression is true, false, an error or a residual in the first phase is found by evaluating it with the exact
evaluator under every completion of the few fields that the random policies use.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from tierwall.api.expression import ENVIRONMENT
from tierwall.cel.failure import Failure
from tierwall.cel.program import Program, compile

# Every value a field of the object may have in a completion; None: the field is missing.
FIELDS = {"a": (1, 2, 3, None), "b": (1, 2, None), "c": (1, 2, 3, None), "flag": (True, False, "text", None)}
NAMES = ("n", "m", None)
OPERATIONS = ("CREATE", "UPDATE")
T, F, E = "T", "F", "E"


class Policy(NamedTuple):
    """A policy of the model."""

    effect: str
    expression: str
    authorizer: str = "one"
    namespace: str = ""


class Authorizer(NamedTuple):
    """An authorizer of the model: `CEL`, or what it always says (`AlwaysAllow`, `AlwaysDeny`)."""

    type: str
    name: str
    mode: str = "Deny"


@lru_cache(maxsize=20_000)
def program(text: str) -> Program:
    return compile(text, ENVIRONMENT)


def value(policy: Policy, question: dict[str, Any], data: dict[str, Any]) -> str:
    """T, F or E of a policy with everything known."""
    if policy.namespace and question.get("namespace", "") != policy.namespace:
        return F
    keys = {"verb": "verb", "group": "apiGroup", "version": "apiVersion", "path": "path", "namespace": "namespace"}
    keys |= {"resource": "resource", "subresource": "subresource", "name": "name"}
    request: dict[str, Any] = {there: question.get(here, "") for here, there in keys.items()}
    request["userInfo"] = {
        "username": question.get("user", ""),
        "groups": question.get("groups", []),
        "uid": "",
        "extra": {},
    }
    if name_unknown(question):
        metadata = (data.get("object") or {}).get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        request["name"] = name if isinstance(name, str) else ""
    names = ("object", "oldObject", "options", "operation", "namespaceObject", "impersonatedRequest")
    variables = {"request": request, **{name: data.get(name) for name in names}}
    try:
        found = program(policy.expression).evaluate(variables)
    except Failure:
        return E
    return {True: T, False: F}[found] if isinstance(found, bool) else E


def name_unknown(question: dict[str, Any]) -> bool:
    return question.get("verb") == "create" and not question.get("name")


def completions(expression: str) -> Iterator[dict[str, Any]]:
    """Every completion of what the expression can look at."""
    used = [name for name in FIELDS if f"object.{name}" in expression]
    names = NAMES if "request.name" in expression else (None,)
    operations = OPERATIONS if "operation" in expression else (None,)
    for values in itertools.product(*(FIELDS[name] for name in used)):
        for name, operation in itertools.product(names, operations):
            thing: dict[str, Any] = {key: one for key, one in zip(used, values, strict=True) if one is not None}
            if name is not None:
                thing["metadata"] = {"name": name}
            yield {"object": thing, "operation": operation}
    yield {"object": None, "operation": None}


def outcomes(policy: Policy, question: dict[str, Any]) -> set[str]:
    """What the policy can come to in the second phase."""
    return {value(policy, question, data) for data in completions(policy.expression)}


class Answer(NamedTuple):
    """What an authorizer says in the first phase; counts are those of its conditions, None where they are free."""

    verdict: str
    error: bool = False
    allow: int | None = 0
    deny: int = 0
    no_opinion: int | None = 0


def authorizer_answer(authorizer: Authorizer, policies: list[Policy], question: dict[str, Any]) -> Answer:
    """The table `one CEL authorizer`, first line that fits."""
    if authorizer.type == "AlwaysAllow":
        return Answer("Allow")
    if authorizer.type == "AlwaysDeny":
        return Answer("NoOpinion")
    found: dict[tuple[str, str], int] = {}
    for policy in policies:
        if policy.authorizer != authorizer.name:
            continue
        can = outcomes(policy, question)
        kind = can.pop() if len(can) == 1 else "R"
        if kind == "R" and policy.effect == "Allow" and T not in can:
            continue
        found[policy.effect, kind] = found.get((policy.effect, kind), 0) + 1

    def n(effect: str, kind: str) -> int:
        return found.get((effect, kind), 0)

    answer = _table(authorizer, n)
    if answer.verdict == "Conditional" and not question.get("conditions", "HumanReadable"):
        return Answer("Deny" if answer.deny else "NoOpinion", answer.error)
    return answer


def _table(authorizer: Authorizer, n: Any) -> Answer:
    deny_left, allows = n("Deny", "R"), n("Allow", T) + n("Allow", "R")
    grants = n("Allow", "R") if not n("Allow", T) else 1 if n("Allow", T) == 1 else None
    if n("Deny", T):
        return Answer("Deny")
    if n("Deny", E) and authorizer.mode == "Deny":
        return Answer("Deny", error=True)
    if deny_left and ((n("Deny", E)) or n("NoOpinion", T) or n("NoOpinion", E)):
        return Answer("Conditional", deny=deny_left)
    if deny_left and allows:
        return Answer("Conditional", deny=deny_left, no_opinion=n("NoOpinion", "R"), allow=grants)
    if deny_left:
        return Answer("Conditional", deny=deny_left, no_opinion=None)
    if n("Deny", E):
        return Answer("NoOpinion", error=True)
    if n("NoOpinion", T) or n("NoOpinion", E):
        return Answer("NoOpinion", error=not n("NoOpinion", T) and bool(allows))
    if not allows:
        return Answer("NoOpinion")
    if n("Allow", T) and not n("NoOpinion", "R"):
        return Answer("Allow")
    return Answer("Conditional", no_opinion=n("NoOpinion", "R"), allow=grants)


def one_phase(
    authorizer: Authorizer, policies: list[Policy], question: dict[str, Any], data: dict[str, Any]
) -> tuple[str, bool]:
    """The answer of an authorizer that has the data at once, and whether it is an error."""
    if authorizer.type != "CEL":
        return ("Allow" if authorizer.type == "AlwaysAllow" else "NoOpinion"), False
    found = {(one.effect, value(one, question, data)) for one in policies if one.authorizer == authorizer.name}
    if ("Deny", T) in found:
        return "Deny", False
    if ("Deny", E) in found:
        return authorizer.mode, True
    if ("NoOpinion", T) in found:
        return "NoOpinion", False
    if ("NoOpinion", E) in found:
        return "NoOpinion", True
    return ("Allow" if ("Allow", T) in found else "NoOpinion"), False


class Expected(NamedTuple):
    """What the document must say; None: free."""

    verdict: str
    final: str | None
    called: list[str]
    sets: list[tuple[str, Answer]]


def expected(
    chain: list[Authorizer], policies: list[Policy], question: dict[str, Any], data: dict[str, Any] | None
) -> Expected:
    """Rules 7 to 16."""
    answers = [(one, authorizer_answer(one, policies, question)) for one in chain]
    verdict, called, stopped = "NoOpinion", [], len(chain)
    denies = False
    for index, (one, answer) in enumerate(answers):
        called.append(one.name)
        if answer.verdict == "NoOpinion":
            continue
        is_conditional_allow = answer.verdict == "Conditional" and answer.allow != 0
        if answer.verdict == "Conditional" and not is_conditional_allow:
            denies, verdict = True, "Conditional"
            continue
        is_conditional = is_conditional_allow or (denies and answer.verdict == "Allow")
        verdict = "Conditional" if is_conditional else answer.verdict
        stopped = index + 1
        break
    sets: list[tuple[str, Answer]] = []
    if verdict == "Conditional":
        for one, answer in answers:
            if answer.verdict != "NoOpinion":
                sets.append((one.name, answer))
            if answer.verdict in ("Allow", "Deny"):
                break
    if verdict != "Conditional":
        return Expected(verdict, verdict, called, sets)
    if data is None:
        final = None
        if not supported(question):
            final = "Deny" if any(one.deny or one.verdict == "Deny" for _, one in sets) else "NoOpinion"
        return Expected(verdict, final, called, sets)
    for index, one in enumerate(chain):
        if index >= stopped:
            called.append(one.name)
        said, _ = one_phase(one, policies, question, data)
        if said != "NoOpinion":
            return Expected(verdict, said, called, sets)
    return Expected(verdict, "NoOpinion", called, sets)


def supported(question: dict[str, Any]) -> bool:
    """Rule 17."""
    if question.get("path") or any("*" in question.get(key, "") for key in ("group", "version", "resource")):
        return False
    if question.get("verb") in ("create", "update", "patch", "delete", "deletecollection"):
        return True
    connect = {"pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy", "nodes/proxy"}
    what = f"{question.get('resource')}/{question.get('subresource')}"
    return question.get("verb") in ("get", "create") and what in connect
