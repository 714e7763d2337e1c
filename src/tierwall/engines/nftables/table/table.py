"""One nftables table as a value: counters, sets, maps and chains by name, and the scripts that load and change it.

Pure data: equal policies and pods give equal tables and equal scripts. Elements of sets keep their numbers, so a change
of pods can be sent to the kernel element by element.

Chains and sets are named by their meaning. So the script from one table to the next only adds new names and deletes old
ones; in sets that stay, it changes the elements that differ. The few chains with plain names are refilled in place.
Base chains are never unhooked, and every packet runs through the old rules or the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, StrEnum
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from tierwall.values.addresses import format_address

FAMILY, TABLE = "inet", "tierwall"
FAMILIES = (4, 6)
EVERY_OTHER = "*"
_WHERE = f"{FAMILY} {TABLE}"
# Stems of set names, followed by the family: who has which address, and the connections that were cut.
PODS, NODES, CUT = "pods", "nodes", "cut"

# An address; a range of addresses or of ports; (address, protocol, port); the catch-all of a map; the name of an
# interface; or (interface, address).
Element: TypeAlias = int | str | tuple[int, int] | tuple[int, str, int] | tuple[str, int]


class VerdictWord(StrEnum):
    """The word of a verdict on a packet."""

    ACCEPT = "accept"
    DROP = "drop"
    # Back to the chain that jumped here.
    RETURN = "return"
    GOTO = "goto"
    JUMP = "jump"


class ChainVerdict(NamedTuple):
    """The ending of a rule, or the target of an element in a verdict map; `chain` for `goto` and `jump`."""

    word: VerdictWord
    chain: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.chain}" if self.chain else str(self.word)


ACCEPT, DROP, RETURN = (
    ChainVerdict(VerdictWord.ACCEPT),
    ChainVerdict(VerdictWord.DROP),
    ChainVerdict(VerdictWord.RETURN),
)
# The comment of a set's element, or the verdict of a map's element.
Attached: TypeAlias = str | ChainVerdict


class SetKind(Enum):
    """The elements of a set: their nftables type (`ADDRESS` stands for the address type of the family), then flags."""

    ADDRESSES = ("ADDRESS",)
    RANGES = ("ADDRESS", "flags interval")
    NAMED = ("ADDRESS . inet_proto . inet_service",)
    PORTS = ("inet_service", "flags interval")
    VERDICTS = ("ADDRESS : verdict",)
    PORT_VERDICTS = ("inet_service : verdict",)
    INTERFACES = ("ifname",)
    SOURCES = ("ifname . ADDRESS",)
    FLOWS = ("ADDRESS . inet_service . ADDRESS . inet_service", "size 65535", "flags timeout")


MAPS = (SetKind.VERDICTS, SetKind.PORT_VERDICTS)
# Named by their content: their elements are counted, not compared.
_FIXED = (SetKind.RANGES, SetKind.PORTS, SetKind.PORT_VERDICTS)


class NamedSet(Struct, frozen=True):
    """A set or verdict map. Each element has a comment or a verdict."""

    kind: SetKind
    family: int
    elements: Mapping[Element, Attached]
    comment: str = ""


class RuleChain(Struct, frozen=True):
    """A chain; `hook` is the line that makes it a base chain.

    `mark` stands for the rules of a chain whose name does not: a digest, which is the comment of its first rule, and
    the number of rules.
    """

    rules: tuple[str, ...]
    comment: str = ""
    hook: str = ""
    mark: str = ""


class Table(Struct, frozen=True):
    """The whole table. A table of ours has no flags: somebody else has set those, such as `dormant`."""

    counters: Mapping[str, str]
    sets: Mapping[str, NamedSet]
    chains: Mapping[str, RuleChain]
    has_flags: bool = False


def table_script(table: Table) -> str:
    """Return the table as `nft -f` reads it."""
    return "\n".join(_lines(table)) + "\n"


def rules_digest(table: Table) -> str:
    """Return a digest over the rules of a table, without the elements of its sets.

    Parts are named by their content; of chains with plain names, the mark stands for the rules.
    """
    names = (*table.counters, *table.sets, *(f"{name} {chain.mark}" for name, chain in table.chains.items()))
    return sha256("\n".join(sorted(names)).encode()).hexdigest()


def _lines(table: Table) -> Iterator[str]:
    yield f"table {_WHERE} {{"
    for name, comment in table.counters.items():
        yield f'\tcounter {name} {{ comment "{comment}"; }}'
    for name, part in table.sets.items():
        yield f"\t{_keyword(part)} {name} {{"
        yield from (f"\t\t{line}" for line in _set_body(part))
        if part.elements:
            yield f"\t\telements = {{ {_write_elements(part.kind, part.elements)} }}"
        yield "\t}"
    for name, chain in table.chains.items():
        yield f"\tchain {name} {{"
        yield from (f"\t\t{line}" for line in _chain_head(chain))
        yield from (f"\t\t{rule}" for rule in chain.rules)
        yield "\t}"
    yield "}"


def _keyword(part: NamedSet) -> str:
    return "map" if part.kind in MAPS else "set"


def _set_body(part: NamedSet) -> Iterator[str]:
    """Yield the lines that declare a set, without its elements."""
    element_type, *flags = part.kind.value
    yield f"type {element_type.replace('ADDRESS', f'ipv{part.family}_addr')}"
    yield from flags
    if part.comment:
        yield f'comment "{part.comment}"'


def _chain_head(chain: RuleChain) -> Iterator[str]:
    """Yield the lines of a chain before its rules."""
    if chain.comment:
        yield f'comment "{chain.comment}"'
    if chain.hook:
        yield chain.hook


def _write_elements(kind: SetKind, elements: Mapping[Element, Attached]) -> str:
    """Write elements as nft does, in order."""
    return ", ".join(_write_element(kind, element, elements[element]) for element in _in_order(elements))


def _write_element(kind: SetKind, element: Element, attached: Attached) -> str:
    key = _write_key(kind, element)
    if isinstance(attached, ChainVerdict):
        return f"{key} : {attached}"
    return f'{key} comment "{attached}"' if attached else key


def _write_key(kind: SetKind, element: Element) -> str:
    """Write the key of an element."""
    if isinstance(element, str):
        return f'"{element}"' if kind is SetKind.INTERFACES else element
    if isinstance(element, int):
        return str(element) if kind is SetKind.PORT_VERDICTS else format_address(element)
    if len(element) == 3:
        return f"{format_address(element[0])} . {element[1]} . {element[2]}"
    low, high = element
    if isinstance(low, str):
        return f'"{low}" . {format_address(high)}'
    first, last = (low, high) if kind is SetKind.PORTS else (format_address(low), format_address(high))
    return str(first) if first == last else f"{first}-{last}"


def _in_order(elements: Iterable[Element]) -> list[Element]:
    """Sort elements, the catch-all last."""
    return sorted(elements, key=_sort_key)


def _sort_key(element: Element) -> tuple[bool, int, str, int]:
    if isinstance(element, int):
        return False, element, "", 0
    if isinstance(element, str):
        return True, 0, element, 0
    if len(element) == 3:
        return False, *element
    first, last = element
    return (False, 0, first, last) if isinstance(first, str) else (False, first, "", last)


class ElementChange(NamedTuple):
    """The elements that leave a set and those that enter it. An element whose attachment changes does both."""

    removed: dict[Element, Attached]
    added: dict[Element, Attached]

    @classmethod
    def between(cls, old: Mapping[Element, Attached], new: Mapping[Element, Attached]) -> ElementChange:
        """Return the change that turns the elements of a set into others."""
        removed = {element: attached for element, attached in old.items() if new.get(element) != attached}
        added = {element: attached for element, attached in new.items() if old.get(element) != attached}
        return cls(removed, added)


def transaction(old: Table, new: Table) -> str:
    """Return the script that turns one table into another; empty if they are equal."""
    lines = (*_additions(old, new), *_changes(old, new), *_removals(old, new))
    return "\n".join(lines) + "\n" if lines else ""


def _additions(old: Table, new: Table) -> Iterator[str]:
    """Add what is new: maps after the chains they lead to, and rules last."""
    for name, comment in new.counters.items():
        if name not in old.counters:
            yield f'add counter {_WHERE} {name} {{ comment "{comment}"; }}'
    sets = [(name, part) for name, part in new.sets.items() if name not in old.sets]
    chains = [(name, chain) for name, chain in new.chains.items() if name not in old.chains]
    yield from (_added_set(name, part) for name, part in sets if part.kind not in MAPS)
    for name, chain in chains:
        head = (line if line.endswith(";") else f"{line};" for line in _chain_head(chain))
        yield f"add chain {_WHERE} {name} {{ {' '.join(head)} }}"
    yield from (_added_set(name, part) for name, part in sets if part.kind in MAPS)
    for name, chain in chains:
        yield from _added_rules(name, chain)


def _changes(old: Table, new: Table) -> Iterator[str]:
    """Change what both tables have and what differs."""
    for name, chain in new.chains.items():
        known = old.chains.get(name)
        if known is not None and (known.mark != chain.mark or len(known.rules) != len(chain.rules)):
            yield f"flush chain {_WHERE} {name}"
            yield from _added_rules(name, chain)
    for name, part in new.sets.items():
        if name not in old.sets or part.kind is SetKind.FLOWS or part.elements == old.sets[name].elements:
            continue
        if part.kind in _FIXED:
            if len(part.elements) != len(old.sets[name].elements):
                yield f"flush {_keyword(part)} {_WHERE} {name}"
                yield f"add element {_WHERE} {name} {{ {_write_elements(part.kind, part.elements)} }}"
            continue
        change = ElementChange.between(old.sets[name].elements, part.elements)
        if change.removed:
            keys = ", ".join(_write_key(part.kind, element) for element in _in_order(change.removed))
            yield f"delete element {_WHERE} {name} {{ {keys} }}"
        if change.added:
            yield f"add element {_WHERE} {name} {{ {_write_elements(part.kind, change.added)} }}"


def _removals(old: Table, new: Table) -> Iterator[str]:
    """Remove what is gone: rules first, then maps (which lead to chains), then the rest."""
    chains = [name for name in old.chains if name not in new.chains]
    sets = [(name, part) for name, part in old.sets.items() if name not in new.sets]
    yield from (f"flush chain {_WHERE} {name}" for name in chains)
    yield from (f"delete map {_WHERE} {name}" for name, part in sets if part.kind in MAPS)
    yield from (f"delete chain {_WHERE} {name}" for name in chains)
    yield from (f"delete set {_WHERE} {name}" for name, part in sets if part.kind not in MAPS)
    yield from (f"delete counter {_WHERE} {name}" for name in old.counters if name not in new.counters)


def _added_set(name: str, part: NamedSet) -> str:
    elements = f" elements = {{ {_write_elements(part.kind, part.elements)} }};" if part.elements else ""
    return f"add {_keyword(part)} {_WHERE} {name} {{ {' '.join(f'{line};' for line in _set_body(part))}{elements} }}"


def _added_rules(name: str, chain: RuleChain) -> Iterator[str]:
    return (f"add rule {_WHERE} {name} {rule}" for rule in chain.rules)
