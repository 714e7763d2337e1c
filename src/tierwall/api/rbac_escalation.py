"""RBAC's guard against escalation: who writes a role or a binding must already hold what it grants.

Kubernetes' `pkg/registry/rbac/validation`: a rule is covered if each single verb, group, resource and name of it is
covered by one rule that the user holds. The verbs `escalate` (to write a role) and `bind` (to bind one) lift the guard;
these checks support no conditions, so a conditional answer does not lift it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

import msgspec

from tierwall.api.attributes import Attributes, ConditionsMode
from tierwall.api.authorizer import Authorizer
from tierwall.api.decision import ALLOW
from tierwall.api.rbac import Rbac
from tierwall.api.rbac_rules import GROUP, Rule


def uncovered(owned: Iterable[Rule], wanted: Iterable[Rule]) -> list[str]:
    """The single permissions of `wanted` that no rule of `owned` covers, in words."""
    held = list(owned)
    return [
        words for rule in wanted for words, single in _single(rule) if not any(_covers(one, single) for one in held)
    ]


def escalates(
    chain: Authorizer, rbac: Rbac, attributes: Attributes, kind: str, name: str, rules: Iterable[Rule]
) -> list[str]:
    """What the user would grant beyond what they hold, by writing or binding a role; empty if they may.

    `attributes` is the request that writes: on a role it needs `escalate`, on a binding `bind`.
    """
    held = (rule for rule, _ in rbac.rules_for(attributes))
    missing = uncovered(held, rules)
    if not missing:
        return []
    lifted = msgspec.structs.replace(
        attributes,
        verb="bind" if attributes.resource.endswith("bindings") else "escalate",
        group=GROUP,
        version="*",
        resource="roles" if kind == "Role" else "clusterroles",
        subresource="",
        name=name,
        conditions_mode=ConditionsMode.NONE,
    )
    return [] if chain.authorize(lifted).verdict is ALLOW else missing


def _single(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """A rule taken apart into rules of one verb, group, resource and name each."""
    for verb in sorted(rule.verbs):
        for url in rule.urls:
            yield f"{verb} {url}", Rule(frozenset((verb,)), urls=(url,))
        for group, resource, name in product(sorted(rule.groups), sorted(rule.resources), sorted(rule.names) or ("",)):
            single = Rule(
                frozenset((verb,)),
                frozenset((group,)),
                frozenset((resource,)),
                frozenset((name,)) if rule.names else frozenset(),
            )
            yield f"{verb} {resource}{f'.{group}' if group else ''}{f' `{name}`' if name else ''}", single


def _covers(owner: Rule, single: Rule) -> bool:
    if not (single.verbs <= owner.verbs or "*" in owner.verbs):
        return False
    if single.urls:
        return any(_url_covers(url, single.urls[0]) for url in owner.urls)
    (resource,) = single.resources
    subresource = resource.partition("/")[2]
    has_resource = (
        resource in owner.resources or "*" in owner.resources or (subresource and f"*/{subresource}" in owner.resources)
    )
    has_name = not owner.names or (bool(single.names) and single.names <= owner.names)
    return bool(("*" in owner.groups or single.groups <= owner.groups) and has_resource and has_name)


def _url_covers(owner: str, wanted: str) -> bool:
    if owner in ("*", wanted):
        return True
    return owner.endswith("*") and wanted.rstrip("*").startswith(owner.rstrip("*"))
