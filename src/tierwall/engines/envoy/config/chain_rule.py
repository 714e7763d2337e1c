"""The settings and filters that the rules of a chain write: those of each parent hold for its children.

The rule nearest to the backend wins, whole: its `timeouts` replace those of its parents, and its filters of a type
replace theirs of that type. Policies of a child beat what a rule of its parent sets (docs/gateway.md#delegation).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tierwall.attach.reach import RouteRule
from tierwall.attach.section import rules
from tierwall.gateway.sentence import NATIVE, NATIVE_FILTERS, native_settings
from tierwall.resources.resource import list_of_maps, nested_map

_SETTINGS = (*NATIVE, "sessionPersistence")
_MIRROR = "RequestMirror"
_PATH_CHANGES = ("urlRewrite", "requestRedirect")


def native_setters(chain: Sequence[RouteRule]) -> dict[str, int]:
    """Return the fields that rules of a chain set by themselves, each with the number of the last rule that does."""
    return {path: number for number, rule in enumerate(chain) for path in native_settings(_value(rule))}


def chain_rule(chain: Sequence[RouteRule], overruled: Collection[str]) -> dict[str, Any]:
    """Return the last rule of a chain with what it has from its parents, without `overruled` fields of its chain."""
    out: dict[str, Any] = {}
    filters: list[Mapping[str, Any]] = []
    for number, rule in enumerate(reversed(chain)):
        value = _value(rule)
        kept = value.keys() if number == 0 else _SETTINGS
        out |= {
            name: value[name]
            for name in kept
            if name in value and name not in out and NATIVE.get(name) not in overruled
        }
        known = {each.get("type") for each in filters}
        filters += [
            each
            for each in list_of_maps(value.get("filters"))
            if each.get("type") not in known and NATIVE_FILTERS.get(str(each.get("type"))) not in overruled
        ]
    # An unreadable `filters` is kept: the rule must not be served without it.
    return {**out, "filters": filters} if filters or isinstance(out.get("filters"), list) else out


def mirroring_rule(chain: Sequence[RouteRule]) -> int:
    """Return the number of the rule whose copies are made: the last one that asks for copies."""
    mirroring = (number for number in reversed(range(len(chain))) if any(_mirrors(chain[number])))
    return next(mirroring, len(chain) - 1)


def replaces_prefix(rule: Mapping[str, Any]) -> bool:
    """Whether a filter of a rule replaces the prefix of the path."""
    changes = (nested_map(each, key) for each in list_of_maps(rule.get("filters")) for key in _PATH_CHANGES)
    return any(nested_map(change, "path").get("type") == "ReplacePrefixMatch" for change in changes)


def _mirrors(rule: RouteRule) -> Iterator[bool]:
    return (each.get("type") == _MIRROR for each in list_of_maps(_value(rule).get("filters")))


def _value(rule: RouteRule) -> Mapping[str, Any]:
    return rules(rule.route)[rule.rule]
