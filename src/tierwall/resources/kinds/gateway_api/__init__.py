"""The Gateway API kinds: GatewayClass, Gateway, ListenerSet, HTTPRoute, GRPCRoute, ReferenceGrant."""

from tierwall.resources.kinds.gateway_api import gateway, grpc_route, http_route, listener_set, reference_grant

KINDS = (*gateway.KINDS, *listener_set.KINDS, *http_route.KINDS, *grpc_route.KINDS, *reference_grant.KINDS)
