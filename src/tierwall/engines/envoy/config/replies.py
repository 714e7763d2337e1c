"""Answers to denied clients: a JSON-RPC error with the request's id and the policy's name, or plain HTTP 403.

docs/semantics.md#what-a-denied-client-gets. MCP clients treat any status code except 2xx as a broken transport and drop
the session. So the error is sent as HTTP 200, unless `EnvoyOptions.denial` is `HTTP`. An authorizer's 401 stays a 401,
because clients log in and try again. Plain HTTP gets 403, or the authorizer's status, and so do notifications and
answers: they have no id of the client's, and an id of the server's could be taken for one. A method that no protocol
version knows gets 404 where the client's version says so. What else refuses a request with 403 keeps its own words, and
a request of MCP gets them as an error without a policy: Envoy does not say whose setting it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2 as cel_filter_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.formatter.cel.v3 import cel_pb2 as cel_formatter_pb2

from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import ID, RBAC, SLOTS, UNKNOWN_METHOD
from tierwall.engines.envoy.config.options import Denial, DenialDetail, EnvoyOptions
from tierwall.tool.profile import UPSTREAM_DENIAL, ToolProfile

# From the range that JSON-RPC leaves to applications.
DENIED_CODE = 403
NO_SUCH_METHOD = -32601
_Filter = accesslog_pb2.AccessLogFilter
_BY_AUTHORIZER = _Filter(response_flag_filter=accesslog_pb2.ResponseFlagFilter(flags=["UAEX"]))


def local_replies(options: EnvoyOptions) -> Any:
    """Return the configuration of Envoy's own answers."""
    out = hcm_pb2.LocalReplyConfig()
    out.mappers.extend(_mappers(options))
    return out


def _mappers(options: EnvoyOptions) -> Iterator[Any]:
    """Yield the response mappers; Envoy uses the first whose filter matches."""
    is_upstream = options.tool_profile is ToolProfile.KUBE_AGENTIC_NETWORKING
    reveal = options.reveal is DenialDetail.POLICY and not is_upstream
    unnamed = UPSTREAM_DENIAL if is_upstream else "denied by policy"
    for filters, name in _deniers():
        denier = name if reveal else ""
        message = f"denied by {name}" if reveal else unnamed
        if _BY_AUTHORIZER in filters:
            yield _mapper(Denial.HTTP, message, denier, [*filters, _status(401)], is_mcp=True)
        yield _unknown_method(filters)
        for is_mcp in (True, False):
            yield _mapper(options.denial, message, denier, filters, is_mcp)
    others = [_status(403), _details("!(response.code_details in ['direct_response', 'lua_response'])")]
    yield _mapper(options.denial, unnamed, "", others, is_mcp=True)


def _deniers() -> Iterator[tuple[list[Any], str]]:
    """Yield a filter and the denier: the authorizer that was asked last, or else the policy that Envoy reports."""
    for slot in reversed(SLOTS):
        yield [_BY_AUTHORIZER, _metadata(RBAC, slot.asks, "allowed")], f"%DYNAMIC_METADATA({RBAC}:{slot.asked})%"
    # Read from `rbac_access_denied_matched_policy[…]`: the denying filter writes its metadata only afterwards.
    by_policy = _details("response.code_details.startsWith('rbac_access_denied_matched_policy[')")
    yield [_status(403), by_policy], '%CEL(response.code_details.split("[")[1].split("]")[0])%'


def _details(expression: str) -> Any:
    """Return a filter: an expression about Envoy's word for why it answered is true."""
    out = _Filter()
    out.extension_filter.name = "envoy.access_loggers.extension_filters.cel"
    out.extension_filter.typed_config.CopyFrom(packed(cel_filter_pb2.ExpressionFilter(expression=expression)))
    return out


def _status(code: int) -> Any:
    out = _Filter()
    out.status_code_filter.comparison.value.default_value = code
    out.status_code_filter.comparison.value.runtime_key = f"tierwall.status.{code}"
    return out


def _mapper(denial: Denial, message: str, denier: str, filters: list[Any], is_mcp: bool) -> Any:
    out = hcm_pb2.ResponseMapper()
    out.filter.CopyFrom(_all([*filters, _header(ID)] if is_mcp else filters))
    body = out.body_format_override
    body.formatters.append(_cel_formatter())
    if not is_mcp:
        body.text_format_source.inline_string = f"{message}\n"
        return out
    if denial is Denial.JSON_RPC:
        out.status_code.value = 200
    data = f',"data":{{"policy":"{denier}"}}' if denier else ""
    _set_error(body, f'{{"code":{DENIED_CODE},"message":"{message}"{data}}}')
    return out


def _unknown_method(filters: list[Any]) -> Any:
    out = hcm_pb2.ResponseMapper()
    out.filter.CopyFrom(_all([*filters, _header(UNKNOWN_METHOD)]))
    out.status_code.value = 404
    _set_error(out.body_format_override, f'{{"code":{NO_SUCH_METHOD},"message":"Method not found"}}')
    return out


def _set_error(body: Any, error: str) -> None:
    """Set a JSON-RPC error as the body; as text, because the id must stay as it is written.

    The names of deniers are written so that they can stand in a JSON string (`names.reported`).
    """
    body.content_type = "application/json"
    body.text_format_source.inline_string = f'{{"jsonrpc":"2.0","id":%REQ({ID})%,"error":{error}}}'


@cache
def _cel_formatter() -> Any:
    settings = packed(cel_formatter_pb2.Cel())
    settings.value += b"\x0a\x02\x18\x01"  # cel_config = {enable_string_functions: true}, which the message lacks
    return extension_pb2.TypedExtensionConfig(name="envoy.formatter.cel", typed_config=settings)


def _all(filters: list[Any]) -> Any:
    return filters[0] if len(filters) == 1 else _Filter(and_filter=accesslog_pb2.AndFilter(filters=filters))


def _header(name: str) -> Any:
    out = _Filter()
    out.header_filter.header.name = name
    out.header_filter.header.present_match = True
    return out


def _metadata(namespace: str, key: str, value: str) -> Any:
    """Return a filter: the metadata has this key with this value."""
    out = _Filter()
    metadata = out.metadata_filter
    metadata.matcher.filter = namespace
    metadata.matcher.path.add(key=key)
    metadata.matcher.value.string_match.exact = value
    metadata.match_if_key_not_found.value = False
    return out
