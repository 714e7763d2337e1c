"""Observations of settings that let some callers pass: tokens, passwords, keys, services, rules by expression."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tierwall.cel import Environment, Failure
from tierwall.cel.evaluate.program import compile
from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.settings import authentication
from tierwall.engines.envoy.config.settings.expressions import is_valid, parsed
from tierwall.engines.envoy.probe.observations import Explains, ProbeClient, Unobservable
from tierwall.engines.envoy.probe.staging import StagedSnapshot, password_of
from tierwall.resources.resource import Resource, nested_map

_HEADER = {"name": "Authorization", "prefix": "Bearer "}
_ENVIRONMENT = Environment(extensions=True)
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")
_MAX_REQUESTS = 60
_HOST = "tierwall.test"
# Names of headers that a client may send, and that Envoy does not set itself.
HEADER_NAME = re.compile(
    r"(?!x-(forwarded|envoy|request|tierwall)-|host$|content-)[a-z][a-z0-9-]*", re.ASCII | re.IGNORECASE
)
# Facts that only an authenticated request has.
_OF_CALLERS = ("jwt", "basicAuth", "apiKey", "source")


def tokens(client: ProbeClient, stage: StagedSnapshot, values: Sequence[Any]) -> Explains:
    """Send no token, then one of every provider of every value."""
    without = client.send().passed
    seen = []
    for value in values:
        for provider in value["providers"]:
            passed = _with_credential(client, nested_map(value, "location"), stage.token(provider))
            seen.append((value, provider, passed))

    def explains(value: Any) -> bool:
        if value is None:
            return without and all(passed for _, _, passed in seen)
        mode = value.get("mode", "Strict")
        for other, provider, passed in seen:
            known = provider in value["providers"]
            is_read = nested_map(other, "location") == nested_map(value, "location")
            may = mode == "Permissive" or (known if is_read else mode == "Optional")
            if passed != may:
                return False
        return bool(without == (mode != "Strict"))

    return explains


def _with_credential(client: ProbeClient, location: Mapping[str, Any], credential: str) -> bool:
    """Send a request with a credential where a setting looks for it; return whether it passes."""
    if "queryParameter" in location:
        return client.send(path=f"/?{location['queryParameter']['name']}={credential}").passed
    if "cookie" in location:
        return client.send(headers={"cookie": f"{location['cookie']['name']}={credential}"}).passed
    header = location.get("header", _HEADER)
    return client.send(headers={header["name"]: f"{header.get('prefix', '')}{credential}"}).passed


def passwords(client: ProbeClient, policies: Sequence[Resource], values: Sequence[Any]) -> Explains:
    """Send no password, then that of every policy."""
    without = client.send().passed
    passed = []
    for policy in policies:
        text = base64.b64encode(f"tierwall:{password_of(policy)}".encode()).decode()
        passed.append(client.send(headers={"authorization": f"Basic {text}"}).passed)

    def explains(value: Any) -> bool:
        if value is None:
            return without and all(passed)
        return not without and passed == [other.get("users") == value.get("users") for other in values]

    return explains


def api_keys(
    client: ProbeClient, stage: StagedSnapshot, policies: Sequence[Resource], values: Sequence[Any]
) -> Explains:
    """Send no key, then one of every policy."""
    keys = [authentication.key_list(stage.snapshot, *pair) for pair in zip(policies, values, strict=True)]
    without = client.send().passed
    places = [nested_map(value, "location") for value in values]
    passed = [_with_credential(client, place, key[0]) for place, key in zip(places, keys, strict=True)]

    def explains(value: Any) -> bool:
        if value is None or value.get("mode") == "Permissive":
            return without and all(passed)
        number = values.index(value)
        wanted = [place == places[number] and key[0] in keys[number] for place, key in zip(places, keys, strict=True)]
        return not without and passed == wanted

    return explains


def authorization(client: ProbeClient, values: Sequence[Sequence[Any]]) -> Explains:
    """Send requests with the paths, methods and headers that expressions name. A value is a list of rules."""
    texts = list(dict.fromkeys(text for rules in values for rule in rules for text in expressions_of(rule)))
    if asks_for_callers(texts):
        raise Unobservable("its expressions ask for more than a request without credentials has")
    seen = [(request, client.send(*request).passed) for request in islice(_requests(texts), _MAX_REQUESTS)]
    return lambda rules: all(passed == _permits(rules or (), *request) for request, passed in seen)


def asks_for_callers(texts: Iterable[str]) -> bool:
    """Whether expressions ask for facts that only an authenticated request has."""
    trees = (parsed(text) for text in texts if is_valid(text))
    return any(isinstance(node, ast.Ident) and node.name in _OF_CALLERS for tree in trees for node in _nodes(tree))


def literal_words(texts: Iterable[str]) -> list[str]:
    """Return the texts in ASCII that expressions compare with."""
    trees = (parsed(text) for text in texts if is_valid(text))
    values = (node.value for tree in trees for node in _nodes(tree) if isinstance(node, ast.Literal))
    return list(dict.fromkeys(word for word in values if isinstance(word, str) and word.isascii() and word))


def expressions_of(rule: Mapping[str, Any]) -> Sequence[str]:
    """Return the expressions of a rule."""
    expressions: Sequence[str] = nested_map(rule, "policy").get("matchExpressions") or ()
    return expressions


def _requests(texts: Sequence[str]) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yield requests in the words of expressions."""
    words = literal_words(texts)
    yield "GET", "/", {}
    for method in _METHODS[1:]:
        yield method, "/", {}
    for word in words:
        if word.startswith("/") and word.isprintable() and " " not in word:
            yield "GET", word, {}
            yield "GET", f"{word.rstrip('/')}/more", {}
    names = [word for word in words if HEADER_NAME.fullmatch(word)]
    for name in names:
        for word in words:
            if word.isprintable() and word == word.strip():
                yield "GET", "/", {name: word}


def _permits(rules: Sequence[Mapping[str, Any]], method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Whether rules permit a request."""
    facts = {"method": method, "path": path, "pathAndQuery": path, "host": _HOST, "scheme": "http"}
    # Every request of a test has these.
    sent = {"host": _HOST, **{name.lower(): value for name, value in headers.items()}}
    return permits(rules, {"request": {**facts, "headers": sent}})


def permits(rules: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> bool:
    """Whether rules permit what these variables describe (agentgateway, "Authorization")."""
    held: dict[str, list[bool]] = {"Allow": [], "Deny": [], "Require": []}
    for rule in rules:
        held[rule.get("action", "Allow")] += [_holds(text, variables) for text in expressions_of(rule)]
    return not any(held["Deny"]) and all(held["Require"]) and (not held["Allow"] or any(held["Allow"]))


def _holds(text: str, variables: Mapping[str, Any]) -> bool:
    if not is_valid(text):
        return False
    try:
        return compile(text, _ENVIRONMENT).evaluate(variables) is True
    except Failure:
        return False


def _nodes(tree: ast.Expr) -> Iterator[ast.Expr]:
    yield tree
    for child in ast.children(tree):
        yield from _nodes(child)
