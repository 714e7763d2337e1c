"""The hardened MCP filter and the filters around it (docs/enforce-tools.md#what-is-refused-whatever-policies-say).

On a way with policies, every POST must be one MCP message that Envoy has read completely: other bodies, repeated keys
and messages over the size limit are rejected. Everything else is plain HTTP, which must not have a body. What the
filter reads is copied to Tierwall's own headers, because headers are all that Envoy's matchers can look up by hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, cast

from envoy.config.common.mutation_rules.v3 import mutation_rules_pb2
from envoy.config.core.v3 import base_pb2, extension_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2
from envoy.extensions.filters.http.mcp.v3 import mcp_pb2 as _  # noqa: F401 (makes its messages known)
from envoy.extensions.http.early_header_mutation.header_mutation.v3 import header_mutation_pb2 as early_mutation_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import (
    ACCEPTED,
    CALLER,
    HEADER_PREFIX,
    MCP,
    METHOD,
    NAME,
    PATH,
    UNGUARDED,
    URI,
)
from tierwall.tool.protocol import BY_URI, CALL, KNOWN_METHODS, TASK_METHODS

# What clients of MCP accept (Streamable HTTP). Envoy reads a message as MCP only if its client accepts both, and those
# of A2A accept one of them.
ACCEPTABLE = ("application/json", "text/event-stream")
# The script with which others write characters.
UTF8 = "utf8.lua"
# After `accepts_filter`: what the client accepts.
ACCEPTED_AGAIN = (("accept", f"%REQ({ACCEPTED})%"),)
# What `watched` puts before the method.
SERVER, ELSEWHERE = "server ", "elsewhere "
EARLY_MUTATION = "envoy.http.early_header_mutation.header_mutation"
_PACKAGE = "envoy.extensions.filters.http.mcp.v3"


class _NewerDescriptors:
    """The descriptors of all messages, plus the fields of Envoy's MCP filter that the generated messages lack."""

    def FindFileByName(self, name: str) -> Any:  # noqa: N802 (the name is protobuf's)
        out = descriptor_pb2.FileDescriptorProto()
        descriptor_pool.Default().FindFileByName(name).CopyToProto(out)
        if out.package == _PACKAGE:
            messages = {message.name: message for message in out.message_type}
            _add(messages["Mcp"], "reject_duplicate_keys", 8, message=".google.protobuf.BoolValue")
            _add(messages["McpOverride"], "parser_config", 4, message=f".{_PACKAGE}.ParserConfig")
            _add(messages["McpOverride"], "reject_duplicate_keys", 6)
            (method,) = (kind for kind in messages["ParserConfig"].nested_type if kind.name == "MethodConfig")
            (rules,) = (field for field in method.field if field.name == "extraction_rules")
            rules.number = 3
        return out

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802
        return self.FindFileByName(descriptor_pool.Default().FindFileContainingSymbol(symbol).name)


def _add(to: Any, name: str, number: int, message: str = "") -> None:
    field = descriptor_pb2.FieldDescriptorProto
    kind = field.TYPE_MESSAGE if message else field.TYPE_BOOL
    to.field.add(name=name, number=number, label=field.LABEL_OPTIONAL, type=kind, type_name=message or None)


POOL = descriptor_pool.DescriptorPool(_NewerDescriptors())
_MCP, _OVERRIDE = (
    cast(Any, message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}")))
    for name in ("Mcp", "McpOverride")
)


def mcp_filter(largest_message: int) -> Any:
    """Return the MCP filter for routes with policies: only MCP passes."""
    out = _MCP(traffic_mode="REJECT_NO_MCP")
    out.max_request_body_size.value = largest_message
    out.reject_duplicate_keys.value = True
    return packed(out)


def reading_arguments(arguments: Iterable[tuple[str, ...]], largest_message: int) -> Any:
    """Return the settings of a route whose rules read tool arguments: the filter extracts those, too."""
    out = _OVERRIDE(traffic_mode="REJECT_NO_MCP", reject_duplicate_keys=True)
    out.max_request_body_size.value = largest_message
    paths = {CALL: ["params.name", *(".".join(("params", "arguments", *path)) for path in sorted(arguments))]}
    paths |= {method: ["params.uri"] for method in BY_URI} | {"prompts/get": ["params.name"]}
    for method in sorted(paths):
        out.parser_config.methods.add(method=method, extraction_rules=[{"path": path} for path in paths[method]])
    return packed(out)


def open_filter() -> Any:
    """Return the MCP filter for routes without policies: it reads MCP for the log and rejects nothing."""
    return packed(_MCP(traffic_mode="PASS_THROUGH"))


@cache
def strict_filter(with_arguments: bool) -> Any:
    """Return the filter that rejects messages that servers might read differently, optionally in arguments, too.

    It forwards every other message in one line.
    """
    settings = {
        "DECOMPOSITIONS": _quoted(character_lines("decompositions.txt")),
        "KNOWN_METHODS": set_of(KNOWN_METHODS),
        "NAMED_BY_URI": set_of(BY_URI),
        "NAMED_BY_TASK": set_of(TASK_METHODS),
    }
    if with_arguments:
        settings |= {"READS_ARGUMENTS": "true", "CASE_FOLDINGS": _quoted(character_lines("case_foldings.txt"))}
    return script_filter("strict.lua", settings, UTF8)


def character_lines(name: str) -> str:
    """Return a table of code points as lines for a script: a character and the text that belongs to it."""
    lines = files(__package__).joinpath(name).read_text().splitlines()
    entries = (line.split() for line in lines if not line.startswith("#"))
    return "".join("".join(chr(int(code, 16)) for code in entry) + "\n" for entry in entries)


def set_of(texts: Iterable[str]) -> str:
    """Return a set of texts as a script writes it."""
    return "{ " + ", ".join(f'["{text}"] = true' for text in sorted(texts)) + " }"


def _quoted(text: str) -> str:
    return f"[=[\n{text}]=]"


def bodiless_filter() -> Any:
    """Return the filter that rejects bodies."""
    return script_filter("bodiless.lua")


def script_filter(name: str, settings: Mapping[str, str] | None = None, *preambles: str) -> Any:
    """Return the filter that runs a script, with other values of some of the script's local variables.

    `preambles` are scripts that stand before it. A request keeps its route, whatever headers the script changes.
    Otherwise Envoy would choose again, perhaps a route with policies whose filters this request does not have: it gets
    its filters by its first route.
    """
    folder = files(__package__)
    script = "".join(folder.joinpath(part).read_text() for part in (*preambles, name))
    for variable, value in (settings or {}).items():
        before, after = re.split(rf"(?m)^local {variable} = .*$", script)
        script = f"{before}local {variable} = {value}{after}"
    out = lua_pb2.Lua(default_source_code={"inline_string": script})
    out.clear_route_cache.value = False
    return packed(out)


@cache
def without_our_headers() -> Any:
    """Return the extension that removes what clients send as Tierwall's own headers, before any route is looked up.

    Routes without policies forward such headers otherwise, and readers must not see a client's value of a header that
    is never set.
    """
    out = early_mutation_pb2.HeaderMutation()
    out.mutations.add().remove_on_match.key_matcher.prefix = HEADER_PREFIX
    return extension_pb2.TypedExtensionConfig(name=EARLY_MUTATION, typed_config=packed(out))


@cache
def accepts_filter() -> Any:
    """Return the filter that lets Envoy read messages of clients that accept less than those of MCP do."""
    out = header_mutation_pb2.HeaderMutation()
    out.mutations.request_mutations.append(_set(ACCEPTED, "%REQ(accept)%"))
    out.mutations.request_mutations.append(_set("accept", ", ".join(ACCEPTABLE)))
    return packed(out)


def facts_filter() -> Any:
    """Return the filter that copies facts to Tierwall's own headers; what a client sent there is removed already.

    Each header costs every request some time. So routes add what few of them need (`facts`).
    """
    out = header_mutation_pb2.HeaderMutation()
    for name, value in (
        # The URI SANs of the client certificate; a SPIFFE certificate has exactly one.
        (CALLER, "%DOWNSTREAM_PEER_URI_SAN%"),
        (METHOD, f"%DYNAMIC_METADATA({MCP}:method)%"),
        (NAME, f"%DYNAMIC_METADATA({MCP}:params:name)%"),
        (URI, f"%DYNAMIC_METADATA({MCP}:params:uri)%"),
    ):
        out.mutations.request_mutations.append(_set(name, value))
    return packed(out)


def watch_filter() -> Any:
    """Return the filter that sets the header of `watched`."""
    return packed(header_mutation_pb2.HeaderMutation())


@cache
def watched(is_server: bool) -> Any:
    """Return the settings of a route without policies: tell those who end streams what may open one.

    A GET opens one at a server of MCP, whatever its headers; elsewhere it does if it has headers of MCP.
    """
    out = header_mutation_pb2.HeaderMutationPerRoute()
    place = SERVER if is_server else ELSEWHERE
    out.mutations.request_mutations.append(_set(UNGUARDED, f"{place}%DYNAMIC_METADATA({MCP}:method)%"))
    return packed(out)


def _set(name: str, value: str) -> Any:
    option = base_pb2.HeaderValueOption(append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
    option.header.key = name
    option.header.value = value
    return mutation_rules_pb2.HeaderMutation(append=option)


@lru_cache(100_000)
def facts(headers: tuple[tuple[str, str], ...] = (), with_path: bool = False) -> Any:
    """Return a route's settings: copy the facts, and the path if it is needed, and set these headers."""
    out = header_mutation_pb2.HeaderMutationPerRoute()
    path = ((PATH, "%PATH(NQ:PATH)%"),) if with_path else ()
    out.mutations.request_mutations.extend(_set(name, value) for name, value in (*headers, *path))
    return packed(out)
