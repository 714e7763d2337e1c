"""Observations of `backend.mcp.authorization`: calls of tools, and uses of prompts and resources that rules name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tierwall.engines.envoy.config.mcp import ACCEPTABLE
from tierwall.engines.envoy.config.names import METHOD
from tierwall.engines.envoy.config.settings.expressions import is_valid
from tierwall.engines.envoy.config.settings.item_rules import ItemRules
from tierwall.engines.envoy.control.item_view import ItemView, request_variables
from tierwall.engines.envoy.probe.credentials import HEADER_NAME, asks_for_callers, literal_words
from tierwall.engines.envoy.probe.observations import Explains, ProbeClient, Unobservable
from tierwall.tool.protocol import CALL, GET_PROMPT, READ

_MAX_REQUESTS = 60
_OTHER = "tierwall-other"
_KEYS = {CALL: "name", GET_PROMPT: "name", READ: "uri"}
_HOST, _PATH = "tierwall.test", "/"
# The method, the name of the item, and the headers of a request.
_Use = tuple[str, str, Mapping[str, str]]


def item_rules(client: ProbeClient, values: Sequence[Sequence[Any]], target: str) -> Explains:
    """Use items that the expressions name, and one that they do not. A value is a list of rules."""
    texts = [text for rules in values for _, text in ItemRules.of(rules, target).expressions if is_valid(text)]
    if asks_for_callers(texts):
        raise Unobservable("its expressions ask for more than a request without credentials has")
    seen = [(use, _passes(client, *use)) for use in islice(_uses(literal_words(texts)), _MAX_REQUESTS)]
    return lambda rules: all(passed == _permits(ItemRules.of(rules or (), target), *use) for use, passed in seen)


def _uses(words: Sequence[str]) -> Iterator[_Use]:
    names = [word for word in words if word.isprintable() and word == word.strip()]
    for method in _KEYS:
        for name in (*names, _OTHER):
            yield method, name, {}
    for header in (word for word in words if HEADER_NAME.fullmatch(word)):
        for name in names:
            yield from ((CALL, tool, {header: name}) for tool in (*names, _OTHER))


def _passes(client: ProbeClient, method: str, name: str, headers: Mapping[str, str]) -> bool:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {_KEYS[method]: name}}
    given = {"content-type": "application/json", "accept": ", ".join(ACCEPTABLE), **headers}
    return client.send("POST", _PATH, given, json.dumps(message).encode()).passed


def _permits(rules: ItemRules, method: str, name: str, headers: Mapping[str, str]) -> bool:
    request = {":method": "POST", ":path": _PATH, ":authority": _HOST, ":scheme": "http", METHOD: method}
    # Every request of a test has these.
    sent = {"host": _HOST, "content-type": "application/json", "accept": ", ".join(ACCEPTABLE)}
    variables = request_variables({**request, **sent, **{key.lower(): text for key, text in headers.items()}}, None, "")
    return ItemView(rules, variables).shown(method)(name)
