"""AccessPolicy of both `v0alpha0` groups in the one form (docs/tool.md#three-generations-one-form).

docs/semantics.md#a-caller-that-no-rule-names-is-denied, docs/semantics.md#a-named-caller-may-use-all-but-calls.

A caller that no rule names is denied everything. One that a rule names may use every method but `tools/call`, open and
end its session, and call what the rule grants: the listed tools, or what the expression is true of. An ExternalAuth
rule sends every request of its caller to the authorizer. Where other rules name the same caller as well, the stricter
reading holds: the authorizer must say Allow, and one of the others must grant the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, assert_never

from tierwall.resources.resource import Resource
from tierwall.tool.condition import condition
from tierwall.tool.http_match import EVERY_REQUEST
from tierwall.tool.methods import ALL_BUT_CALLS, SESSION_HTTP, Method
from tierwall.tool.request import CALL
from tierwall.tool.rules import Policy, Rule, Rules
from tierwall.tool.scope import Names
from tierwall.tool.sources import Source, source_of


class Authorization(StrEnum):
    """How a rule says which calls it grants."""

    INLINE_TOOLS = "InlineTools"
    CEL = "CEL"
    EXTERNAL_AUTH = "ExternalAuth"


def read(policy: Resource, spec: Mapping[str, Any], names: Callable[[str, Iterable[str]], Names]) -> Policy:
    """An admitted policy; `spec` has its nulls pruned, `names` reads the names of tools."""
    asks: list[Rule] = []
    authorizer: Mapping[str, Any] | None = None
    allows: list[Rule] = []
    for index, rule in enumerate(spec["rules"]):
        authorization = rule.get("authorization") or {"type": "InlineTools", "tools": rule.get("tools") or ()}
        source = source_of(rule["source"], policy.namespace)
        kind = Authorization(authorization["type"])
        match kind:
            case Authorization.EXTERNAL_AUTH:
                asks.append(_rule(index, rule, source, Method(CALL)))
                authorizer = authorization["externalAuth"]  # admission takes one such rule a policy
            case Authorization.CEL:
                call = Method(CALL, None, condition(authorization["cel"]["expression"]))
                allows.append(_rule(index, rule, source, call))
            case Authorization.INLINE_TOOLS:
                allows.append(_rule(index, rule, source, Method(CALL, names(CALL, authorization["tools"]))))
            case _:
                assert_never(kind)
    named = {rule.source for rule in allows}
    allows += [rule for rule in asks if rule.source not in named]
    return Policy(policy, Rules(allows), Rules(asks), (), policy.reference, authorizer)


def _rule(index: int, rule: Mapping[str, Any], source: Source, call: Method) -> Rule:
    clauses = (ALL_BUT_CALLS, SESSION_HTTP, call)
    return Rule(f"rules[{index}]", ("spec", "rules", index), rule.get("name"), source, EVERY_REQUEST, clauses)
