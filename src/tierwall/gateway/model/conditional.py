"""Conditional entries: the first whose condition is true for the request (docs/semantics.md#conditional-fields).

docs selects before it merges: a list that selects nothing sets nothing. agentgateway merges whole lists first: a list
that selects nothing leaves the field unset, and nothing less specific steps in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, assert_never

from msgspec import Struct

from tierwall.cel import Environment, Failure, ParseError, Program
from tierwall.cel.evaluate.program import compile
from tierwall.gateway.model.fields import Profile, WrittenField

_ENVIRONMENT = Environment(extensions=True)
# agentgateway: an empty map cannot clear an inherited one.
_EMPTY_IS_UNSET = frozenset(("backend.ai.modelAliases", "backend.ai.routes"))


class NothingSelected(Enum):
    """What a list that selects no entry gives under agentgateway."""

    SELECTED = "nothing selected"


NOTHING: Final = NothingSelected.SELECTED


class SelectedValue(Struct, frozen=True):
    """The value that an object gives for a request, and which entry of a list it is (None: it is not a list).

    `certain` is false where the object may give nothing, because the request is not known; the value is then the first
    that may be selected.
    """

    value: Any
    entry: int | None = None
    certain: bool = True


class FactError(ValueError):
    """Facts that cannot be variables; each message is about one of them."""

    def __init__(self, messages: Iterable[str]) -> None:
        self.messages = tuple(messages)
        super().__init__("; ".join(self.messages))


class RequestFacts:
    """The facts of a request as CEL variables: `{"request.path": "/x"}` gives `request` with the field `path`."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._variables = _nested(given or {})
        # Threads that come first at the same time find out the same.
        self._known: dict[str, bool] = {}

    def hold(self, condition: str) -> bool | None:
        """Whether a condition is true; one that cannot be parsed or evaluated, or is not a boolean, is not.

        None says that it may be true or not, which only `ANY_REQUEST` answers.
        """
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


class AnyRequest(RequestFacts):
    """Every request at once: a condition may hold or not, each on its own."""

    def hold(self, condition: str) -> bool | None:
        """No condition is known to hold or not."""
        return None


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


NO_FACTS: Final = RequestFacts()
ANY_REQUEST: Final = AnyRequest()


def select_value(written: WrittenField, facts: RequestFacts, profile: Profile) -> SelectedValue | None:
    """What an object gives for a field; None where it sets nothing under this profile."""
    match profile:
        case "docs":
            return SelectedValue(written.value) if written.entries is None else _of_all(written, written.entries, facts)
        case "agentgateway":
            if written.entries is not None:
                return _of_the_part(written, written.entries, facts)
            unset = written.field.path in _EMPTY_IS_UNSET and not written.value
            return None if unset else SelectedValue(written.value)
        case _:
            assert_never(profile)


def _of_all(written: WrittenField, entries: Iterable[Mapping[str, Any]], facts: RequestFacts) -> SelectedValue | None:
    """One entry is selected, and it gives every part of the property that it has."""
    selectable, certain = _selectable(enumerate(entries), facts)
    giving = [(value, number) for number, policy in selectable if (value := _given(policy, written)) is not None]
    return SelectedValue(*giving[0], certain and len(giving) == len(selectable)) if giving else None


def _of_the_part(
    written: WrittenField, entries: Iterable[Mapping[str, Any]], facts: RequestFacts
) -> SelectedValue | None:
    """A part of a property has a list of its own, of the entries that have the part; it counts whatever it selects."""
    part = written.field.part
    having = [
        (number, entry) for number, entry in enumerate(entries) if not part or _given(entry.get("policy"), written)
    ]
    if not having:
        return None
    selectable, _ = _selectable(having, facts)
    if not selectable:
        return SelectedValue(NOTHING)
    number, policy = selectable[0]
    return SelectedValue(_given(policy, written), number)


def _given(policy: Any, written: WrittenField) -> Any:
    """What an entry gives for the field: the part of its policy that the field is, or all of it."""
    part = written.field.part
    return policy.get(part) if part and isinstance(policy, dict) else policy


def _selectable(
    entries: Iterable[tuple[int, Mapping[str, Any]]], facts: RequestFacts
) -> tuple[list[tuple[int, Any]], bool]:
    """The number and policy of each entry that may be the first whose condition is true, and whether one surely is."""
    selectable: list[tuple[int, Any]] = []
    for number, entry in entries:
        condition = entry.get("condition")
        holds = condition is None or (isinstance(condition, str) and facts.hold(condition))
        if holds is not False:
            selectable.append((number, entry.get("policy")))
        if holds:
            return selectable, True
    return selectable, False
