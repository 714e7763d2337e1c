"""The changes that the settings of a place make to its Envoy routes and clusters."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from tierwall.engines.envoy.config.settings.mcp_rules import MessageFilters
from tierwall.engines.envoy.config.settings.places import EffectiveField
from tierwall.engines.envoy.config.settings.traffic import RouteChange
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.resources.resource import Identity


class RouteSettings(NamedTuple):
    """The changes that the settings of a place make to its Envoy routes, or why the place is closed."""

    # Why requests are answered with 500, or an empty string.
    closed: str = ""
    policies: frozenset[Identity] = frozenset()
    changes: tuple[RouteChange, ...] = ()
    # Filters for requests to a backend.
    messages: MessageFilters = MessageFilters()
    # The fields of policies that beat what rules of parents set by themselves.
    overruling: frozenset[str] = frozenset()
    # The settings of a rule that count there, and whether those of a backend judge requests to it by filters.
    fields: tuple[EffectiveField, ...] = ()
    judges_requests: bool = False
    # Whether filters must see requests that no backend gets.
    is_filtered: bool = False
    # What says of requests to language models what they are, and changes them, by the name below `backend.ai`.
    model_fields: Mapping[str, Any] = {}

    @property
    def keeps_host(self) -> bool:
        """Whether backends outside the cluster get the client's host, too."""
        return any(field.keeps_host for field in self.fields)

    def apply_to_cluster(self, cluster: Any) -> None:
        """Apply the settings of a backend to its cluster, which gets a name of its own if it changes."""
        before = cluster.SerializeToString(deterministic=True)
        for change in self.changes:
            change(cluster)
        after = cluster.SerializeToString(deterministic=True)
        if after != before:
            cluster.name += f"/{blake2b(after, digest_size=8).hexdigest()}"
            cluster.load_assignment.cluster_name = cluster.name

    def apply(self, route: Any) -> str:
        """Apply the settings to an Envoy route; return why it must be closed instead, or an empty string."""
        try:
            for change in self.changes:
                change(route)
        except Unenforceable as error:
            return str(error)
        return ""
