"""Filters of HTTPRoute rules that Envoy's routes express: header changes, rewrites, redirects (Gateway API).

A rule with a filter that is not among them, or that says something unknown, must not be served as if the filter were
not there: it answers 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2

from tierwall.attach.section import maps

_SET = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_ADD = base_pb2.HeaderValueOption.APPEND_IF_EXISTS_OR_ADD
_REDIRECTS = {301: 0, 302: 1, 303: 2, 307: 3, 308: 4}


def apply(route: Any, match: Mapping[str, Any], filters: object) -> str:
    """Apply a rule's filters to a route of Envoy; what cannot be applied, or nothing."""
    for one in maps(filters):
        kind = one.get("type")
        if kind == "RequestHeaderModifier":
            _headers(one.get("requestHeaderModifier"), route.request_headers_to_add, route.request_headers_to_remove)
        elif kind == "ResponseHeaderModifier":
            _headers(one.get("responseHeaderModifier"), route.response_headers_to_add, route.response_headers_to_remove)
        elif kind == "URLRewrite":
            _rewrite(route, match, one.get("urlRewrite"))
        elif kind == "RequestRedirect":
            _redirect(route, match, one.get("requestRedirect"))
        else:
            return f"filter {kind}"
    return ""


def _headers(value: object, add: Any, remove: Any) -> None:
    value = value if isinstance(value, dict) else {}
    for field, how in (("set", _SET), ("add", _ADD)):
        for one in maps(value.get(field)):
            # Values are texts; a `%` would start one of Envoy's commands.
            option = add.add(append_action=how)
            option.header.key = str(one.get("name"))
            option.header.value = str(one.get("value")).replace("%", "%%")
    gone = value.get("remove")
    remove.extend([str(name) for name in gone] if isinstance(gone, list) else ())


def _rewrite(route: Any, match: Mapping[str, Any], value: object) -> None:
    value = value if isinstance(value, dict) else {}
    if isinstance(value.get("hostname"), str):
        route.route.host_rewrite_literal = value["hostname"]
    path = value.get("path")
    if isinstance(path, dict):
        if path.get("type") == "ReplaceFullPath":
            route.route.regex_rewrite.pattern.regex = "(?s)^/[^?]*"
            route.route.regex_rewrite.substitution = _literal(str(path.get("replaceFullPath") or "/"))
        else:
            _replace_prefix(route.route, match, str(path.get("replacePrefixMatch") or "/"))


def _replace_prefix(action: Any, match: Mapping[str, Any], to: str) -> None:
    found = match.get("path")
    prefix = str(found.get("value") or "/") if isinstance(found, dict) else "/"
    prefix, to = prefix.rstrip("/"), to.rstrip("/")
    if not prefix:
        action.prefix_rewrite = f"{to}/"
    elif to:
        action.prefix_rewrite = to
    else:
        # `/a` to `/`: `/a` and `/a/b` become `/` and `/b`.
        action.regex_rewrite.pattern.regex = f"^{_quoted(prefix)}/*"
        action.regex_rewrite.substitution = "/"


def _redirect(route: Any, match: Mapping[str, Any], value: object) -> None:
    value = value if isinstance(value, dict) else {}
    action: Any = route_components_pb2.RedirectAction()
    if isinstance(value.get("scheme"), str):
        action.scheme_redirect = value["scheme"]
    if isinstance(value.get("hostname"), str):
        action.host_redirect = value["hostname"]
    if type(value.get("port")) is int:
        action.port_redirect = value["port"]
    code = value.get("statusCode")
    action.response_code = _REDIRECTS.get(code if type(code) is int else 302, 1)
    path = value.get("path")
    if isinstance(path, dict):
        if path.get("type") == "ReplaceFullPath":
            action.path_redirect = str(path.get("replaceFullPath") or "/")
        else:
            _replace_prefix(action, match, str(path.get("replacePrefixMatch") or "/"))
    route.redirect.CopyFrom(action)


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\")


def _quoted(text: str) -> str:
    return "".join(one if one.isalnum() or one in "/_-" else f"\\{one}" for one in text)
