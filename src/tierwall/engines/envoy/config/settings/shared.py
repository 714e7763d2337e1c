"""Filters that settings of several routes share: routes name what they need of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tierwall.engines.envoy.config.settings import authentication, limits
from tierwall.engines.envoy.config.settings.filters import (
    LIMITS,
    MCP_TOKENS,
    discovered_config,
    jwt_filter,
)
from tierwall.gateway.model.fields import PHASES


class SharedFilters(NamedTuple):
    """Requirements of tokens and limits by name: routes name them, and filters hold them."""

    tokens: Mapping[str, authentication.TokenRequirement] = {}
    limits: Mapping[str, limits.LocalLimit] = {}

    def configs(self, before: SharedFilters) -> dict[str, Any]:
        """Return the configurations of the filters; routes from before may still name what they named."""
        tokens = authentication.token_filter({**before.tokens, **self.tokens})
        buckets = limits.limit_filter({**before.limits, **self.limits})
        messages = {
            **dict.fromkeys((*map(jwt_filter, PHASES), MCP_TOKENS), tokens),
            LIMITS: buckets,
        }
        return {name: discovered_config(name, message) for name, message in messages.items()}
