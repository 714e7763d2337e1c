"""Meanings of a text: choices with an address each, or what is wrong with it and how to ask instead."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic
from tierwall.explore.page import address

# The most meanings that are offered, and names that a misspelled one is compared with.
MAX_CHOICES, MAX_COMPARED = 30, 2000
EXAMPLES = "`shop/web -> shop/db:5432`, `alice create pods in dev`, `shopper refund`, or `settings HTTPRoute/shop/api`"


class Choice(Struct, frozen=True):
    """One meaning of what was typed: the words for it, its address, and the plane of a question."""

    words: str
    href: str
    plane: str = ""


class Meanings(Struct, frozen=True):
    """Everything that a text may mean, or what is wrong with it, and questions about what it names."""

    choices: tuple[Choice, ...] = ()
    problems: tuple[Diagnostic, ...] = ()
    mentioned: tuple[Choice, ...] = ()


def bounded(choices: Iterator[Choice], otherwise: str = "nothing here is called so", hint: str = "") -> Meanings:
    """Return the first choices, each once; without any, say so."""
    unique: dict[str, Choice] = {}
    for choice in choices:
        unique.setdefault(choice.href, choice)
        if len(unique) == MAX_CHOICES:
            break
    if unique:
        return Meanings(tuple(unique.values()))
    return unclear(otherwise, hint or f"ask for example {EXAMPLES}")


def first_of(choices: Iterator[Choice]) -> tuple[Choice, ...]:
    """Return no more choices than are offered."""
    return tuple(islice(choices, MAX_CHOICES))


def unclear(message: str, hint: str) -> Meanings:
    """Say what is not clear, and how to ask instead."""
    return Meanings(problems=(Diagnostic("TW703", message, hint=hint),))


def asking(plane: str, **terms: Any) -> str:
    """Return the address of a question; the names are those of policy tests."""
    return address("/ask", plane=plane, **terms)
