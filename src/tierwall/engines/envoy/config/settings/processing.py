"""External processing: a service reads requests and responses, and may change or refuse them (agentgateway, "ExtProc").

Without the service a request is refused, unless the policy says FailOpen. The service is on the route, and with it what
is sent to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2, processing_mode_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2

from tierwall.engines.envoy.config.external_auth import TIMEOUT_S
from tierwall.engines.envoy.config.settings.choices import always
from tierwall.engines.envoy.config.settings.external import fails_open
from tierwall.engines.envoy.config.settings.filters import (
    PROCESS,
    REQUEST_LENGTH,
    RESPONSE_LENGTH,
    choosing_filter,
    process_filter,
    processing,
)
from tierwall.engines.envoy.config.settings.services import ServiceCluster, endpoint
from tierwall.engines.envoy.config.settings.traffic import RouteChange, turned_on
from tierwall.gateway.model.fields import Phase
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot

_MODE = processing_mode_pb2.ProcessingMode
_BODY_MODES = {
    "None": _MODE.NONE,
    "Buffered": _MODE.BUFFERED,
    "BufferedPartial": _MODE.BUFFERED_PARTIAL,
    "FullDuplexStreamed": _MODE.FULL_DUPLEX_STREAMED,
}
_SENT = {"Send": _MODE.SEND, "Skip": _MODE.SKIP}


def external_processing(snapshot: Snapshot, policy: Resource, value: Mapping[str, Any]) -> tuple[Any, ServiceCluster]:
    """Return the settings of a filter whose requests a service processes, and the cluster of the service."""
    cluster, _ = endpoint(snapshot, policy, value, "process", grpc=True)
    out = ext_proc_pb2.ExtProcPerRoute()
    out.overrides.grpc_service.envoy_grpc.cluster_name = cluster.name
    out.overrides.grpc_service.timeout.seconds = TIMEOUT_S
    out.overrides.failure_mode_allow.value = fails_open(value)
    _set_mode(out.overrides.processing_mode, nested_map(value, "processingOptions"))
    return out, cluster


def processing_change(settings: Any, value: Mapping[str, Any], phase: Phase) -> RouteChange:
    """Return the change of a route whose requests a service processes, with these settings."""
    if may_change_mode(value):
        return measured_again(always(processing_filter(settings, value), choosing_filter(phase, PROCESS)))
    return measured_again(turned_on(process_filter(phase), settings))


def measured_again(change: RouteChange) -> RouteChange:
    """Return a change with which a service processes messages, and the length that they say of themselves is dropped.

    The service may say any length, and may leave the body as it is: the server would read the rest as a request that
    nobody judged, or take the next one for the rest.
    """
    request, response = header_mutation_pb2.HeaderMutationPerRoute(), header_mutation_pb2.HeaderMutationPerRoute()
    request.mutations.request_mutations.add().remove = "content-length"
    response.mutations.response_mutations.add().remove = "content-length"
    changes = change, turned_on(REQUEST_LENGTH, request), turned_on(RESPONSE_LENGTH, response)

    def apply(route: Any) -> None:
        for each in changes:
            each(route)

    return apply


def may_change_mode(value: Mapping[str, Any]) -> bool:
    """Whether the service may change what it gets of a message; Envoy knows that only of a whole filter."""
    return nested_map(value, "processingOptions").get("allowModeOverride") is True


def processing_filter(settings: Any, value: Mapping[str, Any]) -> Any:
    """Return a filter by itself with the settings that a route would have."""
    out = processing("settings_choice")
    out.failure_mode_allow = fails_open(value)
    out.allow_mode_override = may_change_mode(value)
    out.grpc_service.CopyFrom(settings.overrides.grpc_service)
    out.processing_mode.CopyFrom(settings.overrides.processing_mode)
    return out


def _set_mode(mode: Any, options: Mapping[str, Any]) -> None:
    """Set which parts of a message the service gets; by default all, as streams in both directions."""
    for side in ("request", "response"):
        body = options.get(f"{side}BodyMode", "FullDuplexStreamed")
        trailers = options.get(f"{side}TrailerMode", "Send")
        setattr(mode, f"{side}_header_mode", _SENT[options.get(f"{side}HeaderMode", "Send")])
        setattr(mode, f"{side}_body_mode", _BODY_MODES[body])
        setattr(mode, f"{side}_trailer_mode", _SENT[trailers])
