"""Authorization by CEL: the union of the rules of all levels (agentgateway, "Authorization").

Any Deny that is true denies. Every Require must be true. If there are Allows, one of them must be true. An expression
that fails is false. Envoy tries the rules in this order and reports the policy whose rule decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envoy.config.rbac.v3 import rbac_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2 as rbac_filter_pb2

from tierwall.engines.envoy.config.matchers import OnMatch, Predicate, first_of, matcher
from tierwall.engines.envoy.config.names import reported
from tierwall.engines.envoy.config.rbac import action
from tierwall.engines.envoy.config.settings.conditions import setting_condition
from tierwall.engines.envoy.config.settings.expressions import is_valid
from tierwall.engines.envoy.config.settings.filters import authorization_filter
from tierwall.engines.envoy.config.settings.predicates import condition_predicate, negated
from tierwall.engines.envoy.config.settings.traffic import RouteChange, turned_on
from tierwall.gateway.model.fields import Phase
from tierwall.resources.resource import nested_map


def authorization(values: Sequence[Mapping[str, Any]], sources: Sequence[str], phase: Phase) -> RouteChange:
    """Return the change of a route whose requests need these rules; each value has a source."""
    out = rbac_filter_pb2.RBACPerRoute()
    out.rbac.matcher.CopyFrom(matcher(rules_decision(values, sources, _predicate)))
    out.rbac.rules_stat_prefix = f"settings_{phase}_"
    return turned_on(authorization_filter(phase), out)


def _predicate(text: str, *path: str | int) -> Predicate:
    return condition_predicate(setting_condition(text, *path))


def rules_decision(
    values: Sequence[Mapping[str, Any]], sources: Sequence[str], predicate: Callable[..., Predicate]
) -> OnMatch:
    """Return the decision of all rules; `predicate` makes one of an expression, with the path to it."""
    denies: list[tuple[Predicate, OnMatch]] = []
    requires: list[tuple[Predicate, OnMatch]] = []
    allows: list[tuple[Predicate, OnMatch]] = []
    has_allow = False
    denied = ""
    for value, source in zip(values, sources, strict=True):
        kind = value.get("action", "Allow")
        name = reported(source)
        deny, allow = (action(name, act) for act in (rbac_pb2.RBAC.DENY, rbac_pb2.RBAC.ALLOW))
        has_allow = has_allow or kind == "Allow"
        denied = name if kind == "Allow" else denied
        for number, text in enumerate(nested_map(value, "policy").get("matchExpressions") or ()):
            if not is_valid(text):
                # It is never true.
                requires += [(_always(), deny)] if kind == "Require" else []
                continue
            holds = predicate(text, "policy", "matchExpressions", number)
            if kind == "Deny":
                denies.append((holds, deny))
            elif kind == "Require":
                requires.append((negated(holds), deny))
            else:
                allows.append((holds, allow))
    rules = [*denies, *requires, *allows]
    otherwise = action(denied, rbac_pb2.RBAC.DENY) if has_allow else action("no rule denies", rbac_pb2.RBAC.ALLOW)
    decision = first_of(rules, otherwise)
    assert decision is not None
    return decision


def _always() -> Predicate:
    return _predicate("true")
