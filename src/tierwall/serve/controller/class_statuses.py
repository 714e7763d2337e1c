"""The status of a GatewayClass of ours: whether it is accepted, and what Gateways of it can do (Gateway API).

`SupportedVersion` is about the definitions of the Gateway API in the cluster: those of the releases that Tierwall was
written for. `SUPPORTED_FEATURES` has only what tests with a real Envoy hold (docs/controller.md#gateways-and-routes).
"""

from __future__ import annotations

import re

from tierwall.attach.status import bounded_message
from tierwall.core.words import join_names
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import DEFINITION
from tierwall.serve.controller.compiled_gateways import GATEWAY_API
from tierwall.serve.controller.desired import WantedCondition

BUNDLE_VERSION = f"{GATEWAY_API}/bundle-version"
# The releases of the Gateway API whose definitions are known, as major and minor number.
RELEASES = tuple((1, minor) for minor in range(7))
# By the names of the Gateway API's features, sorted. Core features come with Gateway, HTTPRoute and ReferenceGrant.
SUPPORTED_FEATURES = (
    "GRPCRoute",
    "Gateway",
    "GatewayHTTPListenerIsolation",
    "GatewayPort8080",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "ReferenceGrant",
)
_VERSION = re.compile(r"v(\d{1,4})\.(\d{1,4})\.\d{1,9}(-[0-9A-Za-z.-]+)?", re.ASCII)


def class_conditions(live: Snapshot, gateway_class: Resource) -> tuple[WantedCondition, ...]:
    """Return the conditions of a GatewayClass; `live` may have the definitions of the Gateway API."""
    if gateway_class.spec.get("parametersRef") is not None:
        message = "parametersRef is not supported; Gateways of this class are served without parameters"
        return WantedCondition("Accepted", "False", "InvalidParameters", message), _supported_version(live)
    accepted = WantedCondition("Accepted", "True", "Accepted", "GatewayClass is accepted")
    return accepted, _supported_version(live)


def _supported_version(live: Snapshot) -> WantedCondition:
    definitions = [each for each in live.of_kind(*DEFINITION) if each.name.endswith(f".{GATEWAY_API}")]
    if not definitions:
        words = "The definitions of the Gateway API cannot be seen, so their version is not known"
        return WantedCondition("SupportedVersion", "Unknown", "Pending", words)
    versions = {
        each.name: str(nested_map(each.metadata, "annotations").get(BUNDLE_VERSION, "")) for each in definitions
    }
    unknown = sorted(name for name, version in versions.items() if not _is_known(version))
    first, last = (".".join(map(str, release)) for release in (RELEASES[0], RELEASES[-1]))
    supported = f"supported are v{first} to v{last}"
    if unknown:
        releases = [f"{name} is of {versions[name] or 'no release'}" for name in unknown]
        message = bounded_message([f"{join_names(releases)}; {supported}"])
        return WantedCondition("SupportedVersion", "False", "UnsupportedVersion", message)
    message = f"The definitions of the Gateway API are of {join_names(sorted(set(versions.values())))}; {supported}"
    return WantedCondition("SupportedVersion", "True", "SupportedVersion", bounded_message([message]))


def _is_known(version: str) -> bool:
    match = _VERSION.fullmatch(version)
    return match is not None and (int(match[1]), int(match[2])) in RELEASES
