"""Translates rules of HTTPRoutes to Envoy routes: matches and filters (Gateway API).

A pattern that Envoy refuses must never reach it: Envoy would refuse all routes of the listener with it. A rule with an
unknown filter, or an unknown setting of a filter, must not be served as if the filter were absent: it answers 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.cors.v3 import cors_pb2

from tierwall.attach.listener import Listener
from tierwall.engines.envoy.config.cors import cors_problem, origin_pattern
from tierwall.engines.envoy.config.header_changes import header_problems, headers_of_filter
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import CORS
from tierwall.engines.envoy.config.paths import replace_path, replace_prefix, with_slash
from tierwall.engines.envoy.config.route_matches import by_name, is_plain, path_of, unusable_pattern
from tierwall.engines.envoy.config.rule_problems import filter_problem
from tierwall.resources.resource import list_of_maps, nested_map

MATCHES_NOTHING = r"[^\s\S]"  # no character at all
_SET = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_ADD = base_pb2.HeaderValueOption.APPEND_IF_EXISTS_OR_ADD
_RESPONSE_CODES = {301: 0, 302: 1, 303: 2, 307: 3, 308: 4}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_DEFAULT_MAX_AGE_SECONDS = 5


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
    for name, header in by_name(value.get("headers"), fold_case=True):
        _set_string_match(out.headers.add(name=name).string_match, header)
    for name, parameter in by_name(value.get("queryParams"), fold_case=False):
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


def method_matcher(name: str, invert: bool = False) -> Any:
    """Return a matcher for requests with this HTTP method, or, inverted, with any other."""
    out = route_components_pb2.HeaderMatcher(name=":method", invert_match=invert)
    out.string_match.exact = name
    return out


def _set_string_match(matcher: Any, value: Mapping[str, Any]) -> None:
    if value.get("type") == "RegularExpression":
        matcher.safe_regex.regex = str(value.get("value"))
    else:
        matcher.exact = str(value.get("value"))


def apply_filters(
    route: Any, match: Mapping[str, Any], filters: object, listener: Listener, max_program_size: int
) -> str:
    """Apply a rule's filters to an Envoy route; return the first that cannot be applied, or an empty string."""
    unsupported = filter_problem(match, filters, max_program_size)
    for entry in list_of_maps(filters) if not unsupported else ():
        _apply_filter(route, match, entry, listener, max_program_size)
    return unsupported


def _apply_filter(
    route: Any, match: Mapping[str, Any], entry: Mapping[str, Any], listener: Listener, max_program_size: int
) -> None:
    # `mirrors` adds the copies.
    kind, change = entry.get("type"), headers_of_filter(entry)
    if kind == "RequestHeaderModifier":
        modify_headers(change, route.request_headers_to_add, route.request_headers_to_remove)
    elif kind == "ResponseHeaderModifier":
        modify_headers(change, route.response_headers_to_add, route.response_headers_to_remove)
    elif kind == "URLRewrite":
        _set_rewrite(route, match, nested_map(entry, "urlRewrite"))
    elif kind == "RequestRedirect":
        _set_redirect(route, match, nested_map(entry, "requestRedirect"), listener)
    elif kind == "CORS":
        set_cors(route, nested_map(entry, "cors"), max_program_size)


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


def _set_rewrite(route: Any, match: Mapping[str, Any], value: Mapping[str, Any]) -> None:
    if isinstance(value.get("hostname"), str):
        route.route.host_rewrite_literal = value["hostname"]
    path = value.get("path")
    if not isinstance(path, dict):
        return
    if path.get("type") == "ReplaceFullPath":
        replace_path(route.route, str(path.get("replaceFullPath") or ""))
    else:
        replace_prefix(route.route, match, with_slash(path.get("replacePrefixMatch")))


def _set_redirect(route: Any, match: Mapping[str, Any], value: Mapping[str, Any], listener: Listener) -> None:
    action: Any = route_components_pb2.RedirectAction()
    if isinstance(value.get("scheme"), str):
        action.scheme_redirect = value["scheme"]
    if isinstance(value.get("hostname"), str):
        action.host_redirect = value["hostname"]
    action.port_redirect = _redirect_port(value, listener)
    code = value.get("statusCode")
    action.response_code = _RESPONSE_CODES.get(code if type(code) is int else 302, 1)
    path = value.get("path")
    if isinstance(path, dict):
        if path.get("type") == "ReplaceFullPath":
            action.path_redirect = with_slash(path.get("replaceFullPath"))
        else:
            replace_prefix(action, match, with_slash(path.get("replacePrefixMatch")))
    route.redirect.CopyFrom(action)


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
