"""Local rate limits: buckets of requests, refilled every second, minute or hour (agentgateway, "Rate limiting").

The filter holds one bucket for each entry of each limit, and routes name theirs. So all routes for which one policy on
one target sets the limit draw on the same bucket, as in agentgateway. Each Envoy and each of its listeners counts for
itself, and a change of any limit there fills the buckets again. Where a list has the limits, the filter before it
names the entry in a header, and only the buckets of that entry count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2

from tierwall.engines.envoy.config.checkpoints import on
from tierwall.engines.envoy.config.names import LIMIT_ENTRY
from tierwall.engines.envoy.config.settings.filters import LIMITS, no_limits
from tierwall.engines.envoy.config.settings.traffic import RouteChange
from tierwall.engines.envoy.config.settings.unenforceable import NOTHING_TO_LIMIT, Unenforceable

_SECONDS = {"Seconds": 1, "Minutes": 60, "Hours": 3600}
_KEY = "limit"


class LocalLimit(NamedTuple):
    """A bucket: its name, how many requests it holds, how many it gets each time, and how often, in seconds."""

    name: str
    capacity: int
    refill: int
    seconds: int


def local_limits(entries: Sequence[Mapping[str, Any]], owner: str) -> tuple[LocalLimit, ...]:
    """Return the buckets of a limit; `owner` tells limits with equal numbers apart."""
    limits = []
    for number, entry in enumerate(entries):
        refill, burst = int(entry["requests"]), int(entry.get("burst", 0))
        seconds = _SECONDS[entry["unit"]]
        text = f"{owner}\0{number}\0{refill}\0{burst}\0{seconds}"
        name = blake2b(text.encode(), digest_size=16).hexdigest()
        limits.append(LocalLimit(name, refill + burst, refill, seconds))
    return tuple(limits)


def limit_change(limits: Sequence[LocalLimit], entry: str = "") -> RouteChange:
    """Return the change of a route with these limits, which only count for an entry of a list, if it is given."""

    def apply(route: Any) -> None:
        route.typed_per_filter_config[LIMITS].CopyFrom(on())
        for limit in limits:
            action = route.route.rate_limits.add().actions.add()
            if entry:
                action.header_value_match.descriptor_key = _KEY
                action.header_value_match.descriptor_value = limit.name
                action.header_value_match.headers.add(name=LIMIT_ENTRY).string_match.exact = entry
            else:
                action.generic_key.descriptor_key, action.generic_key.descriptor_value = _KEY, limit.name

    return of_forwarded(apply)


def of_forwarded(*changes: RouteChange) -> RouteChange:
    """Return these changes together; a route that does not forward requests raises Unenforceable."""

    def apply(route: Any) -> None:
        if not route.HasField("route"):
            raise Unenforceable(NOTHING_TO_LIMIT)
        for change in changes:
            change(route)

    return apply


def entry_name(owner: str) -> str:
    """Return the name of an entry of a list; `owner` tells it apart from others."""
    return blake2b(owner.encode(), digest_size=16).hexdigest()


def entry_filter(entry: str) -> Any:
    """Return the filter that says which entry of a list was chosen."""
    out = header_mutation_pb2.HeaderMutation()
    option = out.mutations.request_mutations.add().append
    option.append_action = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    option.header.key, option.header.value = LIMIT_ENTRY, entry
    return out


def limit_filter(limits: Mapping[str, LocalLimit]) -> Any:
    """Return the filter that holds the buckets of all routes."""
    out = no_limits()
    for name in sorted(limits):
        limit = limits[name]
        descriptor = out.descriptors.add()
        descriptor.entries.add(key=_KEY, value=name)
        bucket = descriptor.token_bucket
        bucket.max_tokens, bucket.tokens_per_fill.value = limit.capacity, limit.refill
        bucket.fill_interval.seconds = limit.seconds
    return out
