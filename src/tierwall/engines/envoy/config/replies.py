"""Answers to denied clients: a JSON-RPC error with the request's id and the policy's name, or plain HTTP 403.

MCP clients treat any status code except 2xx as a broken transport and drop the session. So the error is sent as HTTP
200, unless `EnvoyOptions.denial` is `HTTP`. An authorizer's 401 stays a 401, because clients log in and try again.
Plain HTTP gets 403, or the authorizer's status.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.formatter.cel.v3 import cel_pb2 as cel_formatter_pb2

from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import MCP, RBAC, SLOTS
from tierwall.engines.envoy.config.options import Denial, DenialDetail, EnvoyOptions

# From the range that JSON-RPC reserves for servers.
DENIED_CODE = -32003
_Filter = accesslog_pb2.AccessLogFilter
_BY_AUTHORIZER = _Filter(response_flag_filter=accesslog_pb2.ResponseFlagFilter(flags=["UAEX"]))


def local_replies(options: EnvoyOptions) -> Any:
    """Return the configuration of Envoy's own answers."""
    out = hcm_pb2.LocalReplyConfig()
    out.mappers.extend(_mappers(options))
    return out


def _mappers(options: EnvoyOptions) -> Iterator[Any]:
    """Yield the response mappers; Envoy uses the first whose filter matches."""
    reveal = options.reveal is DenialDetail.POLICY
    for filters, name in _deniers():
        denier = name if reveal else ""
        if _BY_AUTHORIZER in filters:
            yield _mapper(Denial.HTTP, denier, [*filters, _status(401)], is_mcp=True)
        for is_mcp in (True, False):
            yield _mapper(options.denial, denier, filters, is_mcp)


def _deniers() -> Iterator[tuple[list[Any], str]]:
    """Yield a filter and the denier: the authorizer that was asked last, or else the policy that Envoy reports."""
    for slot in reversed(SLOTS):
        yield [_BY_AUTHORIZER, _metadata(RBAC, slot.asks, "allowed")], f"%DYNAMIC_METADATA({RBAC}:{slot.asked})%"
    # Read from `rbac_access_denied_matched_policy[…]`: the denying filter writes its metadata only afterwards.
    yield [_status(403)], '%CEL(response.code_details.split("[")[1].split("]")[0])%'


def _status(code: int) -> Any:
    out = _Filter()
    out.status_code_filter.comparison.value.default_value = code
    out.status_code_filter.comparison.value.runtime_key = f"tierwall.status.{code}"
    return out


def _mapper(denial: Denial, denier: str, filters: list[Any], is_mcp: bool) -> Any:
    out = hcm_pb2.ResponseMapper()
    filters = [*filters, _metadata(MCP, "method")] if is_mcp else filters
    if len(filters) == 1:
        out.filter.CopyFrom(filters[0])
    else:
        out.filter.and_filter.filters.extend(filters)
    body = out.body_format_override
    body.formatters.append(_cel_formatter())
    message = f"denied by {denier}" if denier else "denied by policy"
    if not is_mcp:
        body.text_format_source.inline_string = f"{message}\n"
        return out
    if denial is Denial.JSON_RPC:
        out.status_code.value = 200
    body.content_type = "application/json"
    error: dict[str, Any] = {"code": DENIED_CODE, "message": message}
    if denier:
        error["data"] = {"policy": denier}
    body.json_format.update({"jsonrpc": "2.0", "id": f"%DYNAMIC_METADATA({MCP}:id)%", "error": error})
    return out


@cache
def _cel_formatter() -> Any:
    settings = packed(cel_formatter_pb2.Cel())
    settings.value += b"\x0a\x02\x18\x01"  # cel_config = {enable_string_functions: true}, which the message lacks
    return extension_pb2.TypedExtensionConfig(name="envoy.formatter.cel", typed_config=settings)


def _metadata(namespace: str, key: str, value: str | None = None) -> Any:
    """Return a filter: the metadata has this key, with this value if one is given."""
    out = _Filter()
    metadata = out.metadata_filter
    metadata.matcher.filter = namespace
    metadata.matcher.path.add(key=key)
    if value is None:
        metadata.matcher.value.present_match = True
    else:
        metadata.matcher.value.string_match.exact = value
    metadata.match_if_key_not_found.value = False
    return out
