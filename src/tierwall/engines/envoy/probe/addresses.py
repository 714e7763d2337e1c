"""Observes rules about connections: from which addresses a connection is taken (agentgateway, "Network authorization").

All connections of a test come from loopback, so a header of the PROXY protocol names the client, as a proxy would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tierwall.engines.envoy.config.settings.conditions import AddressCondition, Condition, ConditionList
from tierwall.engines.envoy.config.settings.conditions import network_condition as condition_of
from tierwall.engines.envoy.config.settings.expressions import is_valid
from tierwall.engines.envoy.config.settings.frontend import FrontendSettings
from tierwall.engines.envoy.probe.credentials import expressions_of, permits
from tierwall.engines.envoy.probe.observations import Explains, ProbeClient
from tierwall.values.addresses import read_ip

NETWORK_RULES = "frontend.networkAuthorization"
# Addresses that are in no network of anybody (RFC 5737, RFC 3849).
_STRANGERS = ("203.0.113.77", "2001:db8:ffff::77")
_OWN = "127.0.0.1"
_MAX_ADDRESSES = 200


def with_named_clients(settings: FrontendSettings) -> FrontendSettings:
    """Return the settings of connections whose clients a header may name."""
    return settings._replace(proxy_protocol={"version": "V1", "mode": "Optional"})


def network_rules(client: ProbeClient, values: Sequence[Sequence[Any]]) -> Explains:
    """Connect from addresses inside and outside of all blocks that expressions name. A value is a list of rules."""
    texts = dict.fromkeys(text for rules in values for rule in rules for text in expressions_of(rule))
    named = dict.fromkeys(address for text in texts if is_valid(text) for address in _addresses(condition_of(text)))
    asked = [*_STRANGERS, _OWN, *named][:_MAX_ADDRESSES]
    seen = [(address, client.connects_from(address)) for address in asked]

    def explains(rules: Any) -> bool:
        return all(
            taken == permits(rules or (), {"source": {"address": address, "rawAddress": _OWN}})
            for address, taken in seen
        )

    return explains


def _addresses(condition: Condition) -> Iterator[str]:
    """Yield the first and the last address of each block that a condition names, and those beside them."""
    if isinstance(condition, ConditionList):
        for part in condition.parts:
            yield from _addresses(part)
    elif isinstance(condition, AddressCondition):
        for text, length in condition.blocks:
            first = read_ip(text)
            if first is not None:
                size = 1 << (first.max_prefixlen - length)
                start = int(first) // size * size
                for number in (start, start + size - 1, start - 1, start + size):
                    if 0 <= number < 1 << first.max_prefixlen:
                        yield str(type(first)(number))
