"""One nftables table as a value: counters, sets, maps and chains by name, and the text that loads it.

Pure data: equal policies and pods give equal tables and equal text. Elements of sets keep their numbers, so that a
change of pods can be sent to the kernel element by element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, StrEnum, auto
from typing import NamedTuple, TypeAlias, assert_never

from msgspec import Struct

from tierwall.values.addresses import show

FAMILY, TABLE = "inet", "tierwall"
FAMILIES = (4, 6)
EVERY_OTHER = "*"
# Sets by the family behind their name: who has which address, and the connections that were cut.
PODS, NODES, CUT = "pods", "nodes", "cut"

# An address; a span of addresses or of ports; (address, protocol, port); or the catch-all of a map.
Element: TypeAlias = int | str | tuple[int, int] | tuple[int, str, int]


class Word(StrEnum):
    """What a verdict does with a packet."""

    ACCEPT = "accept"
    DROP = "drop"
    # Back to the chain that jumped here.
    RETURN = "return"
    GOTO = "goto"
    JUMP = "jump"


class Verdict(NamedTuple):
    """How a rule ends, or where an element of a verdict map leads; `chain` for `goto` and `jump`."""

    word: Word
    chain: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.chain}" if self.chain else str(self.word)


ACCEPT, DROP, RETURN = Verdict(Word.ACCEPT), Verdict(Word.DROP), Verdict(Word.RETURN)
# The comment of an element of a set, or the verdict of one of a map.
Attached: TypeAlias = str | Verdict


class Kind(Enum):
    """What the elements of a set are."""

    ADDRESSES = auto()
    RANGES = auto()
    NAMED = auto()
    PORTS = auto()
    VERDICTS = auto()
    PORT_VERDICTS = auto()
    FLOWS = auto()


MAPS = (Kind.VERDICTS, Kind.PORT_VERDICTS)


class Set(Struct, frozen=True):
    """A set or verdict map: each element with its comment or its verdict."""

    kind: Kind
    family: int
    elements: Mapping[Element, Attached]
    comment: str = ""


class Chain(Struct, frozen=True):
    """A chain; `hook` is the line that makes it a base chain.

    `mark` stands for the rules of a chain whose name does not: a digest that its first rule has as comment, and their
    number.
    """

    rules: tuple[str, ...]
    comment: str = ""
    hook: str = ""
    mark: str = ""


class Table(Struct, frozen=True):
    """The whole table."""

    counters: Mapping[str, str]
    sets: Mapping[str, Set]
    chains: Mapping[str, Chain]


def text(table: Table) -> str:
    """The table as `nft -f` reads it."""
    return "\n".join(_lines(table)) + "\n"


def _lines(table: Table) -> Iterator[str]:
    yield f"table {FAMILY} {TABLE} {{"
    for name, comment in table.counters.items():
        yield f'\tcounter {name} {{ comment "{comment}"; }}'
    for name, found in table.sets.items():
        yield f"\t{keyword(found)} {name} {{"
        yield from (f"\t\t{line}" for line in set_body(found))
        if found.elements:
            yield f"\t\telements = {{ {elements_text(found, found.elements)} }}"
        yield "\t}"
    for name, chain in table.chains.items():
        yield f"\tchain {name} {{"
        yield from (f"\t\t{line}" for line in chain_head(chain))
        yield from (f"\t\t{rule}" for rule in chain.rules)
        yield "\t}"
    yield "}"


def keyword(found: Set) -> str:
    """`map` for verdict maps, else `set`."""
    return "map" if found.kind in MAPS else "set"


def set_body(found: Set) -> Iterator[str]:
    """The lines that declare a set, without its elements."""
    yield f"type {_type(found)}"
    if found.kind in (Kind.RANGES, Kind.PORTS):
        yield "flags interval"
    elif found.kind is Kind.FLOWS:
        yield "size 65535"
        yield "flags timeout"
    if found.comment:
        yield f'comment "{found.comment}"'


def _type(found: Set) -> str:
    """The type of a set in the words of nftables."""
    address_type = f"ipv{found.family}_addr"
    match found.kind:
        case Kind.ADDRESSES | Kind.RANGES:
            return address_type
        case Kind.NAMED:
            return f"{address_type} . inet_proto . inet_service"
        case Kind.PORTS:
            return "inet_service"
        case Kind.VERDICTS:
            return f"{address_type} : verdict"
        case Kind.PORT_VERDICTS:
            return "inet_service : verdict"
        case Kind.FLOWS:
            return f"{address_type} . inet_service . {address_type} . inet_service"
        case _:
            assert_never(found.kind)


def chain_head(chain: Chain) -> Iterator[str]:
    """The lines of a chain before its rules."""
    if chain.comment:
        yield f'comment "{chain.comment}"'
    if chain.hook:
        yield chain.hook


def elements_text(found: Set, elements: Mapping[Element, Attached]) -> str:
    """Elements as nft writes them, in order."""
    return ", ".join(_element(found.kind, one, elements[one]) for one in in_order(elements))


def in_order(elements: Mapping[Element, Attached]) -> list[Element]:
    """Elements sorted, the catch-all last."""
    rest: list[Element] = [one for one in elements if one == EVERY_OTHER]
    return sorted((one for one in elements if one != EVERY_OTHER), key=_sort_key) + rest


def key_text(kind: Kind, element: Element) -> str:
    """An element's key alone."""
    if isinstance(element, str):
        return element
    if isinstance(element, int):
        return str(element) if kind is Kind.PORT_VERDICTS else show(element)
    if len(element) == 3:
        return f"{show(element[0])} . {element[1]} . {element[2]}"
    first, last = element
    if kind is Kind.PORTS:
        return str(first) if first == last else f"{first}-{last}"
    return show(first) if first == last else f"{show(first)}-{show(last)}"


def _element(kind: Kind, element: Element, attached: Attached) -> str:
    key = key_text(kind, element)
    if isinstance(attached, Verdict):
        return f"{key} : {attached}"
    return f'{key} comment "{attached}"' if attached else key


def _sort_key(element: Element) -> tuple[int, str, int]:
    if isinstance(element, int):
        return element, "", 0
    assert not isinstance(element, str)
    return (element[0], element[1], element[2]) if len(element) == 3 else (element[0], "", element[1])
