"""Checks of paths: backends that pods can reach around their Gateway, and granted calls that the network stops.

docs/path.md#what-check-finds. Gateways enforce tool policies. A pod that can connect to a backend by itself goes around
all of them. And a grant is worth nothing if no connection carries the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from tierwall.analyze.closing_policy import closing_policy
from tierwall.analyze.path_matrix import PathMatrix, PortOfPod
from tierwall.core.answer import DEFAULT, Decider
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import rule_place
from tierwall.core.verdict import Verdict
from tierwall.core.words import count_noun, join_names
from tierwall.network.decide import decide
from tierwall.network.detail import ConnectionDecision, single_detail
from tierwall.network.ends import EndFinder
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.ways import GATEWAY_LABEL
from tierwall.network.reach.spaces import union
from tierwall.network.sentence import sentence
from tierwall.path.backend_endpoint import TCP, BackendEndpoint, backend_endpoints
from tierwall.path.gateway_pods import gateway_pods, listening_pods
from tierwall.path.service_account import service_account
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import declared_tools, known_tools
from tierwall.tool.model import is_on_gateways, model
from tierwall.tool.possible import OTHER, possible
from tierwall.tool.protocol import CALL
from tierwall.tool.request import tool_request
from tierwall.tool.rules import TRUST_DOMAIN, AccessPolicy, AccessRule, CallerIdentity
from tierwall.tool.ways import BackendWay, routed_ways, unrouted_ways
from tierwall.values.addresses import format_address

IMPOSSIBLE, AROUND = "TW413", "TW414"
_POSSIBLE = (Verdict.ALLOW, Verdict.CONDITIONAL)


class BackendWays(Struct, frozen=True, eq=False):
    """A backend, the ways to it, the policies on them, and the ports of pods behind it."""

    resource: Resource
    ways: tuple[BackendWay, ...]
    guards: tuple[AccessPolicy, ...]
    # With where it leads: several places if it has several MCP targets.
    targets: Mapping[PortOfPod, BackendEndpoint]

    @property
    def gateways(self) -> tuple[Resource, ...]:
        """The Gateways that lead to the backend."""
        return tuple(dict.fromkeys(way.gateway for way in self.ways))

    @property
    def pods(self) -> tuple[Endpoint, ...]:
        """The pods of the backend."""
        return tuple(dict.fromkeys(target.pod for target in self.targets))


def path_findings(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield what is wrong with the paths of calls; nothing without pods."""
    if network_model(snapshot).pods:
        yield from _PathCheck(snapshot).findings()


class _PathCheck:
    """Everything that the checks have in common: backends, the pods of Gateways and callers, and who reaches whom."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._network = network_model(snapshot)
        self._model = model(snapshot)
        ways = routed_ways(snapshot) or unrouted_ways(snapshot)
        by_backend: dict[Resource, list[BackendWay]] = {}
        for way in ways:
            by_backend.setdefault(way.resource, []).append(way)
        self._backends = [self._backend(resource, ways) for resource, ways in by_backend.items()]
        self._gateway_pods = {way.gateway: gateway_pods(snapshot, way.gateway) for way in ways}
        self._listening = {
            (way.gateway, way.listener.port): tuple(
                PortOfPod(pod, port)
                for pod, port in listening_pods(snapshot, self._gateway_pods[way.gateway], way.listener.port, TCP)
            )
            for way in ways
            if way.listener.port
        }
        self._caller_pods = self._pods_of_callers(ways)
        behind = (target for backend in self._backends for target in backend.targets)
        listening = (target for targets in self._listening.values() for target in targets)
        sets = [
            *(backend.pods for backend in self._backends),
            *self._gateway_pods.values(),
            *self._caller_pods.values(),
        ]
        self._reach = PathMatrix(snapshot, (*behind, *listening), sets)
        self._callers = self._reach.mask(pod for pods in self._caller_pods.values() for pod in pods)

    def findings(self) -> Iterator[Diagnostic]:
        """Yield one finding per backend that pods reach around, and per backend or policy whose calls are stopped."""
        for backend in self._backends:
            yield from self._around(backend)
            yield from self._unreachable(backend)
        yield from self._stopped_callers()

    def _backend(self, resource: Resource, ways: Sequence[BackendWay]) -> BackendWays:
        stacks = (self._model.stack(way.gateway, way.listener, way.resource) for way in ways)
        guards = dict.fromkeys(policy for stack in stacks for tier in stack for policy in tier.policies)
        targets: dict[PortOfPod, BackendEndpoint] = {}
        finder = EndFinder(self._snapshot, self._network, [])
        for gateway in dict.fromkeys(way.gateway for way in ways):
            for end in backend_endpoints(self._snapshot, resource, gateway):
                # Addresses outside are not pods.
                for port in end.ports if not (end.problem or end.host) else ():
                    asked = finder.find(end.to, "to", TCP, port)
                    groups = asked.groups if asked is not None else ()
                    for group in groups:
                        for pod in group.members:
                            if pod.kind == "pod" and not pod.ended:
                                targets.setdefault(PortOfPod(pod, group.port or port), end)
        return BackendWays(resource, tuple(ways), tuple(guards), targets)

    # Around the Gateway

    def _around(self, backend: BackendWays) -> Iterator[Diagnostic]:
        if not backend.guards or not backend.targets:
            return
        reach = self._reach
        behind = reach.mask(backend.pods)
        known = [pod for gateway in backend.gateways for pod in self._gateway_pods[gateway]]
        others = reach.under_policy & ~behind & ~reach.mask(known)
        reached = {target: reach.sources(target, (Verdict.ALLOW,)) & others for target in backend.targets}
        everyone = union(reached.values())
        owners = reach.owners(everyone)
        # If the pods of a Gateway are not known, a single workload that reaches the backend may well be the Gateway.
        unknown = [gateway for gateway in backend.gateways if not self._gateway_pods[gateway]]
        if len(owners) <= (1 if unknown else 0):
            return
        deciders = dict.fromkeys(
            decider for target, sources in reached.items() for decider in reach.deciders(target, sources)
        )
        # A caller that the policies name shows best what they do not see.
        witness = next(reach.examples(everyone & self._callers or everyone))
        target = next(target for target in reached if reached[target] & reach.mask((witness,)))
        decision = decide(self._network, witness, target.pod, TCP, target.port)
        number, connection = reach.count(everyone), f"reaches {target.pod} on TCP port {target.port}"
        subject, them, shown = _named_pods(number, owners, witness)
        message = (
            f"{subject} can call {backend.resource.reference} without passing "
            f"{join_names([str(gateway.reference) for gateway in backend.gateways])}, so "
            f"{join_names([str(policy.reference) for policy in backend.guards])} cannot stop {them}: "
            f"{shown} {connection}, because {_why(decision)}"
        )
        yield backend.resource.diagnostic(
            AROUND,
            message,
            hint=self._closing(backend, target, list(deciders)),
            # Where no policy closes the port, pods that come later get in as well, which is not news.
            related_objects=() if DEFAULT in deciders else tuple(owners),
        )

    def _closing(self, backend: BackendWays, target: PortOfPod, deciders: Sequence[Decider]) -> str:
        """Return what closes the way around: a NetworkPolicy, or the rules to narrow."""
        end = backend.targets[target]
        ports = [
            other
            for other, there in backend.targets.items()
            if (there == end if end.service is None else there.service == end.service)
        ]
        if not any(other.pod.under_policy for other in ports):
            return "its pods are on the network of their nodes, where no policy applies: take them off it"
        rules = [decider.short for decider in deciders if decider != DEFAULT]
        narrow = f"narrow {join_names(rules)}" if rules else ""
        service = self._snapshot.find(end.service) if end.service is not None else None
        labels = nested_map(service.spec, "selector") if service is not None else target.pod.labels
        if DEFAULT not in deciders or not labels:
            return narrow
        gateways = {gateway: self._gateway_pods[gateway] for gateway in backend.gateways}
        on_nodes = [pod for pods in gateways.values() for pod in pods if not pod.under_policy]
        addresses = [format_address(address) for pod in on_nodes for address in pod.addresses]
        if on_nodes and not all(pod.addresses for pod in on_nodes):
            return (
                f"take {join_names([str(pod) for pod in on_nodes])} off the network of their nodes, "
                "so that a policy can let in the Gateway alone"
            )
        # The NetworkPolicy selects pods, which may lack the label although their workload has it.
        unlabelled = [
            str(gateway.reference)
            for gateway, pods in gateways.items()
            if not pods or any(GATEWAY_LABEL not in pod.labels for pod in pods if pod.under_policy)
        ]
        label = f"label the pods of {join_names(unlabelled)} as its own, and " if unlabelled else ""
        labelled = [gateway for gateway, pods in gateways.items() if not pods or any(pod.under_policy for pod in pods)]
        name, namespace = f"{backend.resource.name}-from-gateway", target.pod.namespace
        policy = closing_policy(name, namespace, labels, labelled, addresses, (other.port for other in ports))
        nodes = ", by the addresses of its nodes" if on_nodes else ""
        policy = f"{label}let in the Gateway alone{nodes}: {policy}"
        return f"{narrow}, and {policy}" if narrow else policy

    # Calls that the network stops

    def _unreachable(self, backend: BackendWays) -> Iterator[Diagnostic]:
        """Find Gateways none of whose pods reaches the backend: every call that is granted there fails."""
        for gateway in backend.gateways if backend.targets else ():
            # A pod needs no connection to itself.
            pods = [pod for pod in self._gateway_pods[gateway] if pod not in backend.pods]
            mask = self._reach.mask(pods)
            if not pods or any(self._reach.sources(target, _POSSIBLE) & mask for target in backend.targets):
                continue
            ways = [way for way in backend.ways if way.gateway is gateway]
            grant = next((grant for way in ways if (grant := self._some_grant(way))), "")
            if not grant:
                continue
            target = next(iter(backend.targets))
            message = (
                f"{grant} through {gateway.reference}, but the network stops every call behind it: "
                f"{self._denied(pods[0], target)}"
            )
            yield backend.resource.diagnostic(
                IMPOSSIBLE,
                message,
                hint="let the Gateway's pods connect to those of the backend",
                related_objects=(str(gateway.reference),),
            )

    def _some_grant(self, way: BackendWay) -> str:
        """Say which call the tool plane allows on a way; empty if it allows none."""
        stack = self._model.stack(way.gateway, way.listener, way.resource)
        policies = [policy for tier in stack for policy in tier.policies]
        if not policies:
            return f"every caller may use {way.resource.reference}"
        callers = dict.fromkeys(caller for policy in policies for caller in policy.allows.callers())
        for caller in (*callers, None):
            tool = self._granted_tool(way, caller)
            if tool:
                return f"{_named_caller(caller)} may call {_named_tool(tool)} of {way.resource.reference}"
        return ""

    def _granted_tool(self, way: BackendWay, caller: str | None) -> str:
        """Return a tool that a caller may call on a way, in some circumstances; empty if there is no such tool."""
        stack = self._model.stack(way.gateway, way.listener, way.resource)
        tools = sorted({*known_tools(stack, way.backend), *declared_tools(way.resource)} - {OTHER})
        for tool in (*tools, OTHER):
            request = tool_request(way.backend, caller, CALL, tool, port=way.listener.port)
            if possible(stack, request).verdict is not Verdict.DENY:
                return tool
        return ""

    def _pods_of_callers(self, ways: Iterable[BackendWay]) -> Mapping[str, tuple[Endpoint, ...]]:
        """Return the pods of every ServiceAccount that a policy on some way names, by SPIFFE id."""
        named = {
            rule.source.spiffe
            for way in ways
            for tier in self._model.stack(way.gateway, way.listener, way.resource)
            for policy in tier.policies
            for rule in policy.allows.all
            if isinstance(rule.source, CallerIdentity)
        }
        pods: dict[str, list[Endpoint]] = {}
        for pod in self._network.pods if named else ():
            namespace, _, name = service_account(self._snapshot, pod).partition("/")
            spiffe = f"spiffe://{TRUST_DOMAIN}/ns/{namespace}/sa/{name}"
            if spiffe in named:
                pods.setdefault(spiffe, []).append(pod)
        return {spiffe: tuple(pods[spiffe]) for spiffe in sorted(pods)}

    def _stopped_callers(self) -> Iterator[Diagnostic]:
        """Find callers that policies name, and that cannot reach a Gateway through which they may call something.

        A caller is said once per Gateway, at the first policy there that names it. A policy on a backend does not care
        which Gateway a call comes through, so it counts only if the caller reaches none of them.
        """
        named = self._named_callers()
        gets_in = {
            (caller, way.resource)
            for (caller, gateway), (_, _, ways) in named.items()
            for way in ways
            if self._gets_in(caller, gateway, way.listener.port)
        }
        stopped: dict[AccessPolicy, list[tuple[AccessRule, str, str, BackendWay]]] = {}
        for (caller, gateway), (policy, rule, ways) in named.items():
            if is_on_gateways(policy.resource):
                left = [] if any(self._gets_in(caller, gateway, way.listener.port) for way in ways) else ways
            else:
                left = [way for way in ways if (caller, way.resource) not in gets_in]
            granted = ((way, self._granted_tool(way, caller)) for way in left)
            way, tool = next(((way, tool) for way, tool in granted if tool), (None, ""))
            if way is not None:
                stopped.setdefault(policy, []).append((rule, caller, tool, way))
        for policy, callers in stopped.items():
            rule, caller, tool, way = callers[0]
            more = f" ({count_noun(len(callers) - 1, 'more caller')} cannot either)" if len(callers) > 1 else ""
            target = self._listening[way.gateway, way.listener.port][0]
            message = (
                f"{rule} lets {_named_caller(caller)} call {_named_tool(tool)} of {way.resource.reference}, but the "
                f"network stops it before {way.gateway.reference}{more}: "
                f"{self._denied(self._callers_of(caller, way.gateway)[0], target)}"
            )
            yield policy.resource.diagnostic(
                IMPOSSIBLE,
                message,
                rule.path,
                hint="let its pods connect to those of the Gateway, or take the grant away",
                places=tuple(sorted({rule_place(rule.path) for rule, _, _, _ in callers})),
                related_objects=tuple(sorted({_named_caller(caller) for _, caller, _, _ in callers})),
            )

    def _named_callers(self) -> Mapping[tuple[str, Resource], tuple[AccessPolicy, AccessRule, list[BackendWay]]]:
        """Return callers and Gateways that have pods: the first policy that names the caller there, and the ways."""
        named: dict[tuple[str, Resource], tuple[AccessPolicy, AccessRule, list[BackendWay]]] = {}
        for backend in self._backends:
            for way in backend.ways:
                if not self._listening.get((way.gateway, way.listener.port)):
                    continue
                seen: set[str] = set()
                for tier in self._model.stack(way.gateway, way.listener, way.resource):
                    for policy in tier.policies:
                        for rule in policy.allows.all:
                            source = rule.source
                            if not isinstance(source, CallerIdentity) or source.spiffe not in self._caller_pods:
                                continue
                            entry = named.setdefault((source.spiffe, way.gateway), (policy, rule, []))
                            if source.spiffe not in seen:
                                seen.add(source.spiffe)
                                entry[2].append(way)
        return named

    def _gets_in(self, caller: str, gateway: Resource, port: int) -> bool:
        """Whether some pod of a caller reaches a Gateway, or there is no pod to ask about."""
        pods = self._callers_of(caller, gateway)
        mask = self._reach.mask(pods)
        targets = self._listening.get((gateway, port), ())
        return not pods or any(self._reach.sources(target, _POSSIBLE) & mask for target in targets)

    def _callers_of(self, caller: str, gateway: Resource) -> list[Endpoint]:
        """Return the pods of a caller. Those of the Gateway itself need no connection to it."""
        proxies = self._gateway_pods[gateway]
        return [pod for pod in self._caller_pods[caller] if pod not in proxies]

    def _denied(self, source: Endpoint, target: PortOfPod) -> str:
        return sentence(single_detail(decide(self._network, source, target.pod, TCP, target.port)))


def _named_pods(number: int, owners: Sequence[str], witness: Endpoint) -> tuple[str, str, str]:
    """Return the pods as a subject, as an object with those who have them, and the one that shows it."""
    alone = [owner.removeprefix("Pod/") for owner in owners if owner.startswith("Pod/")]
    workloads = [owner for owner in owners if not owner.startswith("Pod/")]
    if number == 1:
        return (str(witness), "it", "it") if alone else (f"the pod of {workloads[0]}", "it", str(witness))
    named = [*([f"those of {join_names(workloads)}"] if workloads else []), *([join_names(alone)] if alone else [])]
    return count_noun(number, "pod"), f"them, {' and '.join(named)}", f"{witness}"


def _why(decision: ConnectionDecision) -> str:
    """Say what lets a connection in."""
    if not decision.destination.under_policy:
        return "policies do not apply to the network of nodes"
    rules = [decider.short for decider in decision.ingress.decided_by if decider != DEFAULT]
    return (
        f"{join_names(rules)} {'lets' if len(rules) == 1 else 'let'} it in" if rules else "no policy closes that port"
    )


def _named_caller(caller: str | None) -> str:
    if caller is None:
        return "a caller without an identity"
    parts = caller.removeprefix(f"spiffe://{TRUST_DOMAIN}/ns/").split("/")
    return f"ServiceAccount/{parts[0]}/{parts[2]}" if len(parts) == 3 and parts[1] == "sa" else caller


def _named_tool(tool: str) -> str:
    return "tools" if tool == OTHER else f"tool `{tool}`"
