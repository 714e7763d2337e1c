"""The items that the rules of `backend.mcp.authorization` let a caller use (docs/gateway.md#backends).

The rules are evaluated for each entry of a list, as agentgateway does it: with the request for the list, and with
`mcp.tool`, `mcp.prompt` or `mcp.resource` for the entry. An expression that fails is false.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from tierwall.cel import CostExceeded, Environment, Failure, ParseError, Program
from tierwall.cel.evaluate.program import compile
from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.names import HEADER_PREFIX, METHOD, USER
from tierwall.engines.envoy.config.settings.item_rules import ItemRules
from tierwall.engines.envoy.control.cpu_limit import CpuLimit
from tierwall.tool.joined import joined_name
from tierwall.tool.protocol import BY_URI, CALL, GET_PROMPT, READ
from tierwall.tool.request import SESSION_HEADER

# Returns the rules with a name, or None.
RulesOf = Callable[[str], ItemRules | None]
_ITEMS = {CALL: "tool", GET_PROMPT: "prompt", READ: "resource"}
_ENVIRONMENT = Environment(extensions=True)
# The most that one list may cost, since all lists share one process: evaluations, seconds of CPU, and for each
# evaluation the units of CEL. What comes after that is not shown, nor are longer names.
MOST_EVALUATIONS, MOST_SECONDS, MOST_UNITS = 100_000, 0.5, 20_000
LONGEST_NAME = 10_000


@lru_cache(maxsize=4096)
def _program(text: str) -> Program | None:
    try:
        return compile(text, _ENVIRONMENT)
    except ParseError:
        return None


@lru_cache(maxsize=4096)
def _reads_item(text: str) -> bool:
    program = _program(text)
    return program is not None and "mcp" in ast.names(program.tree)


def request_variables(headers: Mapping[str, str], claims: object, address: str) -> dict[str, Any]:
    """Return the variables of a request; `address` is its source with a port, `claims` those of a checked token."""
    path = headers.get(":path", "/")
    out: dict[str, Any] = {
        "request": {
            "method": headers.get(":method", ""),
            "path": path.partition("?")[0],
            "pathAndQuery": path,
            "host": headers.get(":authority", ""),
            "scheme": headers.get(":scheme", ""),
            "headers": {name: value for name, value in headers.items() if not name.startswith((":", HEADER_PREFIX))},
        },
        "mcp": {"methodName": headers.get(METHOD, "")},
    }
    if SESSION_HEADER in headers:
        out["mcp"]["sessionId"] = headers[SESSION_HEADER]
    if claims:
        out["jwt"] = claims
    if headers.get(USER):
        out["basicAuth"] = {"username": headers[USER]}
    if address:
        out["source"] = {"address": address.rpartition(":")[0].strip("[]")}
    return out


class ItemView:
    """The items that a caller may use by some rules, for one request."""

    def __init__(self, rules: ItemRules, variables: Mapping[str, Any]) -> None:
        self._rules = rules
        self._variables = variables
        self._left = MOST_EVALUATIONS
        # The values of expressions that are the same for all items.
        self._constant: dict[str, bool] = {}

    def shown(self, use: str, target: str = "") -> Callable[[str], bool]:
        """Return whether a request with this method may use an item, by the item's name.

        `target` is the server of the item, if rules do not know it: one of those that are joined.
        """
        known: dict[str, bool] = {}
        limit = CpuLimit(MOST_SECONDS)

        def is_shown(name: str) -> bool:
            if name not in known:
                known[name] = self._may_use(_ITEMS[use], name, target or self._rules.target, limit)
            return known[name]

        return is_shown

    def _may_use(self, kind: str, name: str, target: str, limit: CpuLimit) -> bool:
        self._left -= len(self._rules.expressions)
        if self._left < 0 or len(name) > LONGEST_NAME or limit.is_reached:
            return False
        try:
            return self._is_permitted(kind, name, target)
        except CostExceeded:
            # Whether it is true, nobody knows.
            return False

    def _is_permitted(self, kind: str, name: str, target: str) -> bool:
        item = {"name": name, "target": target}
        variables = {**self._variables, "mcp": {**self._variables["mcp"], kind: item}}
        by_action: dict[str, list[bool]] = {"Deny": [], "Require": [], "Allow": []}
        for action, text in self._rules.expressions:
            by_action.setdefault(action, []).append(self._holds(text, variables))
        is_allowed = any(by_action["Allow"]) or "Allow" not in self._rules.actions
        return not any(by_action["Deny"]) and all(by_action["Require"]) and is_allowed

    def _holds(self, text: str, variables: Mapping[str, Any]) -> bool:
        if _reads_item(text):
            return _is_true(text, variables)
        if text not in self._constant:
            self._constant[text] = _is_true(text, variables)
        return self._constant[text]


def _is_true(text: str, variables: Mapping[str, Any]) -> bool:
    program = _program(text)
    try:
        return program is not None and program.evaluate(variables, MOST_UNITS) is True
    except CostExceeded:
        raise
    except Failure:
        return False


def joined_view(
    targets: Collection[str], by_policies: Callable[[str], Callable[[str], bool]], items: ItemView | None
) -> Callable[[str], Callable[[str], bool]]:
    """Return what is shown of the lists of joined servers: entries are judged by the names that their servers give."""

    def shown(use: str) -> Callable[[str], bool]:
        passes = by_policies(use)
        permits = {target: items.shown(use, target) for target in targets} if items is not None else {}

        def is_shown(name: str) -> bool:
            item = joined_name(targets, name, use in BY_URI)
            if item is None or not passes(item[1]):
                return False
            return items is None or permits[item[0]](item[1])

        return is_shown

    return shown
