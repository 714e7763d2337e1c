"""HTML as values: text is escaped where it becomes markup, so no name from a manifest can be more than text.

`tag` is the only way to make markup, and it escapes every child and attribute that is not markup itself. Characters
that are invisible or change the direction of text are shown as marks (docs/semantics.md#output-cannot-be-forged).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import TypeAlias

from tierwall.core.unprintable import escape_unprintable

# Elements without an end tag.
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"
Attribute: TypeAlias = str | int | float | bool | None


def tag(element: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Make an element. `class_` is the attribute `class`, `aria_label` is `aria-label`; True is an empty attribute."""
    start = f"<{element}{''.join(_attributes(attributes))}>"
    if element in _VOID:
        return Markup(start)
    return Markup(f"{start}{''.join(_content(children))}</{element}>")


def joined(*children: Child) -> Markup:
    """Put elements and text one after the other."""
    return Markup("".join(_content(children)))


def spoken(text: str) -> Markup:
    """Show a sentence: what stands between backticks, as in a terminal, has the letters of code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return joined(text)
    return joined(*(tag("code", part) if number % 2 else part for number, part in enumerate(parts)))


def raw_text(text: str) -> Markup:
    """Escape text without marks, for a `textarea`: what a person edits must stay what it is."""
    # The first line break of a textarea does not count.
    return Markup(escape("\n" + text))


def _content(children: Iterable[Child]) -> Iterator[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str):
            yield _visible(child)
        elif isinstance(child, int):
            yield f"{child:,}"
        elif child is not None:
            yield from _content(child)


def _visible(text: str) -> str:
    if text.isprintable():
        return escape(text)
    return "".join(
        escape(character) if character.isprintable() else f'<span class="mark">{escape_unprintable(character)}</span>'
        for character in text
    )


def _attributes(attributes: dict[str, Attribute]) -> Iterator[str]:
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        if value is True:
            yield f" {name}"
        elif isinstance(value, float):
            yield f' {name}="{value:.1f}"'
        else:
            yield f' {name}="{escape(escape_unprintable(str(value)))}"'
