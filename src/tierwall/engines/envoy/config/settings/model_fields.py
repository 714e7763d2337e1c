"""Fields of requests to language models that policies and providers set (agentgateway, `backend.ai`, `model`).

The script `model.lua` changes bodies by them. In this order: the model of the provider, `overrides`, `defaults` for
what is not there, and then the model that a name stands for (`modelAliases`; an exact name before patterns, the longest
pattern first). Requests that pass unread (`Passthrough`, `Detect`) stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from envoy.extensions.filters.http.lua.v3 import lua_pb2

from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.model_backends import ModelBackend
from tierwall.engines.envoy.config.settings.filters import MODEL
from tierwall.engines.envoy.config.settings.mcp_rules import MessageFilters
from tierwall.resources.resource import list_of_maps

# What routes and the script need of `backend.ai`.
OF_MODELS = tuple(f"backend.ai.{name}" for name in ("routes", "defaults", "overrides", "modelAliases"))


def model_filters(provider: ModelBackend, values: Mapping[str, Any]) -> MessageFilters:
    """Return the filters for requests to a provider; `values` are the fields of `backend.ai` in force there."""
    context = dict(_context(provider, values))
    if not context:
        return MessageFilters()
    out = lua_pb2.LuaPerRoute()
    # Without a name or a script of its own, a route has that of the filter.
    out.filter_context.update(context)
    settings = {MODEL: packed(out)}
    return MessageFilters(settings, settings)


def _context(provider: ModelBackend, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if provider.model:
        yield "model", json.dumps(provider.model)
    for name, field in (("set", "overrides"), ("defaults", "defaults")):
        if entries := {entry["field"]: json.dumps(entry["value"]) for entry in list_of_maps(values.get(field))}:
            yield name, entries
    aliases: Mapping[str, str] = values.get("modelAliases") or {}
    if exact := {alias: json.dumps(model) for alias, model in aliases.items() if "*" not in alias}:
        yield "aliases", exact
    patterns = sorted((alias for alias in aliases if "*" in alias), key=lambda alias: (-len(alias), alias))
    if patterns:
        yield "patterns", [{"parts": alias.split("*"), "model": json.dumps(aliases[alias])} for alias in patterns]
