"""What a denied client gets: a JSON-RPC error with its request's id that names the policy, or plain HTTP 403.

MCP clients take any code but 2xx for a broken transport and drop the session, so the error comes as HTTP 200 unless
options say otherwise. Plain HTTP always gets 403.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from tierwall.engines.envoy.names import MCP, RBAC, SLOTS
from tierwall.engines.envoy.options import Denial, Options, Reveal

# Of the range that JSON-RPC leaves to servers.
DENIED_CODE = -32003
_Filter = accesslog_pb2.AccessLogFilter


def local_replies(options: Options) -> Any:
    """How Envoy words its own answers."""
    out = hcm_pb2.LocalReplyConfig()
    out.mappers.extend(_mappers(options))
    return out


def _mappers(options: Options) -> Iterator[Any]:
    """The first whose filter fits counts: who denied, from metadata that only the filter of that slot writes."""
    for key, fits in _deniers():
        for is_mcp in (True, False):
            yield _mapper(options, key if options.reveal is Reveal.POLICY else "", fits, is_mcp)


def _deniers() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for slot in SLOTS:
        yield slot.decider, (_metadata(RBAC, slot.result, "denied"),)
    flag = _Filter(response_flag_filter=accesslog_pb2.ResponseFlagFilter(flags=["UAEX"]))
    # The authorizer that said no is the last one that was asked.
    for slot in reversed(SLOTS):
        yield slot.asked, (flag, _metadata(RBAC, slot.asked, None))


def _mapper(options: Options, key: str, fits: tuple[Any, ...], is_mcp: bool) -> Any:
    who = f"%DYNAMIC_METADATA({RBAC}:{key})%" if key else ""
    message = f"denied by {who}" if who else "denied by policy"
    out = hcm_pb2.ResponseMapper()
    filters = [*fits, _metadata(MCP, "method", None)] if is_mcp else list(fits)
    if len(filters) == 1:
        out.filter.CopyFrom(filters[0])
    else:
        out.filter.and_filter.filters.extend(filters)
    if not is_mcp:
        out.body_format_override.text_format_source.inline_string = f"{message}\n"
        return out
    if options.denial is Denial.JSON_RPC:
        out.status_code.value = 200
    out.body_format_override.content_type = "application/json"
    error: dict[str, Any] = {"code": DENIED_CODE, "message": message}
    if who:
        error["data"] = {"policy": who}
    body = {"jsonrpc": "2.0", "id": f"%DYNAMIC_METADATA({MCP}:id)%", "error": error}
    out.body_format_override.json_format.update(body)
    return out


def _metadata(namespace: str, key: str, text: str | None) -> Any:
    """Metadata has a key, with this text if one is given."""
    out = _Filter()
    found = out.metadata_filter
    found.matcher.filter = namespace
    found.matcher.path.add(key=key)
    if text is None:
        found.matcher.value.present_match = True
    else:
        found.matcher.value.string_match.exact = text
    found.match_if_key_not_found.value = False
    return out
