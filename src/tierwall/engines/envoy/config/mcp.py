"""The MCP filter, hardened, and what stands around it (docs/enforce-tools.md#what-is-refused-whatever-policies-say).

On a way that policies protect, every POST must be one MCP message that Envoy has read whole: reject mode, repeated keys
refused, a limit that is a limit. Everything else is plain HTTP, which must not have a body. What the filter finds is
copied to headers of our own, because Envoy's matchers look up headers by hash and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Any

from envoy.config.common.mutation_rules.v3 import mutation_rules_pb2
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2
from envoy.extensions.filters.http.mcp.v3 import mcp_pb2

from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import CALLER, HEADER_PREFIX, MCP, METHOD, NAME, PATH, URI
from tierwall.tool.request import BY_URI, CALL

# Fields of the filter that the generated messages do not have yet, as they are on the wire.
_REJECT_DUPLICATE_KEYS = b"\x42\x02\x08\x01"  # Mcp.reject_duplicate_keys = {value: true}
_OVERRIDE_REJECT_DUPLICATE_KEYS = b"\x30\x01"  # McpOverride.reject_duplicate_keys = true
_OVERRIDE_PARSER_CONFIG = 4  # McpOverride.parser_config


def mcp_filter(largest_message: int) -> Any:
    """The filter where policies are: only MCP passes."""
    out = mcp_pb2.Mcp(traffic_mode=mcp_pb2.Mcp.REJECT_NO_MCP)
    out.max_request_body_size.value = largest_message
    found = packed(out)
    found.value += _REJECT_DUPLICATE_KEYS
    return found


def reading_arguments(arguments: Iterable[tuple[str, ...]], largest_message: int) -> Any:
    """A route's settings where rules look at arguments: those are extracted, too."""
    out = mcp_pb2.McpOverride(traffic_mode=mcp_pb2.Mcp.REJECT_NO_MCP)
    out.max_request_body_size.value = largest_message
    rules = {CALL: ["params.name", *(".".join(("params", "arguments", *path)) for path in sorted(arguments))]}
    rules |= {method: ["params.uri"] for method in BY_URI} | {"prompts/get": ["params.name"]}
    config = b"".join(_field(1, _method(method, paths)) for method, paths in sorted(rules.items()))
    found = packed(out)
    found.value += _field(_OVERRIDE_PARSER_CONFIG, config) + _OVERRIDE_REJECT_DUPLICATE_KEYS
    return found


def _method(method: str, paths: list[str]) -> bytes:
    """A ParserConfig.MethodConfig; the number of `extraction_rules` is not that of the generated messages."""
    return _field(1, method.encode()) + b"".join(_field(3, _field(1, path.encode())) for path in paths)


def _field(number: int, value: bytes) -> bytes:
    """A field of bytes, a text or a message, as it is on the wire."""
    size = bytearray()
    length = len(value)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((number << 3 | 2, *size, length)) + value


def open_filter() -> Any:
    """The filter where no policy is: MCP is read for the log, and nothing is refused."""
    return packed(mcp_pb2.Mcp(traffic_mode=mcp_pb2.Mcp.PASS_THROUGH))


def strict_filter(with_arguments: bool) -> Any:
    """The filter that refuses what others might read differently; with arguments, also in those."""
    script = files(__package__).joinpath("strict.lua").read_text()
    if with_arguments:
        script = script.replace("LOOKS_AT_ARGUMENTS = false", "LOOKS_AT_ARGUMENTS = true")
    out = lua_pb2.Lua()
    out.default_source_code.inline_string = script
    return packed(out)


def bodiless_filter() -> Any:
    """The filter that refuses bodies."""
    out = lua_pb2.Lua()
    out.default_source_code.inline_string = files(__package__).joinpath("bodiless.lua").read_text()
    return packed(out)


def facts_filter() -> Any:
    """The filter that copies what matchers look at to headers of our own, whatever the client sent there."""
    out = header_mutation_pb2.HeaderMutation()
    # Also those that are never set: what reads them must find nothing there.
    out.mutations.request_mutations.add().remove_on_match.key_matcher.prefix = HEADER_PREFIX
    for name, value in (
        # The URI names in the client's certificate; that of a SPIFFE id has exactly one.
        (CALLER, "%DOWNSTREAM_PEER_URI_SAN%"),
        (METHOD, f"%DYNAMIC_METADATA({MCP}:method)%"),
        (NAME, f"%DYNAMIC_METADATA({MCP}:params:name)%"),
        (URI, f"%DYNAMIC_METADATA({MCP}:params:uri)%"),
        (PATH, "%PATH(NQ:PATH)%"),
    ):
        out.mutations.request_mutations.append(_set(name, value))
    # Servers may go by these headers instead of the body (MCP 2026-07-28): they say what the body says.
    for name, value in (("mcp-method", f"%REQ({METHOD})%"), ("mcp-name", f"%REQ({URI}?{NAME})%")):
        said = _set(name, value, base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS)
        said.append.keep_empty_value = True  # a body that names nothing leaves no name
        out.mutations.request_mutations.append(said)
    return packed(out)


def _set(name: str, value: str, how: Any = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD) -> Any:
    option = base_pb2.HeaderValueOption(append_action=how)
    option.header.key = name
    option.header.value = value
    return mutation_rules_pb2.HeaderMutation(append=option)


@lru_cache(100_000)
def facts(said: tuple[tuple[str, str], ...] = ()) -> Any:
    """A route's settings: copy the facts, and say these in headers of our own."""
    out = header_mutation_pb2.HeaderMutationPerRoute()
    out.mutations.request_mutations.extend(_set(name, value) for name, value in said)
    return packed(out)
