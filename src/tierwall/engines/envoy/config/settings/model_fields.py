"""Fields of requests to language models that policies and providers set (agentgateway, `backend.ai`, `model`).

The script `model.lua` changes bodies by them. In this order: the model of the provider, `overrides`, `defaults` for
what is not there, and then the model that a name stands for (`modelAliases`; an exact name before patterns, the longest
pattern first). Requests that pass unread (`Passthrough`, `Detect`) stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.extensions.filters.http.lua.v3 import lua_pb2

from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.model_backends import ModelBackend, field_changes
from tierwall.engines.envoy.config.settings.filters import MODEL
from tierwall.engines.envoy.config.settings.mcp_rules import MessageFilters


def model_filters(provider: ModelBackend, values: Mapping[str, Any]) -> MessageFilters:
    """Return the filters for requests to a provider; `values` are the fields of `backend.ai` in force there."""
    context = field_changes(provider, values)
    if not context:
        return MessageFilters()
    out = lua_pb2.LuaPerRoute()
    # Without a name or a script of its own, a route has that of the filter.
    out.filter_context.update(context)
    settings = {MODEL: packed(out)}
    return MessageFilters(settings, settings)
