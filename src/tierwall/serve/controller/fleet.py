"""All Envoys of Gateways of class `tierwall`: who may connect, and what the Envoys of each Gateway get.

Every replica of the controller serves Envoys, whether it leads or not. Replicas compile the same objects to the same
resources, so an Envoy that moves to another replica is sent nothing that it has. A replica may be behind the one that
an Envoy comes from. So it changes nothing in that Envoy until `release` says that it has caught up
(docs/fleet.md#replicas).

INVARIANT: an Envoy gets the resources of the Gateway that its certificate names, and of no other. Its node may name a
Gateway, too, but chooses only among those of the certificate.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from tierwall.attach.place import GATEWAY
from tierwall.attach.reach import gateway_graph
from tierwall.attach.target import ACCESS_POLICIES, attachments, whole_objects
from tierwall.cluster.wanted import followed_kinds
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config.options import MAX_PROGRAM_SIZE, EnvoyOptions
from tierwall.engines.envoy.config.settings.secrets import objects_to_read
from tierwall.engines.envoy.control.proxies import ProxyGroup
from tierwall.engines.envoy.control.server import DiscoveryServer, ProxyNode, UnservedProxyError
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.serve.controller.envoy_report import EnvoyReport, Generation, generation_of
from tierwall.serve.controller.gateway_class import GATEWAY_CLASS, full_name, served_gateways
from tierwall.serve.controller.gateway_envoys import GatewayEnvoys
from tierwall.serve.envoy import Compilation
from tierwall.serve.follower import unexpected

# The planes whose objects an Envoy depends on.
PLANES = ("tool", "gateway")
_URI = "tierwall://gateway/"
# Whoever has the certificate of one Gateway must not use up what the Envoys of the others need.
MAX_ENVOYS = 1_000


def gateway_uri(gateway: str) -> str:
    """Return the URI in the client certificate of an Envoy that serves a Gateway, `namespace/name`."""
    return _URI + quote(gateway)


def named_objects(snapshot: Snapshot, namespaces: Collection[str] | None) -> frozenset[Identity]:
    """Return the Secrets and ConfigMaps that served Gateways name; no others are read.

    `namespaces` are those whose Gateways are served; None for all. A Gateway may name a Secret of another namespace,
    where a ReferenceGrant permits it. It is read only if that namespace is one of these.
    """
    names = frozenset(map(full_name, served_gateways(snapshot, namespaces)))
    needed = objects_to_read(snapshot, EnvoyOptions(gateways=names)) if names else frozenset()
    return frozenset(identity for identity in needed if namespaces is None or identity[2] in namespaces)


class FleetCompilation(NamedTuple):
    """The configurations of all Gateways that could be compiled, and what is wrong with the others."""

    snapshot: Snapshot
    by_gateway: Mapping[str, tuple[GatewayEnvoys, Compilation]]
    gateways: frozenset[str]
    problems: tuple[Diagnostic, ...] = ()
    # The AccessPolicies that the Envoys of each of those others must hold, and do not get.
    withheld: Mapping[str, frozenset[Generation]] = {}


class FleetController:
    """Compiles every Gateway of our class and serves its Envoys. `changed` is called when a report may have changed."""

    def __init__(
        self,
        options: EnvoyOptions | None = None,
        namespaces: Collection[str] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`namespaces` are those whose Gateways are served; None for all."""
        self._options = replace(options or EnvoyOptions(), max_program_size=MAX_PROGRAM_SIZE)
        self._namespaces = namespaces
        self._changed = changed
        self._by_name: dict[str, GatewayEnvoys] = {}
        self._objects = _EngineObjects()
        # What was last published as a whole.
        self._published: Snapshot | None = None
        self.has_published = False
        self._withheld: Mapping[str, frozenset[Generation]] = {}
        # What is in force is at least as new as what all replicas had published at this moment, in monotonic seconds.
        self._fresh = -math.inf
        # Set when Envoys answered, so that `attend` has something to do.
        self.wake = asyncio.Event()
        self.server = DiscoveryServer(self.find_group)

    # Loads

    def prepare(self, snapshot: Snapshot) -> FleetCompilation:
        """Compile all Gateways, in a thread; what fails for one of them keeps nothing out for the others."""
        objects = self._objects.of(snapshot)
        gateways = frozenset(map(full_name, served_gateways(objects, self._namespaces)))
        compiled: dict[str, tuple[GatewayEnvoys, Compilation]] = {}
        problems: list[Diagnostic] = []
        withheld: dict[str, frozenset[Generation]] = {}
        if objects is not self._published:
            for name in sorted(gateways):
                envoys = self._by_name.get(name) or self._new(name)
                try:
                    compiled[name] = envoys, envoys.prepare(objects)
                except Exception as error:
                    problems.append(unexpected(error))
                    withheld[name] = _policies_behind(objects, name)
        return FleetCompilation(objects, compiled, gateways, tuple(problems), withheld)

    def enforce(self, prepared: FleetCompilation) -> None:
        """Publish what was compiled; Gateways that are gone, or not ours any more, are closed."""
        for name, (envoys, compilation) in prepared.by_gateway.items():
            self._by_name[name] = envoys
            envoys.enforce(prepared.snapshot, compilation)
        for name, envoys in self._by_name.items():
            if name not in prepared.gateways and envoys.is_open:
                envoys.close()
        self._published = prepared.snapshot if not prepared.problems else None
        self._withheld = prepared.withheld
        self.has_published = True
        self._changed()

    def release(self, moment: float) -> None:
        """Note that this replica has caught up with everything that any replica had published at a moment."""
        if moment > self._fresh:
            self._fresh = moment
            for envoys in self._by_name.values():
                envoys.proxies.release()

    @property
    def has_held(self) -> bool:
        """Whether an Envoy that came back waits for this replica to catch up."""
        return any(stream.is_held for envoys in self._by_name.values() for stream in envoys.proxies.streams)

    async def attend(self, idle: bool) -> bool:
        """Process what Envoys answered; return whether further answers are due."""
        due = [await envoys.attend(idle) for envoys in tuple(self._by_name.values())]
        return any(due)

    def _new(self, name: str) -> GatewayEnvoys:
        def answered() -> None:
            self.wake.set()
            self._changed()

        return GatewayEnvoys(name, self._options, answered, lambda moment: moment <= self._fresh)

    # Envoys

    def find_group(self, proxy: ProxyNode) -> ProxyGroup:
        """Return the group of an Envoy, by its certificate; UnservedProxyError if it may have nothing."""
        allowed = [uri for uri in proxy.uris if uri.startswith(_URI)]
        if not allowed:
            raise UnservedProxyError(f"the client certificate names no Gateway: it has no URI `{_URI}NAMESPACE/NAME`")
        metadata = proxy.node.metadata.fields
        named = metadata["gateway"].string_value if "gateway" in metadata else ""
        names = [name for name in self._by_name if gateway_uri(name) in allowed]
        if named and gateway_uri(named) not in allowed:
            raise UnservedProxyError(f"the client certificate is not for Gateway {named}")
        names = [name for name in names if not named or name == named]
        if not names:
            # It may have been created a moment ago.
            raise UnservedProxyError(f"Gateway {named or allowed[0]} is not served here yet", is_final=False)
        group = self._by_name[names[0]].proxies
        if len(group.streams) >= MAX_ENVOYS:
            raise UnservedProxyError(f"Gateway {names[0]} has {MAX_ENVOYS} Envoys here already", is_final=False)
        return group

    @property
    def gateways(self) -> Iterable[GatewayEnvoys]:
        """The Gateways that are served."""
        return tuple(envoys for envoys in self._by_name.values() if envoys.is_open)

    def demanded(self, envoys: GatewayEnvoys) -> frozenset[Generation]:
        """Return the generations that the Envoys of a Gateway must hold, also those that could not be compiled."""
        return envoys.generations | self._withheld.get(envoys.name, frozenset())

    @property
    def reports(self) -> dict[str, EnvoyReport]:
        """Reports about the Envoys that are connected here, by Gateway."""
        return {envoys.name: envoys.report for envoys in self.gateways}


def _policies_behind(snapshot: Snapshot, gateway: str) -> frozenset[Generation]:
    """Return the generations of the AccessPolicies on a Gateway and on what it leads to; of all if that fails, too."""
    try:
        known, graph = attachments(snapshot, ACCESS_POLICIES, admitted=False), gateway_graph(snapshot)
        policies = [
            policy
            for policy in known.policies
            for place in whole_objects(known.of(policy))
            if gateway
            in {f"{each.namespace}/{each.name}" for each in (place, *graph.gateways(place)) if each.key == GATEWAY}
        ]
    except Exception:
        policies = [policy for kind in ACCESS_POLICIES for policy in snapshot.of_kind(*kind)]
    return frozenset(map(generation_of, policies))


class _EngineObjects:
    """Snapshots of what Envoys depend on. Statuses and resource versions are not part of it.

    A status that the controller writes must not look like a change of the object.
    """

    def __init__(self) -> None:
        named: tuple[KindKey, ...] = (("", "Secret"), ("", "ConfigMap"))
        self._kinds = frozenset((*followed_kinds(PLANES, has_files=False), GATEWAY_CLASS, *named))
        self._seen = Snapshot({})
        self._objects = Snapshot({})

    def of(self, snapshot: Snapshot) -> Snapshot:
        """Return the objects of a snapshot; the same as before if nothing has changed that matters."""
        put, drop = [], []
        for old, new in snapshot.changes(self._seen):
            either = new if new is not None else old
            assert either is not None
            if (either.group, either.kind) not in self._kinds:
                continue
            known = self._objects.get(*either.identity)
            bare = _bare(new) if new is not None else None
            if bare is None and known is not None:
                drop.append(known)
            elif bare is not None and (known is None or not bare.has_same_content(known)):
                put.append(bare)
                if known is not None and known.version != bare.version:
                    drop.append(known)
        self._seen = snapshot
        if put or drop:
            self._objects = self._objects.with_changes(put, drop)
        return self._objects


def _bare(resource: Resource) -> Resource:
    """Return an object without its status and without what changes with every write."""
    metadata = {
        key: value for key, value in resource.metadata.items() if key not in ("resourceVersion", "managedFields")
    }
    value = {key: value for key, value in resource.value.items() if key != "status"} | {"metadata": metadata}
    return replace(resource, value=value, _memo={})
