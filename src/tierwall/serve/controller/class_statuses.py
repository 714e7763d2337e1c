"""The status of a GatewayClass of ours: whether it is accepted, and what Gateways of it can do (Gateway API).

`SupportedVersion` says whether the Gateway API in the cluster is of a release that Tierwall was written for.
`SUPPORTED_FEATURES` has what the suite of the Gateway API confirms (docs/controller.md#gateways-and-routes).
"""

from __future__ import annotations

import re

from tierwall.attach.status import bounded_message
from tierwall.resources.resource import Resource
from tierwall.serve.controller.desired import WantedCondition
from tierwall.serve.controller.gateway_api_version import DEFINITION_NAME, GatewayApiVersion

# The releases of the Gateway API whose definitions are known, as major and minor number.
RELEASES = tuple((1, minor) for minor in range(7))
# By the names of the Gateway API's features, sorted. Core features come with Gateway, HTTPRoute and ReferenceGrant.
SUPPORTED_FEATURES = (
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayFrontendClientCertificateValidation",
    "GatewayHTTPListenerIsolation",
    "GatewayInfrastructurePropagation",
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
    "HTTPRouteNamedRouteRule",
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
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
)
_VERSION = re.compile(r"v(\d{1,4})\.(\d{1,4})\.\d{1,9}(-[0-9A-Za-z.-]+)?", re.ASCII)


def class_conditions(gateway_class: Resource, release: GatewayApiVersion) -> tuple[WantedCondition, ...]:
    """Return the conditions of a GatewayClass; `release` is that of the Gateway API in the cluster."""
    if gateway_class.spec.get("parametersRef") is not None:
        message = "parametersRef is not supported; Gateways of this class are served without parameters"
        return WantedCondition("Accepted", "False", "InvalidParameters", message), _supported_version(release)
    accepted = WantedCondition("Accepted", "True", "Accepted", "GatewayClass is accepted")
    return accepted, _supported_version(release)


def _supported_version(release: GatewayApiVersion) -> WantedCondition:
    if release.version is None:
        words = "The definitions of the Gateway API cannot be seen, so their version is not known"
        return WantedCondition("SupportedVersion", "Unknown", "Pending", words)
    first, last = (".".join(map(str, release)) for release in (RELEASES[0], RELEASES[-1]))
    is_known = _is_known(release.version)
    message = f"{DEFINITION_NAME} is of {release.version or 'no release'}; supported are v{first} to v{last}"
    reason = "SupportedVersion" if is_known else "UnsupportedVersion"
    return WantedCondition("SupportedVersion", "True" if is_known else "False", reason, bounded_message([message]))


def _is_known(version: str) -> bool:
    match = _VERSION.fullmatch(version)
    return match is not None and (int(match[1]), int(match[2])) in RELEASES
