"""Limits of request bodies where a filter waits for a service.

What has come of a body while a filter waits is not measured by the filters behind it: `buffer` would let it pass, and
an authorization service would get its beginning alone. So bodies are limited before everything that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from envoy.extensions.filters.http.buffer.v3 import buffer_pb2

from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.settings.filters import BUFFER, BUFFER_FIRST, BUFFER_FOR_BACKEND
from tierwall.engines.envoy.config.settings.measures import byte_count
from tierwall.engines.envoy.config.settings.places import EffectiveField, PlaceSettings
from tierwall.engines.envoy.config.settings.traffic import RouteChange
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.gateway.model.fields import Phase
from tierwall.resources.resource import nested_map

_ASKING, _TOKENS = "traffic.extAuth", "traffic.jwtAuthentication"
_WAITING = {_ASKING, _TOKENS, "traffic.extProc", "traffic.rateLimit.global"}


def body_limits(read: Sequence[tuple[Phase, PlaceSettings]]) -> Iterator[RouteChange]:
    """Yield the changes of a route that limit bodies first; they come behind all other changes."""
    if any(_WAITING & settings.fields.keys() for _, settings in read):
        yield _limit_first
    # A list may forward no body at all; then its sizes only count if something waits before it.
    waits = any(
        _TOKENS in settings.fields or (phase == "PreRouting" and _WAITING & settings.fields.keys())
        for phase, settings in read
    )
    sizes = [
        size
        for _, settings in read
        if (field := settings.fields.get(_ASKING)) is not None and (waits or not field.is_chosen)
        for size in _forwarded(field)
    ]
    if sizes:
        yield lambda route: _limit(route, min(sizes))


def backend_limit(value: Any) -> dict[str, Any]:
    """Return the settings of filters that limit bodies for a backend whose service gets them."""
    sizes = list(_forwarded_size(value))
    return {BUFFER_FOR_BACKEND: _limiting(sizes[0])} if sizes else {}


def _forwarded_size(value: Any) -> Iterator[int]:
    """Yield the largest body that is forwarded to an authorization service, if any is."""
    if "forwardBody" in value:
        try:
            yield byte_count(nested_map(value, "forwardBody").get("maxSize"))
        except Unenforceable:
            # The filter that asks says so.
            return


def _forwarded(field: EffectiveField) -> Iterator[int]:
    values: Iterable[Any] = [field.value]
    if field.is_chosen:
        written = [(each, each.written.entries) for each in field.candidates]
        values = [each.written.entry_value(entry["policy"]) for each, entries in written for entry in entries or ()] + [
            each.value for each, entries in written if entries is None
        ]
    for value in values:
        yield from _forwarded_size(value)


def _limit_first(route: Any) -> None:
    settings = route.typed_per_filter_config
    if BUFFER in settings:
        settings[BUFFER_FIRST].CopyFrom(settings[BUFFER])
        del settings[BUFFER]


def _limit(route: Any, size: int) -> None:
    limited = buffer_pb2.BufferPerRoute()
    if BUFFER_FIRST in route.typed_per_filter_config:
        route.typed_per_filter_config[BUFFER_FIRST].Unpack(limited)
        size = min(size, limited.buffer.max_request_bytes.value)
    route.typed_per_filter_config[BUFFER_FIRST].CopyFrom(_limiting(size))


def _limiting(size: int) -> Any:
    """Return the settings of a filter that limits bodies."""
    out = buffer_pb2.BufferPerRoute()
    out.buffer.max_request_bytes.value = size
    return packed(out)
