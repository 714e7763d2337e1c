"""Observations of the services that settings ask about requests: which one is asked, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.settings.expressions import constant, parsed
from tierwall.engines.envoy.probe.observations import Explains, ProbeClient, Unobservable
from tierwall.engines.envoy.probe.recorder import RecordingBackend
from tierwall.engines.envoy.probe.recording_service import CountedRequest, RecordingService
from tierwall.resources.resource import Resource, list_of_maps, nested_map

# The fields that ask a service over gRPC; an authorization service is asked over HTTP here.
OVER_GRPC = ("traffic.extProc", "traffic.rateLimit.global")
ASKING = ("traffic.extAuth", *OVER_GRPC)


def service_of(policy: Resource, value: Mapping[str, Any]) -> str:
    """Return the Service that a setting asks, as `namespace/name`."""
    ref = nested_map(value, "backendRef")
    if not ref or "grpc" in value:
        raise Unobservable("a test answers only for Services, and about authorization over HTTP")
    return f"{ref.get('namespace') or policy.namespace}/{ref.get('name')}"


def external_service(
    client: ProbeClient, services: Mapping[str, RecordingBackend], policies: Sequence[Resource], values: Sequence[Any]
) -> Explains:
    """See which service is asked, and under which path; then let the services refuse."""
    expected = [
        {service_of(policy, value): [f"/{_named_path(value).removeprefix('/')}"]}
        for policy, value in zip(policies, values, strict=True)
    ]
    for service in services.values():
        service.requests.clear()
    client.send()
    asked = {name: [request.path for request in service.requests] for name, service in services.items()}
    asked = {name: paths for name, paths in asked.items() if paths}
    for service in services.values():
        service.status = 403
    passed = client.send().passed
    for service in services.values():
        service.status = 200
    return lambda value: (
        passed and not asked if value is None else not passed and asked == expected[values.index(value)]
    )


def _named_path(value: Mapping[str, Any]) -> str:
    """Return the path that a setting names; without one, the service is asked at that of the request."""
    http = nested_map(value, "http")
    return constant(http["path"]) if "path" in http else "/"


def processing(
    client: ProbeClient, services: Mapping[str, RecordingService], policies: Sequence[Resource], values: Sequence[Any]
) -> Explains:
    """See which service gets a message to process, and which parts of it."""
    expected = [{service_of(policy, value): _parts(value)} for policy, value in zip(policies, values, strict=True)]
    for service in services.values():
        service.clear()
    if not client.send().passed:
        raise Unobservable("a request does not reach the backend")
    asked = {name: set(service.processed[0]) for name, service in services.items() if service.processed}

    def explains(value: Any) -> bool:
        wanted = expected[values.index(value)] if value is not None else {}
        return asked == {name: parts for name, parts in wanted.items() if parts}

    return explains


def _parts(value: Mapping[str, Any]) -> set[str]:
    """Return the parts that a service gets of a request without a body, and of its response."""
    options = nested_map(value, "processingOptions")
    headers = {f"{side}_headers" for side in ("request", "response") if options.get(f"{side}HeaderMode") != "Skip"}
    return headers | ({"response_body"} if options.get("responseBodyMode") != "None" else set())


def counting(
    client: ProbeClient, services: Mapping[str, RecordingService], policies: Sequence[Resource], values: Sequence[Any]
) -> Explains:
    """See which service counts a request, in which domain and by which descriptors."""
    names = [service_of(policy, value) for policy, value in zip(policies, values, strict=True)]
    for service in services.values():
        service.clear()
    client.send()
    asked = [(name, counted) for name, service in services.items() for counted in service.counted]

    def explains(value: Any) -> bool:
        if value is None or not asked:
            if value is not None and not any(map(_is_constant, list_of_maps(value.get("descriptors")))):
                raise Unobservable("a descriptor needs more than the request of a test has")
            return value is None and not asked
        return len(asked) == 1 and asked[0][0] == names[values.index(value)] and _fits(asked[0][1], value)

    return explains


def _is_constant(descriptor: Mapping[str, Any]) -> bool:
    trees = (parsed(entry["expression"]) for entry in list_of_maps(descriptor.get("entries")))
    return all(isinstance(tree, ast.Literal) for tree in trees)


def _fits(counted: CountedRequest, value: Mapping[str, Any]) -> bool:
    """Whether a service was told what a setting says; descriptors that the request lacks are not told."""
    written = [
        [(entry["name"], parsed(entry["expression"])) for entry in list_of_maps(descriptor.get("entries"))]
        for descriptor in list_of_maps(value.get("descriptors"))
    ]
    return counted.domain == value["domain"] and all(
        any(_matches(sent, descriptor) for descriptor in written) for sent in counted.descriptors
    )


def _matches(sent: Sequence[tuple[str, str]], descriptor: Sequence[tuple[str, ast.Expr]]) -> bool:
    return len(sent) == len(descriptor) and all(
        key == name and (not isinstance(tree, ast.Literal) or text == str(tree.value))
        for (key, text), (name, tree) in zip(sent, descriptor, strict=True)
    )
