"""Reads the maps of a proof, and notes everything that is wrong with them: where, what was expected, what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tierwall.core.diagnostics import Diagnostic, near_miss
from tierwall.core.labels import EVERYTHING, Selector, SelectorError
from tierwall.core.source import Path, Position
from tierwall.core.words import as_given
from tierwall.proofs.value_set import ANYTHING, SetForm, ValueSet, pattern_problem

Locate = Callable[[Path], Position | None]

_FORMS = tuple(str(form) for form in SetForm if form is not SetForm.IN)
_NO_KEYS: Mapping[str, Any] = {}


def nowhere(path: Path) -> None:
    """Say that a proof was not written in a file."""


class ProofReader:
    """Reads one map of a proof. `at` goes down to a part of it; all parts share their problems."""

    def __init__(self, problems: list[Diagnostic], locate: Locate = nowhere, path: Path = ()) -> None:
        self._problems = problems
        self._locate = locate
        self._path = path

    def at(self, *path: str | int) -> ProofReader:
        """Return the reader of a part."""
        return ProofReader(self._problems, self._locate, (*self._path, *path))

    def refuse(self, message: str, hint: str = "") -> None:
        """Note a problem of this part."""
        self._problems.append(Diagnostic("TW703", message, self._locate(self._path), hint=hint))

    def map(self, value: object, what: str, keys: Iterable[str]) -> Mapping[str, Any]:
        """Return a map, without keys that are not known; each of those is a problem."""
        if not isinstance(value, Mapping):
            self.refuse(f"expected a map as {what}, found {shown(value)}")
            return _NO_KEYS
        known = tuple(keys)
        for key in value:
            if key not in known:
                hint = near_miss(str(key), known) or f"expected one of {', '.join(known)}"
                self.at(key).refuse(f"unknown key `{key}` in {what}", hint)
        return {key: entry for key, entry in value.items() if key in known}

    def one_of(self, value: object, words: Iterable[str], key: str) -> str | None:
        """Return one of some words."""
        known = tuple(map(str, words))
        if isinstance(value, str) and value in known:
            return value
        self.refuse(
            f"expected one of {', '.join(known)} as `{key}`, found {shown(value)}", near_miss(str(value), known)
        )
        return None

    def true_or_false(self, value: object, key: str) -> bool:
        """Return true or false."""
        if isinstance(value, bool):
            return value
        self.refuse(f"expected true or false as `{key}`, found {shown(value)}")
        return False

    def strings(self, value: object, key: str, what: str) -> tuple[str, ...]:
        """Return a string or a list of strings as a tuple."""
        values = value if isinstance(value, list | tuple) else [value]
        if values and all(isinstance(text, str) and text for text in values):
            return tuple(values)
        self.refuse(f"expected {what} as `{key}`, found {shown(value)}")
        return ()

    def selector(self, value: object) -> Selector:
        """Return a label selector."""
        try:
            return Selector.parse(value)
        except SelectorError as error:
            self.at(*error.path).refuse(str(error))
            return EVERYTHING

    def value_set(self, value: object, key: str) -> ValueSet:
        """Return a set of strings. A number counts as its digits, so that `version: 1` needs no quotes."""
        if isinstance(value, Mapping):
            return self._set_of_map(value, key)
        values = value if isinstance(value, list | tuple) else [value]
        if not values:
            self.refuse(f"expected a value or a list of values as `{key}`, found an empty list", "leave it out for any")
        return ValueSet(SetForm.IN, self._texts(values, key))

    def _set_of_map(self, value: Mapping[str, Any], key: str) -> ValueSet:
        if len(value) != 1 or next(iter(value)) not in _FORMS:
            hint = near_miss(str(next(iter(value), "")), _FORMS)
            self.refuse(
                f"expected a value, a list, or a map with one of {', '.join(_FORMS)} as `{key}`, found {shown(value)}",
                hint,
            )
            return ANYTHING
        ((word, part),) = value.items()
        form = SetForm(word)
        if form is SetForm.NOT:
            if not isinstance(part, list | tuple):
                self.at(word).refuse(f"expected a list as `{word}` in `{key}`, found {shown(part)}")
                return ANYTHING
            return ValueSet(form, self.at(word)._texts(part, key))
        if not isinstance(part, str):
            self.at(word).refuse(f"expected a string as `{word}` in `{key}`, found {shown(part)}")
            return ANYTHING
        if form is SetForm.MATCHES and (problem := pattern_problem(part)):
            self.at(word).refuse(f"`{part}` is not a regular expression of RE2: {problem}")
            return ANYTHING
        return ValueSet(form, (part,))

    def _texts(self, values: Iterable[object], key: str) -> tuple[str, ...]:
        texts = []
        for value in values:
            if isinstance(value, str):
                texts.append(value)
            elif type(value) is int:
                texts.append(str(value))
            else:
                self.refuse(f"expected strings in `{key}`, found {shown(value)}")
        return tuple(dict.fromkeys(texts))


def shown(value: object) -> str:
    """Show a value that was given, for a message: a string is called one, as it may look like a number."""
    return as_given(value, "the string ")
