"""Conditional entries: the first whose condition is true for the request (docs/semantics.md#conditional-fields).

docs selects before it merges: a list that selects nothing sets nothing. agentgateway merges whole lists first: a list
that selects nothing leaves the field unset, and nothing less specific steps in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tierwall.cel import Environment, Failure, ParseError, Program
from tierwall.cel.program import compile
from tierwall.gateway.fields import Setting

Profile: TypeAlias = Literal["docs", "agentgateway"]
PROFILES: tuple[Profile, ...] = ("docs", "agentgateway")

_ENVIRONMENT = Environment(extensions=True)
# agentgateway: an empty map cannot clear an inherited one.
_EMPTY_IS_UNSET = frozenset(("backend.ai.modelAliases", "backend.ai.routes"))


class Nothing(Enum):
    """What a list that selects no entry gives under agentgateway."""

    SELECTED = "nothing selected"


NOTHING: Final = Nothing.SELECTED


class Choice(NamedTuple):
    """The value that a setting gives for a request, and which entry of a list it is (None: it is no list)."""

    value: Any
    entry: int | None = None


class FactError(ValueError):
    """Facts that cannot be variables; the message says which."""


class Facts:
    """The facts of a request as CEL variables: `{"request.path": "/x"}` gives `request` with the field `path`."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._variables = _nested(given or {})
        # Threads that come first at the same time find out the same.
        self._known: dict[str, bool] = {}

    def hold(self, condition: str) -> bool:
        """Whether a condition is true; one that cannot be parsed or evaluated, or is no boolean, is not."""
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


def _nested(given: Mapping[str, Any]) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    for name in sorted(given):  # shorter names first, so that `request` is there before `request.path`
        *outer, last = name.split(".")
        inside = variables
        for part in outer:
            found = inside.setdefault(part, {})
            if not isinstance(found, dict):
                raise FactError(f"`{name}` is inside `{part}`, which is no map")
            inside = found
        if not all((*outer, last)):
            raise FactError(f"expected a variable such as `request.path`, found `{name}`")
        # Values that are written are never changed: maps are copied before more is put into them.
        inside[last] = _copied(given[name])
    return variables


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def choose(setting: Setting, facts: Facts, profile: Profile) -> Choice | None:
    """What a setting gives; None where it is no setting at all for this profile."""
    if setting.entries is None:
        if profile == "agentgateway" and setting.field.path in _EMPTY_IS_UNSET and not setting.value:
            return None
        return Choice(setting.value)
    part = setting.field.part
    if profile == "docs":
        number = _first(enumerate(setting.entries), facts)
        policy = setting.entries[number].get("policy") if number is not None else None
        value = policy.get(part) if part and isinstance(policy, dict) else policy
        return Choice(value, number) if value is not None else None
    # A part of a property has a list of its own, of the entries that have the part.
    having = [(number, entry) for number, entry in enumerate(setting.entries) if not part or _part(entry, part)]
    if not having:
        return None
    number = _first(having, facts)
    if number is None:
        return Choice(NOTHING)
    policy = setting.entries[number].get("policy")
    return Choice(policy[part] if part and isinstance(policy, dict) else policy, number)


def _part(entry: Mapping[str, Any], part: str) -> Any:
    policy = entry.get("policy")
    return policy.get(part) if isinstance(policy, dict) else None


def _first(entries: Iterable[tuple[int, Mapping[str, Any]]], facts: Facts) -> int | None:
    for number, entry in entries:
        condition = entry.get("condition")
        if condition is None or (isinstance(condition, str) and facts.hold(condition)):
            return number
    return None
