"""Names in Envoy's configuration: filters, policy slots, Tierwall's own headers, resources.

Every listener has the same filters, so that a policy never changes a listener. Each policy has a slot. Slots follow the
order of the AccessPolicy proposal: first the Gateway level, then the Backend level. The policies of a slot are spread
over shards, and each shard is a filter, so that a change of one policy replaces few others.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Final, NamedTuple

from tierwall.attach.listener import Listener
from tierwall.attach.place import BACKEND
from tierwall.core.answer import Decider
from tierwall.core.reference import Reference
from tierwall.resources.resource import Resource

MCP: Final = "envoy.filters.http.mcp"  # also the namespace of its metadata
RBAC: Final = "envoy.filters.http.rbac"  # the namespace of the metadata of all RBAC filters
OPEN: Final = "tierwall.mcp-open"
ACCEPTS: Final = "tierwall.accepts"
STRICT: Final = "tierwall.strict"
STRICT_ARGUMENTS: Final = "tierwall.strict-arguments"
BODILESS: Final = "tierwall.bodiless"
# The filters of joined MCP servers (`joined_backends`): the first chooses a target, the other asks several.
CHOOSE_TARGET: Final = "tierwall.choose-target"
JOIN: Final = "tierwall.join"
FACTS: Final = "tierwall.facts"
WATCH: Final = "tierwall.watch"
NOWHERE: Final = "nowhere"  # a cluster without addresses
ROUTER: Final = "envoy.filters.http.router"
CORS: Final = "envoy.filters.http.cors"
# Where the filter of tokens puts the claims of a token, for expressions.
JWT_METADATA: Final = "envoy.filters.http.jwt_authn"
CLAIMS: Final = "claims"

# The namespace of route metadata: the Gateway and the listener.
PLACE: Final = "tierwall"

# Facts that matchers look up. Their values never come from a client and never go to a backend.
HEADER_PREFIX: Final = "x-tierwall-"
CALLER: Final = "x-tierwall-caller"
METHOD: Final = "x-tierwall-method"
NAME: Final = "x-tierwall-name"
URI: Final = "x-tierwall-uri"
PATH: Final = "x-tierwall-path"
# The id of a request as it is written; a notification or an answer has none.
ID: Final = "x-tierwall-id"
# Set if no protocol version knows the method, and the client's version wants to be told (MCP 2026-07-28, "Errors").
UNKNOWN_METHOD: Final = "x-tierwall-unknown-method"
# Set for `subscriptions/listen`, whatever it is judged as: the categories of lists whose changes it wants to be told.
LISTENS: Final = "x-tierwall-listens"
USER: Final = "x-tierwall-user"  # the name of a user with a password
ITEMS: Final = "x-tierwall-items"  # the name of the rules about items
# On ways without policies: what opens a stream there (`mcp.watched`).
UNGUARDED: Final = "x-tierwall-unguarded"
ACCEPTED: Final = "x-tierwall-accepted"  # what a client accepts, while the MCP filter reads another value
TARGET: Final = "x-tierwall-target"  # the target of a joined backend that a message is for
JOINED: Final = "x-tierwall-joined"  # the targets of a joined backend, for those who cut its lists
LIMIT_ENTRY: Final = "x-tierwall-limit"  # the entry of a conditional list whose local limits count
FACT_HEADERS: Final = (
    *(CALLER, METHOD, NAME, URI, PATH, ID),
    *(UNKNOWN_METHOD, LISTENS, USER, ITEMS, UNGUARDED, ACCEPTED, TARGET, JOINED, LIMIT_ENTRY),
)
# Some servers read the HTTP method or the path from these. None is forwarded.
OVERRIDE_HEADERS: Final = (
    *("x-http-method", "x-http-method-override", "x-method-override"),
    *("x-original-url", "x-rewrite-url"),
)
# What the method header says of messages that rules judge by more than their method. No client can send a method with
# a blank in it. A completion names a prompt or a template; one that names anything else, and a subscription to
# anything but lists, resources and tasks, needs a rule for everything.
OF_PROMPT: Final = "completion of prompt"
OF_RESOURCE: Final = "completion of resource"
OF_SOMETHING_ELSE: Final = "something else"
# A subscription to two to eight resources: the first is in the URI header, the others are in this metadata (`uris`).
TO_RESOURCES: Final = "subscription to resources"
SUBSCRIPTION: Final = "tierwall.subscription"
MOST_URIS: Final = 8
# Metadata: why a script refused a request (`why`).
REFUSAL: Final = "tierwall.refusal"
# Metadata: that a request was answered for several servers, after all policies (`answered`).
ANSWERED: Final = "tierwall.joined"
# Metadata: the object whose setting or rule a filter answered a request for, behind all policies (`by`).
ANSWERER: Final = "tierwall.answer"
# The header that names the checkpoint, by level; the route sets it (`checkpoints`).
CHECKPOINT: Final = {"gateway": "x-tierwall-gateway", "backend": "x-tierwall-backend"}

# docs/semantics.md#five-policies-per-target; a Gateway and a Backend are one target each.
SLOTS_PER_LEVEL: Final = 5
# Shards of each slot, by level: there are few Gateways and many backends. A filter costs each request some time even
# when it is off, so there are only a few. `bench envoy` and `bench envoy_change` show both sides.
SHARDS: Final = {"gateway": 1, "backend": 4}
# Counts the changes of the filters of gateway settings, and of joined servers.
SETTINGS_LAYOUT: Final = 9


class Slot(NamedTuple):
    """The place of a policy among the filters."""

    level: str
    number: int

    @property
    def shards(self) -> range:
        """The shard numbers."""
        return range(SHARDS[self.level])

    def policy_filter(self, shard: int) -> str:
        """Return the name of the RBAC filter that decides for the policies of a shard."""
        return f"tierwall.{self.level}.{self.number}.{shard}"

    @property
    def authorizer_filter(self) -> str:
        """The name of the ext_authz filter that asks the authorizer."""
        return f"tierwall.{self.level}.{self.number}.authorizer"

    @property
    def prefix(self) -> str:
        """The prefix of its metadata keys."""
        return f"{self.level}_{self.number}_"

    @property
    def result(self) -> str:
        """The metadata key of the verdict, `allowed` or `denied`."""
        return f"{self.prefix}enforced_engine_result"

    @property
    def decider(self) -> str:
        """The metadata key of the policy and rule that gave the verdict."""
        return f"{self.prefix}enforced_effective_policy_id"

    @property
    def asks(self) -> str:
        """The metadata key that is `allowed` if the authorizer must be asked."""
        return f"{self.prefix}shadow_engine_result"

    @property
    def asked(self) -> str:
        """The metadata key of the policy and rule that ask the authorizer; `none` if no rule does."""
        return f"{self.prefix}shadow_effective_policy_id"


GATEWAY_SLOTS: Final = tuple(Slot("gateway", number) for number in range(SLOTS_PER_LEVEL))
BACKEND_SLOTS: Final = tuple(Slot("backend", number) for number in range(SLOTS_PER_LEVEL))
SLOTS: Final = (*GATEWAY_SLOTS, *BACKEND_SLOTS)


def listener_name(gateway: Resource, port: int) -> str:
    """Return the name of an Envoy Listener: a port of a Gateway."""
    return f"gateway/{gateway.namespace}/{gateway.name}/{port}"


def route_name(gateway: Resource, listener: Listener) -> str:
    """Return the name of a RouteConfiguration: the routes of a Gateway's port, with TLS those of one server name.

    Connections that outlive their listener continue with the routes of this name. So the name contains the port, which
    rules may test, and the filter layout: routes for another layout would turn on filters that do not exist.
    """
    host = f"/{listener.hostname.lower() or '*'}" if listener.protocol == "HTTPS" else ""
    layout = f"{SLOTS_PER_LEVEL}x{'+'.join(map(str, SHARDS.values()))}s{SETTINGS_LAYOUT}"
    return f"{listener_name(gateway, listener.port)}/{layout}{host}"


def virtual_host_name(gateway: Resource, listener: Listener, host: str) -> str:
    """Return the name of a virtual host: a host name of a listener of the Gateway or of an attached ListenerSet."""
    owner = "" if listener.owner is gateway else f"{listener.owner.namespace}/{listener.owner.name}/"
    return f"{owner}{listener.name} {host}"


def backend_cluster_name(resource: Resource, port: int = 0) -> str:
    """Return the name of the cluster of an XBackend, or of a port of a Service."""
    if resource.kind == "Service":
        return f"service/{resource.namespace}/{resource.name}/{port}"
    return f"backend/{resource.group}/{resource.namespace}/{resource.name}"


def target_cluster_name(resource: Resource, target: str) -> str:
    """Return the name of the cluster of one of the servers that a backend joins."""
    return f"{backend_cluster_name(resource)}/@{target}"


def target_of_cluster(name: str) -> str:
    """Return the joined server of a cluster; empty for other clusters."""
    kind, *rest = name.split("/")
    return rest[3][1:] if kind == "backend" and len(rest) > 3 and rest[3].startswith("@") else ""


def stream_cluster_name(service: Resource, port: int) -> str:
    """Return the name of the cluster that gets the bytes of connections to a port of a Service as they come."""
    return f"stream/{service.namespace}/{service.name}/{port}"


def authorizer_cluster_name(namespace: str, name: str, port: int, grpc: bool) -> str:
    """Return the name of the cluster of an authorization service."""
    return f"authorizer/{'grpc' if grpc else 'http'}/{namespace}/{name}/{port}"


def reported(name: str) -> str:
    """Return a name as Envoy reports it: it can stand in a JSON string."""
    return json.dumps(name)[1:-1]


def decider(reported: str) -> Decider:
    """Parse the name that Envoy reports (`rbac.rule_name`); a policy that denies as a whole has no rule."""
    with suppress(ValueError):
        reported = json.loads(f'"{reported}"')
    policy, _, rest = reported.partition(" ")
    rule, _, name = rest.partition(" ")
    return Decider(Reference.parse_or_string(policy), rule or None, name or None)


def backend_of_cluster(name: str, with_group: bool = False) -> str | None:
    """Return the reference of the backend of a cluster, such as `XBackend/shop/orders`; None for other clusters.

    `with_group` tells XBackends of two groups apart.
    """
    kind, *rest = name.split("/")
    # A target of a joined backend, and a cluster with settings of its own, have a further part each.
    if kind == "backend" and len(rest) in (3, 4, 5):
        kind = BACKEND[1] if rest[0] == BACKEND[0] else f"XBackend.{rest[0]}" if with_group else "XBackend"
        return f"{kind}/{rest[1]}/{rest[2]}"
    return f"Service/{rest[0]}/{rest[1]}" if kind == "service" and len(rest) in (3, 4) else None


def place_of(chain: str, virtual_host: str) -> dict[str, str]:
    """Return the Gateway and listener of a virtual host, and the ListenerSet that has the listener, if any.

    A filter chain has the name of its RouteConfiguration.
    """
    kind, *rest = chain.split("/")
    listener, _, host = virtual_host.partition(" ")
    if kind != "gateway" or len(rest) not in (4, 5) or not host:
        return {}
    listener_set, _, name = listener.rpartition("/")
    place = {"gateway": f"{rest[0]}/{rest[1]}", "listener": name}
    return place | ({"listenerSet": listener_set} if listener_set else {})
