"""A configuration of Envoy as people read it: YAML or JSON in the words of Envoy's own API, without private keys."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from tierwall.engines.envoy.compile import Resources

HIDDEN = "(left out)"


def document(resources: Resources) -> dict[str, Any]:
    """All messages as plain values, kind by kind; messages that Python does not know stay as they are on the wire."""
    kinds = ("listeners", "routes", "clusters", "secrets")
    return {kind: [_plain(one) for one in getattr(resources, kind).values()] for kind in kinds}


def _plain(message: Any) -> dict[str, Any]:
    if message.DESCRIPTOR.name == "Secret" and message.HasField("tls_certificate"):
        shown = type(message)()
        shown.CopyFrom(message)
        shown.tls_certificate.private_key.inline_string = HIDDEN
        message = shown
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def text(value: dict[str, Any], form: str) -> str:
    """The document as YAML or JSON."""
    if form == "json":
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    import yaml

    dumped: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return dumped
