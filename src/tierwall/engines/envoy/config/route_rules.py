"""Translates rules of HTTPRoutes to Envoy routes: matches, their precedence, and filters (Gateway API).

A pattern that Envoy refuses must never reach it: Envoy would refuse all routes of the listener with it. A rule with an
unknown filter, or an unknown setting of a filter, must not be served as if the filter were absent: it answers 500.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.cors.v3 import cors_pb2

from tierwall.attach.listener import Listener
from tierwall.engines.envoy.config.cors import cors_problem, origin_pattern
from tierwall.engines.envoy.config.header_changes import TOKEN, header_problems
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import CORS
from tierwall.engines.envoy.config.paths import UNSENDABLE_PATH, is_sendable, replace_path, replace_prefix, with_slash
from tierwall.engines.envoy.config.patterns import pattern_problem
from tierwall.resources.resource import Resource, list_of_maps, nested_map

_PATH_PRECEDENCE = {"Exact": 0, "RegularExpression": 1, "PathPrefix": 2}
MATCHES_NOTHING = r"[^\s\S]"  # no character at all
_SET = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_ADD = base_pb2.HeaderValueOption.APPEND_IF_EXISTS_OR_ADD
_RESPONSE_CODES = {301: 0, 302: 1, 303: 2, 307: 3, 308: 4}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]{0,1023}", re.ASCII)
_PLAIN_TEXT = re.compile(r"[!-~]{1,1024}", re.ASCII)
_DEFAULT_MAX_AGE_SECONDS = 5
# What to write instead, by how a problem begins.
_HINTS: Mapping[str, str] = {
    "filter ": "write it as a filter of the Gateway API, or in an AgentgatewayPolicy about the route",
    "a change of header `host`": "write URLRewrite with `hostname`",
    "a change of header ": "leave it out: Envoy sets it, or policies have judged the request by it",
    "a control character ": "leave the character out",
    UNSENDABLE_PATH: "write the character as `%` with two digits",
    "pattern ": "write a shorter pattern, or several matches; its syntax is that of RE2",
    "origin ": "write shorter origins",
    "`exposeHeaders` ": "name the headers",
    "replacing prefix ": "match a shorter prefix",
}


def route_match(value: Mapping[str, Any], max_program_size: int) -> Any:
    """Translate a match; an empty match is the prefix `/`, and a match with an unusable pattern matches nothing."""
    out = route_components_pb2.RouteMatch()
    kind, path = path_of(value)
    if unusable_pattern(value, max_program_size):
        out.safe_regex.regex = MATCHES_NOTHING
        return out
    if kind == "Exact":
        out.path = path
    elif kind == "RegularExpression":
        out.safe_regex.regex = path
    elif path == "/":
        out.prefix = "/"
    else:
        out.path_separated_prefix = path
    if isinstance(value.get("method"), str):
        out.headers.append(method_matcher(value["method"]))
    for name, header in _by_name(value.get("headers"), fold_case=True):
        _set_string_match(out.headers.add(name=name).string_match, header)
    for name, parameter in _by_name(value.get("queryParams"), fold_case=False):
        _set_string_match(out.query_parameters.add(name=name).string_match, parameter)
    return out


def plain_match(value: Mapping[str, Any]) -> Any:
    """Translate a match of a route that is closed: if Envoy could refuse any part of it, it matches nothing.

    Not even the types in such a route are certain. A condition that cannot be read must not vanish: the match would
    then answer for requests of other routes.
    """
    if not is_plain(value):
        return route_components_pb2.RouteMatch(safe_regex={"regex": MATCHES_NOTHING})
    return route_match(value, 0)


def is_plain(value: Mapping[str, Any]) -> bool:
    path, method = value.get("path", {}), value.get("method", "GET")
    entries = [value.get(field, []) for field in ("headers", "queryParams")]
    if not isinstance(path, dict) or not all(isinstance(entry, list) for entry in entries):
        return False
    kind, text = path.get("type", "PathPrefix"), path.get("value", "/")
    return (
        value.keys() <= {"path", "method", "headers", "queryParams"}
        and path.keys() <= {"type", "value"}
        and kind in ("Exact", "PathPrefix")
        and isinstance(text, str)
        and _PLAIN_PATH.fullmatch(text) is not None
        and isinstance(method, str)
        and TOKEN.fullmatch(method) is not None
        and all(_is_plain_entry(entry) for field in entries for entry in field)
    )


def _is_plain_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not entry.keys() <= {"type", "name", "value"}:
        return False
    name, text = entry.get("name"), entry.get("value")
    return (
        entry.get("type", "Exact") == "Exact"
        and isinstance(name, str)
        and TOKEN.fullmatch(name) is not None
        and isinstance(text, str)
        and _PLAIN_TEXT.fullmatch(text) is not None
    )


def unusable_pattern(value: Mapping[str, Any], max_program_size: int) -> str:
    """Return the first pattern of a match that Envoy would refuse, with the reason; or an empty string."""
    kind, path = path_of(value)
    patterns = [path] if kind == "RegularExpression" else []
    for field in ("headers", "queryParams"):
        entries = [entry for entry in list_of_maps(value.get(field)) if entry.get("type") == "RegularExpression"]
        patterns += [str(entry.get("value")) for entry in entries]
    for pattern in patterns:
        if problem := pattern_problem(pattern, max_program_size):
            return f"pattern `{pattern}`, {problem},"
    return ""


def method_matcher(name: str, invert: bool = False) -> Any:
    """Return a matcher for requests with this HTTP method, or, inverted, with any other."""
    out = route_components_pb2.HeaderMatcher(name=":method", invert_match=invert)
    out.string_match.exact = name
    return out


def precedence(route: Resource, rule: int, number: int, value: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a sort key: exact paths, longer paths, a method, more headers, more parameters, age, rule order."""
    kind, path = path_of(value)
    return (
        _PATH_PRECEDENCE.get(kind, 3),
        -len(path),
        value.get("method") is None,
        -len(list(_by_name(value.get("headers"), fold_case=True))),
        -len(list(_by_name(value.get("queryParams"), fold_case=False))),
        route.seniority,
        rule,
        number,
    )


def path_of(match: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind and the value of the path of a match, without the final slash of a prefix."""
    path = nested_map(match, "path")
    kind, value = str(path.get("type") or "PathPrefix"), str(path.get("value") or "/")
    return kind, (value.rstrip("/") or "/") if kind == "PathPrefix" else value


def _by_name(value: object, fold_case: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield matches by name; of several with equivalent names only the first counts."""
    seen: set[str] = set()
    for entry in list_of_maps(value):
        name = str(entry.get("name"))
        key = name.lower() if fold_case else name
        if key not in seen:
            seen.add(key)
            yield name, entry


def _set_string_match(matcher: Any, value: Mapping[str, Any]) -> None:
    if value.get("type") == "RegularExpression":
        matcher.safe_regex.regex = str(value.get("value"))
    else:
        matcher.exact = str(value.get("value"))


def apply_filters(
    route: Any, match: Mapping[str, Any], filters: object, listener: Listener, max_program_size: int
) -> str:
    """Apply a rule's filters to an Envoy route; return the first that cannot be applied, or an empty string."""
    unsupported = unusable_pattern(match, max_program_size)
    for entry in list_of_maps(filters):
        unsupported = unsupported or _apply_filter(route, match, entry, listener, max_program_size)
    return unsupported


def hint_about(problem: str) -> str:
    """Return what to write instead of what cannot be applied, or an empty string."""
    return next((words for begin, words in _HINTS.items() if problem.lower().startswith(begin.lower())), "")


def _apply_filter(
    route: Any, match: Mapping[str, Any], entry: Mapping[str, Any], listener: Listener, max_program_size: int
) -> str:
    kind = entry.get("type")
    if kind == "RequestHeaderModifier":
        change = nested_map(entry, "requestHeaderModifier")
        return modify_headers(change, route.request_headers_to_add, route.request_headers_to_remove)
    if kind == "ResponseHeaderModifier":
        change = nested_map(entry, "responseHeaderModifier")
        return modify_headers(change, route.response_headers_to_add, route.response_headers_to_remove)
    if kind == "URLRewrite":
        return _set_rewrite(route, match, nested_map(entry, "urlRewrite"), max_program_size)
    if kind == "RequestRedirect":
        return _set_redirect(route, match, nested_map(entry, "requestRedirect"), listener, max_program_size)
    if kind == "CORS":
        return set_cors(route, nested_map(entry, "cors"), max_program_size)
    if kind == "RequestMirror":
        return ""  # `mirrors` adds the copies
    return f"filter {kind}"


def modify_headers(value: Mapping[str, Any], add: Any, remove: Any) -> str:
    """Add the changes of headers to those of a route; return the first that cannot be made, or an empty string."""
    for problem in header_problems(value):
        return problem.message
    for field, action in (("set", _SET), ("add", _ADD)):
        for header in list_of_maps(value.get(field)):
            # Values are literal; an unescaped `%` would start one of Envoy's commands.
            content = str(header.get("value")).replace("%", "%%")
            add.add(append_action=action, header={"key": str(header.get("name")), "value": content})
    remove.extend(_strings(value, "remove"))
    return ""


def _set_rewrite(route: Any, match: Mapping[str, Any], value: Mapping[str, Any], max_program_size: int) -> str:
    if isinstance(value.get("hostname"), str):
        route.route.host_rewrite_literal = value["hostname"]
    path = value.get("path")
    if not isinstance(path, dict):
        return ""
    if not _is_sendable(path):
        return UNSENDABLE_PATH
    if path.get("type") == "ReplaceFullPath":
        replace_path(route.route, str(path.get("replaceFullPath") or ""))
        return ""
    return replace_prefix(route.route, match, with_slash(path.get("replacePrefixMatch")), max_program_size)


def _set_redirect(
    route: Any, match: Mapping[str, Any], value: Mapping[str, Any], listener: Listener, max_program_size: int
) -> str:
    action: Any = route_components_pb2.RedirectAction()
    if isinstance(value.get("scheme"), str):
        action.scheme_redirect = value["scheme"]
    if isinstance(value.get("hostname"), str):
        action.host_redirect = value["hostname"]
    action.port_redirect = _redirect_port(value, listener)
    code = value.get("statusCode")
    action.response_code = _RESPONSE_CODES.get(code if type(code) is int else 302, 1)
    path = value.get("path")
    unsupported = ""
    if isinstance(path, dict):
        if not _is_sendable(path):
            unsupported = UNSENDABLE_PATH
        elif path.get("type") == "ReplaceFullPath":
            action.path_redirect = with_slash(path.get("replaceFullPath"))
        else:
            unsupported = replace_prefix(action, match, with_slash(path.get("replacePrefixMatch")), max_program_size)
    route.redirect.CopyFrom(action)
    return unsupported


def _is_sendable(path: Mapping[str, Any]) -> bool:
    return all(is_sendable(path.get(field) or "") for field in ("replaceFullPath", "replacePrefixMatch"))


def _redirect_port(value: Mapping[str, Any], listener: Listener) -> int:
    """Return the port of a redirect: the given one, that of the given scheme, or the listener's; 0 to leave it out.

    A given host name has no port. The client's own host may contain the listener's port, and keeps it unless the
    redirect sets one.
    """
    given, listener_port, protocol = value.get("port"), listener.port, listener.protocol.lower()
    scheme = str(value.get("scheme") or protocol)
    default = _DEFAULT_PORTS.get(scheme, listener_port) if value.get("scheme") else listener_port
    port = given if type(given) is int else default
    host_has_no_port = isinstance(value.get("hostname"), str) or listener_port == _DEFAULT_PORTS.get(protocol)
    if port == _DEFAULT_PORTS.get(scheme) and host_has_no_port:
        return 0
    return port


def set_cors(route: Any, value: Mapping[str, Any], max_program_size: int) -> str:
    """Configure the CORS filter (`HTTPCORSFilter`): the origins whose pages may read answers in a browser.

    The filter runs before policies. It answers preflight requests itself, so they never reach the backend. Every other
    request continues to the policies, whatever its origin: CORS protects browsers, not backends.
    """
    if problem := cors_problem(value, max_program_size):
        return problem
    with_credentials = value.get("allowCredentials") is True
    out = cors_pb2.CorsPolicy()
    for origin in _strings(value, "allowOrigins"):
        matcher = out.allow_origin_string_match.add()
        if "*" not in origin:
            matcher.exact = origin
            continue
        matcher.safe_regex.regex = origin_pattern(origin)
    # If these are `*`, Envoy answers with what the browser asks for.
    out.allow_methods = ", ".join(_strings(value, "allowMethods"))
    out.allow_headers = ", ".join(_strings(value, "allowHeaders"))
    out.expose_headers = ", ".join(_strings(value, "exposeHeaders"))
    age = value.get("maxAge")
    out.max_age = str(age if type(age) is int else _DEFAULT_MAX_AGE_SECONDS)
    out.allow_credentials.value = with_credentials
    out.forward_not_matching_preflights.value = False
    route.typed_per_filter_config[CORS].CopyFrom(packed(out))
    return ""


def _strings(value: Mapping[str, Any], field: str) -> list[str]:
    strings = value.get(field)
    return [str(string) for string in strings] if isinstance(strings, list) else []
