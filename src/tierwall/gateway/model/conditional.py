"""Conditional entries: the first whose condition is true for the request (docs/semantics.md#conditional-fields).

docs selects before it merges: a list that selects nothing sets nothing. agentgateway merges whole lists first: a list
that selects nothing leaves the field unset, and nothing less specific steps in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple, assert_never

from tierwall.cel import Environment, Failure, ParseError, Program
from tierwall.cel.evaluate.program import compile
from tierwall.gateway.model.fields import Written
from tierwall.gateway.model.profile import Profile

_ENVIRONMENT = Environment(extensions=True)
# agentgateway: an empty map cannot clear an inherited one.
_EMPTY_IS_UNSET = frozenset(("backend.ai.modelAliases", "backend.ai.routes"))


class Nothing(Enum):
    """What a list that selects no entry gives under agentgateway."""

    SELECTED = "nothing selected"


NOTHING: Final = Nothing.SELECTED


class Choice(NamedTuple):
    """The value that an object gives for a request, and which entry of a list it is (None: it is not a list)."""

    value: Any
    entry: int | None = None


class FactError(ValueError):
    """Facts that cannot be variables; each message is about one of them."""

    def __init__(self, messages: Iterable[str]) -> None:
        self.messages = tuple(messages)
        super().__init__("; ".join(self.messages))


class Facts:
    """The facts of a request as CEL variables: `{"request.path": "/x"}` gives `request` with the field `path`."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._variables = _nested(given or {})
        # Threads that come first at the same time find out the same.
        self._known: dict[str, bool] = {}

    def hold(self, condition: str) -> bool:
        """Whether a condition is true; one that cannot be parsed or evaluated, or is not a boolean, is not."""
        known = self._known.get(condition)
        if known is None:
            program = _program(condition)
            known = self._known[condition] = program is not None and self._true(program)
        return known

    def _true(self, program: Program) -> bool:
        try:
            return program.evaluate(self._variables) is True
        except Failure:
            return False


@lru_cache(maxsize=4096)
def _program(condition: str) -> Program | None:
    try:
        return compile(condition, _ENVIRONMENT)
    except ParseError:
        return None


def _nested(given: Mapping[Any, Any]) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    problems: list[str] = []
    for name in sorted(given, key=str):  # shorter names first, so that `request` is there before `request.path`
        parts = name.split(".") if isinstance(name, str) else [""]
        if not all(parts):
            problems.append(f"expected a variable such as `request.path` as name of a fact, found `{name}`")
            continue
        *outer, last = parts
        inside = variables
        for part in outer:
            inner = inside.setdefault(part, {})
            if not isinstance(inner, dict):
                problems.append(f"fact `{name}` is inside `{part}`, which is not a map")
                break
            inside = inner
        else:
            # Values that are written are never changed: maps are copied before more is put into them.
            try:
                inside[last] = _copied(given[name])
            except RecursionError:
                problems.append(f"fact `{name}` is nested too deeply")
    if problems:
        raise FactError(problems)
    return variables


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def choose(written: Written, facts: Facts, profile: Profile) -> Choice | None:
    """What an object gives for a field; None where it sets nothing under this profile."""
    match profile:
        case "docs":
            return Choice(written.value) if written.entries is None else _of_all(written, written.entries, facts)
        case "agentgateway":
            if written.entries is not None:
                return _of_the_part(written, written.entries, facts)
            unset = written.field.path in _EMPTY_IS_UNSET and not written.value
            return None if unset else Choice(written.value)
        case _:
            assert_never(profile)


def _of_all(written: Written, entries: Iterable[Mapping[str, Any]], facts: Facts) -> Choice | None:
    """One entry is selected, and it gives every part of the property that it has."""
    selected = _first(enumerate(entries), facts)
    if selected is None:
        return None
    number, policy = selected
    part = written.field.part
    value = policy.get(part) if part and isinstance(policy, dict) else policy
    return Choice(value, number) if value is not None else None


def _of_the_part(written: Written, entries: Iterable[Mapping[str, Any]], facts: Facts) -> Choice | None:
    """A part of a property has a list of its own, of the entries that have the part."""
    part = written.field.part
    having = [(number, entry) for number, entry in enumerate(entries) if not part or _part(entry, part)]
    if not having:
        return None
    selected = _first(having, facts)
    if selected is None:
        return Choice(NOTHING)
    number, policy = selected
    return Choice(policy[part] if part and isinstance(policy, dict) else policy, number)


def _part(entry: Mapping[str, Any], part: str) -> Any:
    policy = entry.get("policy")
    return policy.get(part) if isinstance(policy, dict) else None


def _first(entries: Iterable[tuple[int, Mapping[str, Any]]], facts: Facts) -> tuple[int, Any] | None:
    """The number and the policy of the first entry whose condition is true."""
    for number, entry in entries:
        condition = entry.get("condition")
        if condition is None or (isinstance(condition, str) and facts.hold(condition)):
            return number, entry.get("policy")
    return None
