"""Redirects behind rate limits and CORS: Envoy runs these only for requests that it forwards, so a filter redirects.

The location is that which Envoy itself would give (`RedirectAction`).
"""

from __future__ import annotations

from typing import Any

from tierwall.engines.envoy.config.settings.choices import always, quoted, script, told
from tierwall.engines.envoy.config.settings.filters import ANSWER, choosing_filter
from tierwall.engines.envoy.config.settings.traffic import RouteChange, forward_nowhere

_STATUS = {0: "301", 1: "302", 2: "303", 3: "307", 4: "308"}
_SCRIPT = """function envoy_on_request(handle)
  local headers = handle:headers()
  local own = headers:get(":scheme")
  local scheme, host, port, path = %(scheme)s, %(host)s, %(port)s, headers:get(":path")
  if scheme == "" then scheme = own end
  if host == "" then
    host = headers:get(":authority")
    local name, given = string.match(host, "^(.*)(:%%d+)$")
    local is_default = scheme ~= own and ((own == "https" and given == ":443") or (own == "http" and given == ":80"))
    if name and (port ~= "" or is_default) then host = name end
  end
  local bare, query = string.match(path, "^([^?]*)(.*)$")
  %(change)s
  %(told)s
  handle:respond({ [":status"] = "%(status)s", ["location"] = scheme .. "://" .. host .. port .. bare .. query }, "")
end
"""


def limited_redirect(message: Any, source: str) -> RouteChange:
    """Return the change of a route that redirects, because an object says so: a filter behind the limits does it."""
    action = message.redirect
    change = ""
    if action.path_redirect:
        change = f"bare = {quoted(action.path_redirect)}"
        if "?" in action.path_redirect:
            change += '; query = ""'
    elif action.prefix_rewrite:
        change = f"bare = {quoted(action.prefix_rewrite)} .. string.sub(bare, {_matched(message) + 1})"
    elif action.HasField("regex_rewrite"):
        # The prefix becomes `/` (`replace_prefix`).
        change = f'bare = "/" .. string.match(bare, "^/*(.*)$", {_matched(message) + 1})'
    values = {
        "scheme": quoted(action.scheme_redirect),
        "host": quoted(action.host_redirect),
        "port": quoted(f":{action.port_redirect}" if action.port_redirect else ""),
        "change": change,
        "told": told(source),
        "status": _STATUS[action.response_code],
    }
    answer = always(script(_SCRIPT % values), choosing_filter("PostRouting", ANSWER))

    def apply(route: Any) -> None:
        forward_nowhere(route)
        answer(route)

    return apply


def can_be_limited(message: Any) -> bool:
    """Whether a route redirects in a way that the filter knows."""
    action = message.redirect
    replaces = action.prefix_rewrite or action.HasField("regex_rewrite")
    return message.HasField("redirect") and bool(not replaces or _matched(message))


def _matched(message: Any) -> int:
    """Return the size of the prefix or path that a route matches, or 0."""
    match = message.match
    return len((match.path_separated_prefix or match.prefix or match.path).encode())
