"""From one table to the next as one nft script.

Chains and sets are named by what they mean, so only names that are new are added and only names that are gone are
deleted; of sets that stay, the elements that differ. The few chains with plain names are refilled in place: the base
chains are never unhooked, and every packet runs through the old rules or the new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tierwall.engines.nftables.table.table import (
    FAMILY,
    MAPS,
    TABLE,
    Attached,
    Chain,
    Element,
    Kind,
    Set,
    Table,
    chain_head,
    elements_text,
    in_order,
    key_text,
    keyword,
    set_body,
)

_WHERE = f"{FAMILY} {TABLE}"
# Named by their content, or filled by events: never compared element by element.
_FIXED = (Kind.RANGES, Kind.PORTS, Kind.PORT_VERDICTS, Kind.FLOWS)


class ElementChange(NamedTuple):
    """What leaves a set and what enters it; an element whose comment or verdict changes does both."""

    found: Set
    gone: Mapping[Element, Attached]
    come: Mapping[Element, Attached]


def transaction(old: Table, new: Table) -> str:
    """The script that turns one table into another; empty if they are the same."""
    lines = list(_lines(old, new))
    return "\n".join(lines) + "\n" if lines else ""


def element_changes(old: Table, new: Table) -> Iterator[tuple[str, ElementChange]]:
    """The sets of both tables whose elements differ."""
    for name, found in new.sets.items():
        before = old.sets.get(name)
        if before is None or found.kind in _FIXED or before.elements == found.elements:
            continue
        gone = {one: text for one, text in before.elements.items() if found.elements.get(one) != text}
        come = {one: text for one, text in found.elements.items() if before.elements.get(one) != text}
        yield name, ElementChange(found, gone, come)


def _lines(old: Table, new: Table) -> Iterator[str]:
    for name, comment in new.counters.items():
        if name not in old.counters:
            yield f'add counter {_WHERE} {name} {{ comment "{comment}"; }}'
    fresh_sets = {name: found for name, found in new.sets.items() if name not in old.sets}
    fresh_chains = {name: chain for name, chain in new.chains.items() if name not in old.chains}
    for name, found in fresh_sets.items():
        if found.kind not in MAPS:
            yield _set(name, found)
    for name, chain in fresh_chains.items():
        yield f"add chain {_WHERE} {name} {{ {' '.join(_ended(line) for line in chain_head(chain))} }}"
    for name, found in fresh_sets.items():
        if found.kind in MAPS:
            yield _set(name, found)
    for name, chain in fresh_chains.items():
        yield from _rules(name, chain)
    for name, chain in new.chains.items():
        if name in old.chains and old.chains[name].mark != chain.mark:
            yield f"flush chain {_WHERE} {name}"
            yield from _rules(name, chain)
    for name, change in element_changes(old, new):
        if change.gone:
            keys = ", ".join(key_text(change.found.kind, one) for one in in_order(change.gone))
            yield f"delete element {_WHERE} {name} {{ {keys} }}"
        if change.come:
            yield f"add element {_WHERE} {name} {{ {elements_text(change.found, change.come)} }}"
    yield from _removals(old, new)


def _removals(old: Table, new: Table) -> Iterator[str]:
    """What is gone: rules first, then maps, which lead to chains, then the rest."""
    chains = [name for name in old.chains if name not in new.chains]
    sets = {name: found for name, found in old.sets.items() if name not in new.sets}
    yield from (f"flush chain {_WHERE} {name}" for name in chains)
    yield from (f"delete map {_WHERE} {name}" for name, found in sets.items() if found.kind in MAPS)
    yield from (f"delete chain {_WHERE} {name}" for name in chains)
    yield from (f"delete set {_WHERE} {name}" for name, found in sets.items() if found.kind not in MAPS)
    yield from (f"delete counter {_WHERE} {name}" for name in old.counters if name not in new.counters)


def _set(name: str, found: Set) -> str:
    elements = f" elements = {{ {elements_text(found, found.elements)} }};" if found.elements else ""
    return f"add {keyword(found)} {_WHERE} {name} {{ {' '.join(f'{line};' for line in set_body(found))}{elements} }}"


def _rules(name: str, chain: Chain) -> Iterator[str]:
    return (f"add rule {_WHERE} {name} {rule}" for rule in chain.rules)


def _ended(line: str) -> str:
    return line if line.endswith(";") else f"{line};"
