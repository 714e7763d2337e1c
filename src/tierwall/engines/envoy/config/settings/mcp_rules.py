"""Authorization at MCP servers by CEL, item by item (agentgateway, "MCP authorization").

Calls of tools and uses of prompts and resources are judged by the union of the rules of all levels. `mcp.tool` exists
only where a tool is called, and so on, so that reading the others fails. Messages that use no item pass, those that
list items, too. Unknown methods do not. A request without a message can only open the stream or end the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from envoy.config.rbac.v3 import rbac_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2 as rbac_filter_pb2

from tierwall.attach.place import BACKEND
from tierwall.engines.envoy.config.matchers import (
    OnMatch,
    all_of,
    any_of,
    first_of,
    header,
    header_predicate,
    lookup,
    matcher,
    packed,
)
from tierwall.engines.envoy.config.names import ITEMS, JOIN, JOINED, METHOD, OF_PROMPT, OF_RESOURCE, PATH
from tierwall.engines.envoy.config.rbac import action
from tierwall.engines.envoy.config.settings.authorization import rules_decision
from tierwall.engines.envoy.config.settings.conditions import item_condition
from tierwall.engines.envoy.config.settings.expressions import ItemKind
from tierwall.engines.envoy.config.settings.item_rules import ItemRules
from tierwall.engines.envoy.config.settings.predicates import condition_predicate
from tierwall.resources.resource import Resource
from tierwall.tool.methods import BASE_METHODS
from tierwall.tool.model import backend_of
from tierwall.tool.protocol import BY_URI, CALL, COMPLETION, GET_PROMPT, TASK_METHODS

MCP_RULES = "tierwall.mcp-rules"
_LISTS = ("prompts/list", "resources/list", "resources/templates/list")
_FREE_PREFIXES = ("logging/", "notifications/")
_ITEMS: Mapping[str, ItemKind] = {
    CALL: ItemKind.TOOL,
    **dict.fromkeys((GET_PROMPT, OF_PROMPT), ItemKind.PROMPT),
    **dict.fromkeys((*BY_URI, OF_RESOURCE), ItemKind.RESOURCE),
    **dict.fromkeys(TASK_METHODS, ItemKind.TASK),
}


class MessageFilters(NamedTuple):
    """The settings of filters for requests to a backend: for messages of MCP, and for plain HTTP.

    `judging` are the headers that rules look at, which a request may have only once.
    """

    of_messages: Mapping[str, Any] = {}
    of_plain: Mapping[str, Any] = {}
    judging: frozenset[str] = frozenset()
    # The rules about items, for those who cut lists.
    items: ItemRules | None = None
    # The servers whose items the lists have (`joined_backends`).
    joined: tuple[str, ...] = ()

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers that tell those who cut lists which rules there are, and which servers the lists are of."""
        rules = ((ITEMS, self.items.name),) if self.items is not None else ()
        return (*rules, (JOINED, ",".join(self.joined))) if self.joined else rules

    @property
    def reads_messages(self) -> bool:
        """Whether the filters need what Envoy reads of a message."""
        return MCP_RULES in self.of_messages or JOIN in self.of_messages

    def __or__(self, other: MessageFilters) -> MessageFilters:
        of_messages, of_plain = {**self.of_messages, **other.of_messages}, {**self.of_plain, **other.of_plain}
        return MessageFilters(
            of_messages, of_plain, self.judging | other.judging, other.items or self.items, other.joined or self.joined
        )


def mcp_rules(
    values: Sequence[Mapping[str, Any]], sources: Sequence[str], backend: Resource, target: str
) -> MessageFilters:
    """Return the filters for a server whose items these rules judge; `target` is its name in expressions."""
    allowed = action("no rule is about it", rbac_pb2.RBAC.ALLOW)
    denied = action("mcp.authorization", rbac_pb2.RBAC.DENY)

    def judged(item: ItemKind, method: str) -> OnMatch:
        def predicate(text: str, *path: str | int) -> Any:
            return condition_predicate(item_condition(text, item, method, target, *path))

        return rules_decision(values, sources, predicate)

    by_item = {item: judged(item, "") for item in ItemKind}
    completing = {OF_PROMPT, OF_RESOURCE}
    by_method = {
        method: judged(item, f"{COMPLETION}complete") if method in completing else by_item[item]
        for method, item in _ITEMS.items()
    }
    by_method |= dict.fromkeys((*BASE_METHODS, *_LISTS), allowed)
    others = lookup(header(METHOD), dict.fromkeys(_FREE_PREFIXES, allowed), denied, by_prefix=True)
    of_messages = _settings(lookup(header(METHOD), by_method, others))
    session = any_of([header_predicate(":method", exact=method) for method in ("GET", "DELETE")])
    if (backend.group, backend.kind) != BACKEND:
        # An AgentgatewayBackend has one path, whatever the client asks for.
        session = all_of([session, header_predicate(PATH, exact=backend_of(backend).path)])
    plain = first_of([(session, allowed)], denied)
    assert plain is not None
    of_plain = {MCP_RULES: _settings(plain)}
    return MessageFilters({MCP_RULES: of_messages}, of_plain, items=ItemRules.of(values, target))


def _settings(decision: OnMatch) -> Any:
    out = rbac_filter_pb2.RBACPerRoute()
    out.rbac.matcher.CopyFrom(matcher(decision))
    out.rbac.rules_stat_prefix = "settings_mcp_"
    return packed(out)
