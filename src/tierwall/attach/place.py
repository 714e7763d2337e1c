"""Places that policies attach to and that questions ask about (agentgateway, "Targeting rules")."""

from __future__ import annotations

from typing import NamedTuple

from tierwall.core.reference import Reference
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

GATEWAY_API = "gateway.networking.k8s.io"
AGENTGATEWAY = "agentgateway.dev"
INFERENCE = "inference.networking.k8s.io"

GATEWAY = (GATEWAY_API, "Gateway")
LISTENER_SET = (GATEWAY_API, "ListenerSet")
X_LISTENER_SET = ("gateway.networking.x-k8s.io", "XListenerSet")
HTTP_ROUTE = (GATEWAY_API, "HTTPRoute")
GRPC_ROUTE = (GATEWAY_API, "GRPCRoute")
TLS_ROUTE = (GATEWAY_API, "TLSRoute")
TCP_ROUTE = (GATEWAY_API, "TCPRoute")
SERVICE = ("", "Service")
BACKEND = (AGENTGATEWAY, "AgentgatewayBackend")
MODEL = (AGENTGATEWAY, "AgentgatewayModel")
INFERENCE_POOL = (INFERENCE, "InferencePool")

ROUTES = (HTTP_ROUTE, GRPC_ROUTE)
# Routes whose bytes go on as they come.
STREAM_ROUTES = (TLS_ROUTE, TCP_ROUTE)


class Place(NamedTuple):
    """An object, or one section or port of it. At most one of `section` and `port` is set."""

    group: str
    kind: str
    namespace: str
    name: str
    section: str = ""
    port: int = 0

    @classmethod
    def of(cls, resource: Resource, section: str = "", port: int = 0) -> Place:
        """Return the place of an object, or of a section or port of it."""
        return cls(resource.group, resource.kind, resource.namespace, resource.name, section, port)

    @property
    def whole(self) -> Place:
        """The place of the whole object, without section and port."""
        return self._replace(section="", port=0)

    @property
    def key(self) -> tuple[str, str]:
        """The group and kind."""
        return self.group, self.kind

    @property
    def reference(self) -> Reference:
        """The reference that output uses for the place."""
        return Reference(self.kind, self.namespace, self.name, self.section or (str(self.port) if self.port else ""))

    def resource(self, snapshot: Snapshot) -> Resource | None:
        """Return the object, or None if it does not exist."""
        return snapshot.get(self.group, self.kind, self.namespace, self.name)

    def __str__(self) -> str:
        return str(self.reference)


def service_port(section: object) -> str:
    """Normalise the section of a Service: `"08080"` and `8080` are the port `"8080"`."""
    text = str(section)
    return str(int(text)) if text.isascii() and text.isdigit() and len(text) <= 20 else text
