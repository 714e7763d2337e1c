"""Filters of HTTPRoute rules that Envoy's routes express: header changes, rewrites, redirects, CORS (Gateway API).

A rule with a filter that is not among them, or that says something unknown, must not be served as if the filter were
not there: it answers 500. So does one that Envoy would refuse, which would refuse all routes of the listener with it.
RequestMirror is not among them: a copy of a request would get to a backend past that backend's policies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2

from tierwall.attach.listener import Listener
from tierwall.attach.section import maps
from tierwall.engines.envoy import cors
from tierwall.engines.envoy.route_match import quoted, refused, unusable

_SET = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_ADD = base_pb2.HeaderValueOption.APPEND_IF_EXISTS_OR_ADD
_REDIRECTS = {301: 0, 302: 1, 303: 2, 307: 3, 308: 4}
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# Headers that say where a message ends and whom it is for; a change would make one message another.
_FIXED = frozenset(("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"))


def apply(
    route: Any, match: Mapping[str, Any], filters: object, listener: Listener | None = None, largest_pattern: int = 100
) -> str:
    """Apply a rule's filters to a route of Envoy; what cannot be applied, or nothing."""
    lost = unusable(match, largest_pattern)
    for one in maps(filters):
        kind = one.get("type")
        if kind == "RequestHeaderModifier":
            value = one.get("requestHeaderModifier")
            lost = lost or _headers(value, route.request_headers_to_add, route.request_headers_to_remove)
        elif kind == "ResponseHeaderModifier":
            value = one.get("responseHeaderModifier")
            lost = lost or _headers(value, route.response_headers_to_add, route.response_headers_to_remove)
        elif kind == "URLRewrite":
            lost = lost or _rewrite(route, match, one.get("urlRewrite"), largest_pattern)
        elif kind == "RequestRedirect":
            lost = lost or _redirect(route, match, one.get("requestRedirect"), listener, largest_pattern)
        elif kind == "CORS":
            lost = lost or cors.apply(route, one.get("cors"), largest_pattern)
        else:
            lost = lost or f"filter {kind}"
    return lost


def _headers(value: object, add: Any, remove: Any) -> str:
    value = value if isinstance(value, dict) else {}
    lost = ""
    for field, how in (("set", _SET), ("add", _ADD)):
        for one in maps(value.get(field)):
            name, text = str(one.get("name")), str(one.get("value"))
            why = _unchangeable(name) or (
                "" if not _CONTROL.search(text) else f"a control character in header `{name}`"
            )
            lost = lost or why
            if not why:
                option = add.add(append_action=how)
                option.header.key = name
                # Values are texts; a `%` would start one of Envoy's commands.
                option.header.value = text.replace("%", "%%")
    gone = value.get("remove")
    for name in gone if isinstance(gone, list) else ():
        why = _unchangeable(str(name))
        lost = lost or why
        if not why:
            remove.append(str(name))
    return lost


def _unchangeable(name: str) -> str:
    return "" if _NAME.fullmatch(name) and name.lower() not in _FIXED else f"a change of header `{name}`"


def _rewrite(route: Any, match: Mapping[str, Any], value: object, largest_pattern: int) -> str:
    value = value if isinstance(value, dict) else {}
    if isinstance(value.get("hostname"), str):
        route.route.host_rewrite_literal = value["hostname"]
    path = value.get("path")
    if not isinstance(path, dict):
        return ""
    if path.get("type") == "ReplaceFullPath":
        route.route.regex_rewrite.pattern.regex = "(?s)^/[^?]*"
        route.route.regex_rewrite.substitution = _whole(path.get("replaceFullPath")).replace("\\", "\\\\")
        return ""
    return _replace_prefix(route.route, match, _whole(path.get("replacePrefixMatch")), largest_pattern)


def _whole(path: object) -> str:
    """A path that begins with a slash, as every path does."""
    text = str(path or "/")
    return text if text.startswith("/") else f"/{text}"


def _replace_prefix(action: Any, match: Mapping[str, Any], to: str, largest_pattern: int) -> str:
    found = match.get("path")
    prefix = str(found.get("value") or "/") if isinstance(found, dict) else "/"
    prefix, to = prefix.rstrip("/"), to.rstrip("/")
    if not prefix:
        action.prefix_rewrite = f"{to}/"
    elif to:
        action.prefix_rewrite = to
    else:
        # `/a` to `/`: `/a` and `/a/b` become `/` and `/b`. Paths begin with the prefix, so its end says where it ends;
        # a long prefix would make too large a pattern.
        pattern = f"^.*?{quoted(_telling_end(prefix))}/*"
        if refused(pattern, largest_pattern):
            return f"replacing prefix `{prefix}`, which is too long for Envoy,"
        action.regex_rewrite.pattern.regex = pattern
        action.regex_rewrite.substitution = "/"
    return ""


def _telling_end(prefix: str) -> str:
    """The shortest end of a text that stands nowhere else in it."""
    return next(
        prefix[-size:] for size in range(1, len(prefix) + 1) if prefix.find(prefix[-size:]) == len(prefix) - size
    )


def _redirect(
    route: Any, match: Mapping[str, Any], value: object, listener: Listener | None, largest_pattern: int
) -> str:
    value = value if isinstance(value, dict) else {}
    action: Any = route_components_pb2.RedirectAction()
    if isinstance(value.get("scheme"), str):
        action.scheme_redirect = value["scheme"]
    if isinstance(value.get("hostname"), str):
        action.host_redirect = value["hostname"]
    action.port_redirect = _port(value, listener)
    code = value.get("statusCode")
    action.response_code = _REDIRECTS.get(code if type(code) is int else 302, 1)
    path = value.get("path")
    lost = ""
    if isinstance(path, dict):
        if path.get("type") == "ReplaceFullPath":
            action.path_redirect = _whole(path.get("replaceFullPath"))
        else:
            lost = _replace_prefix(action, match, _whole(path.get("replacePrefixMatch")), largest_pattern)
    route.redirect.CopyFrom(action)
    return lost


def _port(value: Mapping[str, Any], listener: Listener | None) -> int:
    """The port of a redirect: the one given, that of the scheme given, or the listener's; 0 where it need not be said.

    A host name that is given has no port. The client's own may have the listener's, and keeps it unless one is said.
    """
    given = value.get("port")
    protocol = listener.protocol.lower() if listener is not None else ""
    here = listener.port if listener is not None else 0
    scheme = str(value.get("scheme") or protocol)
    port = given if type(given) is int else _PORTS.get(scheme, here) if value.get("scheme") else here
    if port == _PORTS.get(scheme) and (isinstance(value.get("hostname"), str) or here == _PORTS.get(protocol)):
        return 0
    return port
