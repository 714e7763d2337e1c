"""An Envoy configuration for people: YAML or JSON in the words of Envoy's API, without private keys.

Filters that no route turns on are left out: there are many.
"""

from __future__ import annotations

import json
from typing import Any

import yaml
from google.protobuf import json_format, message_factory

from tierwall.engines.envoy.config.checkpoints import filter_names
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.mcp import POOL
from tierwall.render.formats import View

HIDDEN = "(left out)"


def text(resources: XdsResources, view: View) -> str:
    """Return the document as YAML."""
    dumped = str(yaml.dump(document(resources, view), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
    return dumped.removesuffix("\n")


class _Dumper(yaml.SafeDumper):
    pass


def _represent_string(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Escape what could fake a line: only a string in double quotes can."""
    if text.isprintable():
        return dumper.represent_str(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


_Dumper.add_representer(str, _represent_string)


def document(resources: XdsResources, view: View) -> dict[str, Any]:
    """Return all messages as plain values, by kind."""
    kinds = ("listeners", "routes", "extension_configs", "clusters", "secrets")
    messages = {kind: [_plain(message) for message in getattr(resources, kind).values()] for kind in kinds}
    off = {name for _, name in filter_names()} - _turned_on(messages["routes"])
    messages["extension_configs"] = [config for config in messages["extension_configs"] if config["name"] not in off]
    for listener in messages["listeners"]:
        for chain in listener["filter_chains"]:
            manager = chain["filters"][0]["typed_config"]
            if "http_filters" in manager:
                manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] not in off]
    return messages


def _turned_on(value: Any) -> set[str]:
    """Collect the filters that routes configure, at any depth."""
    if isinstance(value, list):
        return set().union(*map(_turned_on, value))
    if not isinstance(value, dict):
        return set()
    return set(value.get("typed_per_filter_config", ())).union(*map(_turned_on, value.values()))


def _plain(message: Any) -> dict[str, Any]:
    if message.DESCRIPTOR.name == "Secret" and message.HasField("tls_certificate"):
        redacted = type(message)()
        redacted.CopyFrom(message)
        redacted.tls_certificate.private_key.inline_string = HIDDEN
        message = redacted
    text = json_format.MessageToJson(message, preserving_proto_field_name=True, descriptor_pool=POOL)
    value: dict[str, Any] = json.loads(text)
    _sort_maps(message, value)
    return value


def _sort_maps(message: Any, document: Any) -> None:
    """Sort protobuf maps, which have no order, so that the output is the same every time."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Any":
        kind = message.type_url.rpartition("/")[2]
        if not kind:
            return  # a filter that is only turned on
        message = message_factory.GetMessageClass(POOL.FindMessageTypeByName(kind)).FromString(message.value)
    if message.DESCRIPTOR.full_name == "google.protobuf.Struct":
        ordered = json.loads(json.dumps(document, sort_keys=True))
        document.clear()
        document |= ordered
        return
    for field, value in message.ListFields():
        part = document.get(field.name) if isinstance(document, dict) else None
        if field.message_type is None or part is None:
            continue
        if field.message_type.GetOptions().map_entry:
            document[field.name] = part = dict(sorted(part.items()))
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in value:
                    _sort_maps(value[key], part[str(key)])
        elif isinstance(part, list):
            for item, document_item in zip(value, part, strict=True):
                _sort_maps(item, document_item)
        else:
            _sort_maps(value, part)
