"""Conditional lists: the first entry whose condition is true for the request (docs/semantics.md#conditional-fields).

The profile docs selects before it merges: a list that selects no entry sets nothing. The profile agentgateway merges
whole lists first: a winning list that selects no entry leaves the field unset, even if a less specific level sets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, assert_never

from msgspec import Struct

from tierwall.cel import Environment, Failure, ParseError, Program
from tierwall.cel.evaluate.program import compile
from tierwall.cel.syntax import ast
from tierwall.gateway.model.fields import Profile, WrittenField

_ENVIRONMENT = Environment(extensions=True)
# The first parts of names of functions, which look like variables: `math.greatest`.
_NAMESPACES = frozenset(("base64", "json", "lists", "math", "optional", "sets", "strings"))
# In agentgateway an empty map does not clear an inherited one.
_EMPTY_IS_UNSET = frozenset(("backend.ai.modelAliases", "backend.ai.routes"))


class NoSelection(Enum):
    """The value of a list that selects no entry, under the profile agentgateway."""

    SELECTED = "nothing selected"


NOTHING: Final = NoSelection.SELECTED


class SelectedValue(Struct, frozen=True):
    """The value that an object gives for a request, and the number of the list entry (None if it is not a list).

    `certain` is false if the request is unknown and the object may give nothing. The value is then the first one that
    may be selected.
    """

    value: Any
    entry: int | None = None
    certain: bool = True


class FactError(ValueError):
    """Facts that cannot become CEL variables; each message is about one of them."""

    def __init__(self, messages: Iterable[str]) -> None:
        self.messages = tuple(messages)
        super().__init__("; ".join(self.messages))


class RequestFacts:
    """The facts of a request as CEL variables: `{"request.path": "/x"}` gives `request` with the field `path`."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._variables = _nested(given or {})
        # Two threads may both evaluate a condition; they get the same result.
        self._results: dict[str, bool] = {}

    @property
    def variables(self) -> Mapping[str, Any]:
        """The variables that expressions see."""
        return self._variables

    def condition_holds(self, condition: str) -> bool | None:
        """Whether a condition is true. It is not if it cannot be parsed or evaluated, or is not a boolean.

        None means that it may be true or false; only `ANY_REQUEST` returns it.
        """
        result = self._results.get(condition)
        if result is None:
            program = _program(condition)
            result = self._results[condition] = program is not None and self._is_true(program)
        return result

    def leaves_open(self, condition: str) -> bool:
        """Whether these facts do not say if a condition is true: it needs facts about the request that are missing."""
        program = _program(condition)
        if program is None:
            return False
        try:
            program.evaluate(self._variables)
        except Failure:
            return True
        return False

    def missing_from(self, condition: str) -> tuple[str, ...]:
        """Return the facts that a condition names and that are not given: `request.method`, `request.headers["x"]`."""
        program = _program(condition)
        paths = _paths(program.tree, frozenset()) if program is not None else ()
        return tuple(dict.fromkeys(_written(path) for path in paths if not self._has(path)))

    def _has(self, path: tuple[str, ...]) -> bool:
        value: Any = self._variables
        for name in path:
            if not isinstance(value, dict) or name not in value:
                return False
            value = value[name]
        return True

    def _is_true(self, program: Program) -> bool:
        try:
            return program.evaluate(self._variables) is True
        except Failure:
            return False


class AnyRequest(RequestFacts):
    """All requests at once: each condition may be true or false, independently of the others."""

    def condition_holds(self, condition: str) -> bool | None:
        """Return None: the condition may be true or false."""
        return None


def _paths(tree: ast.Expr, bound: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """Yield what an expression reads of its variables; `bound` are variables of macros around it."""
    if isinstance(tree, ast.Has):
        tree = ast.Select(tree.operand, tree.field)
    path = ast.path_of(tree)
    if path is not None:
        if path[0] not in bound and path[0] not in _NAMESPACES:
            yield path
        return
    for operand in ast.operands(tree):
        yield from _paths(operand, bound)
    variables, bodies = ast.bound_bodies(tree)
    for body in bodies:
        yield from _paths(body, bound | set(variables))


def _written(path: tuple[str, ...]) -> str:
    """Return a path as an expression writes it."""
    variable, *names = path
    return variable + "".join(f".{name}" if name.isidentifier() else f'["{name}"]' for name in names)


@lru_cache(maxsize=4096)
def _program(condition: str) -> Program | None:
    try:
        return compile(condition, _ENVIRONMENT)
    except ParseError:
        return None


def _nested(given: Mapping[Any, Any]) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    problems: list[str] = []
    for name in sorted(given, key=str):  # shorter names first, so that `request` comes before `request.path`
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
            # The question's own values are never changed: maps are copied before anything is added to them.
            try:
                inside[last] = _copy_maps(given[name])
            except RecursionError:
                problems.append(f"fact `{name}` is nested too deeply")
    if problems:
        raise FactError(problems)
    return variables


def _copy_maps(value: Any) -> Any:
    return {key: _copy_maps(item) for key, item in value.items()} if isinstance(value, dict) else value


NO_FACTS: Final = RequestFacts()
ANY_REQUEST: Final = AnyRequest()


def select_value(written: WrittenField, facts: RequestFacts, profile: Profile) -> SelectedValue | None:
    """Return the value that an object gives for a field, or None if it sets nothing under this profile."""
    match profile:
        case "docs":
            if written.entries is not None:
                return _select_from_all(written, written.entries, facts)
            return SelectedValue(written.value)
        case "agentgateway":
            if written.entries is not None:
                return _select_from_part(written, written.entries, facts)
            unset = written.field.path in _EMPTY_IS_UNSET and not written.value
            return None if unset else SelectedValue(written.value)
        case _:
            assert_never(profile)


def _select_from_all(
    written: WrittenField, entries: Iterable[Mapping[str, Any]], facts: RequestFacts
) -> SelectedValue | None:
    """Select one entry for the whole property; it sets every part of the property that it has."""
    selectable, certain = _selectable(enumerate(entries), facts)
    giving = [(value, number) for number, policy in selectable if (value := written.entry_value(policy)) is not None]
    return SelectedValue(*giving[0], certain and len(giving) == len(selectable)) if giving else None


def _select_from_part(
    written: WrittenField, entries: Iterable[Mapping[str, Any]], facts: RequestFacts
) -> SelectedValue | None:
    """Select from the entries that have this part of the property. Such a list counts even if it selects nothing."""
    having = [(number, entry) for number, entry in enumerate(entries) if written.has_part(entry)]
    if not having:
        return None
    selectable, _ = _selectable(having, facts)
    if not selectable:
        return SelectedValue(NOTHING)
    number, policy = selectable[0]
    return SelectedValue(written.entry_value(policy), number)


def missing_facts(written: WrittenField, facts: RequestFacts, profile: Profile, entry: int | None) -> tuple[str, ...]:
    """Return the facts whose lack lets another entry than the selected one (None: no entry) count."""
    before: Iterable[Mapping[str, Any]] = (written.entries or ())[:entry]
    if profile == "agentgateway":
        before = (item for item in before if written.has_part(item))
    conditions = (item.get("condition") for item in before)
    left_open = (text for text in conditions if isinstance(text, str) and facts.leaves_open(text))
    # A condition that fails with all its facts at hand is false, whatever the request.
    return tuple(dict.fromkeys(fact for text in left_open for fact in facts.missing_from(text)))


def entry_without_part(written: WrittenField, facts: RequestFacts) -> int | None:
    """Return the number of the entry that is selected although it lacks the field's part of the property."""
    selectable, certain = _selectable(enumerate(written.entries or ()), facts)
    if not certain or not written.field.part:
        return None
    number, policy = selectable[-1]
    return number if written.entry_value(policy) is None else None


def _selectable(
    entries: Iterable[tuple[int, Mapping[str, Any]]], facts: RequestFacts
) -> tuple[list[tuple[int, Any]], bool]:
    """Return the number and policy of each entry that may be selected, and whether one is certainly selected."""
    selectable: list[tuple[int, Any]] = []
    for number, entry in entries:
        condition = entry.get("condition")
        is_true = condition is None or (isinstance(condition, str) and facts.condition_holds(condition))
        if is_true is not False:
            selectable.append((number, entry.get("policy")))
        if is_true:
            return selectable, True
    return selectable, False
