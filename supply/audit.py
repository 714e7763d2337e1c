"""Checks the locked versions against lists of vulnerabilities, offline (docs/security.md#what-is-installed)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from supply.inventory import Component
from supply.osv import Effect, Record, effect, normal_name, repository_effect


class Finding(NamedTuple):
    """A component that a vulnerability affects, and the names of the vulnerability."""

    component: Component
    ids: tuple[str, ...]
    effect: Effect


def find_vulnerable(components: Iterable[Component], records: Mapping[str, Record]) -> list[Finding]:
    """Return the vulnerabilities of the components; records that name each other as aliases are one vulnerability."""
    about: dict[tuple[str, str], list[Record]] = {}
    with_commits: list[Record] = []
    for record in records.values():
        for entry in record.affected or ():
            if entry.package is not None:
                ecosystem = entry.package.ecosystem.partition(":")[0]
                about.setdefault((ecosystem, normal_name(ecosystem, entry.package.name)), []).append(record)
        if any(span.type == "GIT" for entry in record.affected or () for span in entry.ranges or ()):
            with_commits.append(record)
    findings = []
    for component in components:
        effects: dict[str, tuple[Record, Effect]] = {}
        for ecosystem, name in component.listed_as:
            for record in about.get((ecosystem, normal_name(ecosystem, name)), ()):
                if affected := effect(record, ecosystem, name, component.version):
                    effects.setdefault(record.id, (record, affected))
        for record in with_commits if component.repository else ():
            if affected := repository_effect(record, component.repository, component.version):
                effects.setdefault(record.id, (record, affected))
        findings += [Finding(component, *merged) for merged in _merge(effects.values())]
    return findings


def unlisted_ecosystems(components: Iterable[Component], records: Mapping[str, Record]) -> list[str]:
    """Return the ecosystems of the components that no record is about: nothing of them was checked."""
    listed = {
        entry.package.ecosystem.partition(":")[0]
        for record in records.values()
        for entry in record.affected or ()
        if entry.package is not None
    }
    needed = {component.listed_as[0][0] for component in components if component.listed_as}
    return sorted(needed - listed)


def is_accepted(finding: Finding, accepted: Collection[str]) -> bool:
    """Return whether somebody has accepted a vulnerability, by any of its names."""
    return not set(finding.ids).isdisjoint(accepted)


def _merge(effects: Iterable[tuple[Record, Effect]]) -> list[tuple[tuple[str, ...], Effect]]:
    """Return the effects with records that share a name taken together."""
    groups: list[tuple[set[str], list[Effect]]] = []
    for record, affected in effects:
        names, merged = {record.id, *(record.aliases or ())}, [affected]
        for group in [group for group in groups if not group[0].isdisjoint(names)]:
            names |= group[0]
            merged += group[1]
            groups.remove(group)
        groups.append((names, merged))
    return sorted((tuple(sorted(names)), _clearest(merged)) for names, merged in groups)


def _clearest(effects: list[Effect]) -> Effect:
    return min(effects, key=lambda effect: (bool(effect.doubt), not effect.fixed_in, effect.fixed_in))
