"""Headers that the API of a provider of language models wants (agentgateway, "LLM providers")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2

from tierwall.engines.envoy.config.model_backends import ANTHROPIC, ModelBackend
from tierwall.engines.envoy.config.settings.upstream import ClusterChange, add_filter

_OF_BROWSERS = ("origin", "access-control-request-method", "access-control-request-headers")


def header_changes(provider: ModelBackend) -> Iterator[ClusterChange]:
    """Yield the changes of a provider's cluster: Anthropic wants a version, and refuses what browsers say of pages."""
    if provider.kind == ANTHROPIC:
        yield _with_version


def _with_version(cluster: Any) -> None:
    change = header_mutation_pb2.HeaderMutation()
    for name in _OF_BROWSERS:
        change.mutations.request_mutations.add().remove = name
    step = change.mutations.request_mutations.add().append
    step.append_action = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    step.header.key, step.header.value = "anthropic-version", "2023-06-01"
    add_filter(cluster, "tierwall.model", change)
