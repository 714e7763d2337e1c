"""A configuration of Envoy as people read it: YAML or JSON in the words of Envoy's own API, without private keys.

The MCP filter has settings that the generated messages do not know (`mcp`); they are read from the wire, because what
is printed must be what is enforced. Filters for policies that no route turns on are left out: there are many.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from google.protobuf import any_pb2, json_format, struct_pb2, symbol_database

from tierwall.engines.envoy.config.checkpoints import filter_names
from tierwall.engines.envoy.config.compile import Resources

HIDDEN = "(left out)"
_MCP, _OVERRIDE = (f"envoy.extensions.filters.http.mcp.v3.{name}" for name in ("Mcp", "McpOverride"))


def document(resources: Resources) -> dict[str, Any]:
    """All messages as plain values, kind by kind."""
    kinds = ("listeners", "routes", "extension_configs", "clusters", "secrets")
    found = {kind: [_plain(one) for one in getattr(resources, kind).values()] for kind in kinds}
    off = {name for _, name in filter_names()} - _turned_on(found["routes"])
    found["extension_configs"] = [one for one in found["extension_configs"] if one["name"] not in off]
    for listener in found["listeners"]:
        for chain in listener["filter_chains"]:
            manager = chain["filters"][0]["typed_config"]
            manager["http_filters"] = [one for one in manager["http_filters"] if one["name"] not in off]
    return found


def _turned_on(value: Any) -> set[str]:
    """The filters that routes say something to, wherever they do."""
    if isinstance(value, list):
        return set().union(*map(_turned_on, value))
    if not isinstance(value, dict):
        return set()
    return set(value.get("typed_per_filter_config", ())).union(*map(_turned_on, value.values()))


def text(value: dict[str, Any], form: str) -> str:
    """The document as YAML or JSON."""
    if form == "json":
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    import yaml

    dumped: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return dumped


def _plain(message: Any) -> dict[str, Any]:
    if message.DESCRIPTOR.name == "Secret" and message.HasField("tls_certificate"):
        shown = type(message)()
        shown.CopyFrom(message)
        shown.tls_certificate.private_key.inline_string = HIDDEN
        message = shown
    found: dict[str, Any] = json.loads(json_format.MessageToJson(message, preserving_proto_field_name=True))
    _complete(message, found)
    return found


def _complete(message: Any, shown: Any) -> None:
    """Add what the generated messages do not know, wherever it is inside, and put maps in order."""
    if not isinstance(shown, dict):
        return
    if isinstance(message, any_pb2.Any):
        kind = message.type_url.rpartition("/")[2]
        if kind in (_MCP, _OVERRIDE):
            shown.update(_unknown(kind, message.value))
            return
        if not kind:
            return  # a filter that is only turned on
        inner = symbol_database.Default().GetSymbol(kind)()
        inner.ParseFromString(message.value)
        message = inner
    if isinstance(message, struct_pb2.Struct):
        _sort(shown)
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.name not in shown:
            continue
        part = shown[field.name]
        if field.message_type.GetOptions().map_entry:
            shown[field.name] = part = dict(sorted(part.items()))
            for key in value:
                if field.message_type.fields_by_name["value"].message_type is not None:
                    _complete(value[key], part[str(key)])
        elif isinstance(part, list):
            for one, its in zip(value, part, strict=True):
                _complete(one, its)
        else:
            _complete(value, part)


def _sort(shown: dict[str, Any]) -> None:
    """A map has no order of its own; written down, it is the same every time."""
    for key in sorted(shown):
        shown[key] = value = shown.pop(key)
        if isinstance(value, dict):
            _sort(value)


def _unknown(kind: str, wire: bytes) -> Iterator[tuple[str, Any]]:
    """The settings of the MCP filter that are not in its generated messages."""
    for number, value in _fields(wire):
        if number == (8 if kind == _MCP else 6):
            yield "reject_duplicate_keys", True
        elif kind == _OVERRIDE and number == 4 and isinstance(value, bytes):
            yield "parser_config", {"methods": [_method(one) for _, one in _fields(value) if isinstance(one, bytes)]}


def _method(wire: bytes) -> dict[str, Any]:
    out: dict[str, Any] = {"method": "", "extraction_rules": []}
    for number, value in _fields(wire):
        if number == 1 and isinstance(value, bytes):
            out["method"] = value.decode()
        elif isinstance(value, bytes):
            out["extraction_rules"] += [{"path": one.decode()} for _, one in _fields(value) if isinstance(one, bytes)]
    return out


def _fields(wire: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a message by number; only numbers and bytes occur here."""
    at = 0

    def number() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte = wire[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    while at < len(wire):
        tag = number()
        value: int | bytes = number()
        if tag & 7 == 2 and isinstance(value, int):
            at += value
            value = wire[at - value : at]
        yield tag >> 3, value
