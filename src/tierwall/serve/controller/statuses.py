"""Keeps the statuses of a cluster as they should be, as the leader (docs/controller.md#status).

Whenever something has changed that statuses depend on, all of them are planned, in a thread, and compared with those of
the followed objects. What differs goes to the writer. A replica that does not lead plans nothing; it only listens to
the heartbeats of nodes, so that it knows at once which are alive when it has to lead.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as CounterMetric

from tierwall.attach.place import GATEWAY
from tierwall.attach.status import bounded_message
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES
from tierwall.core.protocols import EngineReport
from tierwall.core.reference import Reference
from tierwall.core.words import failure_words
from tierwall.network.model.policies import KINDS as NETWORK_POLICIES
from tierwall.resources.resource import Identity, Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.serve.controller.desired import DesiredStatus, WantedCondition, WantedRef
from tierwall.serve.controller.envoy_report import generation_of
from tierwall.serve.controller.events import EventWriter
from tierwall.serve.controller.fleet_state import FleetState, ProgrammedReason, ProgrammedState
from tierwall.serve.controller.gateway_api_version import UNSEEN, GatewayApiVersion
from tierwall.serve.controller.gateway_conditions import Addresses
from tierwall.serve.controller.gateway_statuses import GatewayStatusPlanner
from tierwall.serve.controller.kinds import LEASE, NODE_REPORT
from tierwall.serve.controller.node_heartbeats import NodeHeartbeats, NodeStanding
from tierwall.serve.controller.node_state import NodeFacts, NodesState, NodesView, owner_uid, report_of
from tierwall.serve.controller.policy_statuses import AFFECTED, PlannedStatuses, StatusPlanner
from tierwall.serve.controller.state import ControllerContext, ControllerPart, ControllerState, first_of
from tierwall.serve.controller.status_document import status_with
from tierwall.serve.controller.status_writer import StatusWriter
from tierwall.serve.generations import PolicyVersion, policy_versions

_NODE: KindKey = ("", "Node")
# The kinds about which Events tell.
_POLICIES = frozenset((*NETWORK_POLICIES, *ACCESS_POLICIES, *GATEWAY_POLICIES))
# How often to look whether time has changed something, in seconds.
_LOOK_S = 1.0
# How long to rest after an unexpected error, in seconds.
_RETRY_S = 30.0
_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class FleetSource(Protocol):
    """Knows what Envoys hold."""

    def state(self) -> FleetState:
        """Return what is in force in all Envoys now. Called in the event loop; it must be quick."""


class _Plan(NamedTuple):
    """The planned statuses, and those of them that differ from the followed objects."""

    planned: PlannedStatuses
    differing: Mapping[Identity, tuple[DesiredStatus, Resource]]
    nodes: NodesState | None


class _StatusMetrics:
    """The metrics of statuses."""

    def __init__(self, registry: CollectorRegistry, has_agents: bool) -> None:
        self.writes = CounterMetric(
            "tierwall_status_writes", "Attempts to write a status, by result.", ("result",), registry=registry
        )
        self.policies = Gauge(
            "tierwall_policies", "Policies by kind and acceptance.", ("kind", "accepted"), registry=registry
        )
        self.seconds = Histogram(
            "tierwall_policy_programmed_seconds",
            "Time from a change of a policy until every engine holds it.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.nodes = (
            Gauge("tierwall_nodes", "Nodes by what is known about their agents.", ("state",), registry=registry)
            if has_agents
            else None
        )

    def show(self, plan: _Plan) -> None:
        """Show the numbers of a plan."""
        counts = Counter(_acceptance(plan.planned))
        self.policies.clear()
        for (kind, accepted), number in counts.items():
            self.policies.labels(kind, accepted).set(number)
        if self.nodes is not None and plan.nodes is not None:
            for standing in NodeStanding:
                self.nodes.labels(standing.value).set(plan.nodes.counts[standing])


class StatusPart(ControllerPart):
    """Plans and writes statuses."""

    def __init__(
        self,
        context: ControllerContext,
        events: EventWriter,
        node_timeout: float | None = None,
        fleet: FleetSource | None = None,
        addresses: Callable[[Snapshot, Resource], Addresses | None] = lambda snapshot, gateway: None,
        clock: Callable[[], float] = time.monotonic,
        release: Callable[[float], Awaitable[GatewayApiVersion | None]] | None = None,
    ) -> None:
        """With `node_timeout` there are node agents: one that is silent for so many seconds counts as away.

        `addresses` says which addresses a Gateway of ours has; None if nobody here knows them. `release` reads the
        release of the Gateway API; without it, nobody here can see it.
        """
        self._leadership, self._events, self._clock = context.leadership, events, clock
        self._send_report = context.send_report
        self._fleet, self._addresses, self._release = fleet, addresses, release
        self._metrics = _StatusMetrics(context.registry, node_timeout is not None)
        self.writer = StatusWriter(context, self._written, self._count, clock)
        self._planner, self._gateways = StatusPlanner(), GatewayStatusPlanner()
        self._heartbeats = NodeHeartbeats(node_timeout) if node_timeout is not None else None
        self._nodes = NodesView(node_timeout) if node_timeout is not None else None
        self._newest: ControllerState | None = None
        self._news = asyncio.Event()
        # When this process first saw the newest generation of a policy that is not programmed yet.
        self._changed_at: dict[Identity, tuple[tuple[str, int], float]] = {}
        # What the last plan was made of, and which statuses were right.
        self._planned_from: tuple[object, ...] = ()
        self._compared: dict[Identity, tuple[DesiredStatus, Resource, bool]] = {}
        self._versions: tuple[Snapshot, Mapping[Reference, PolicyVersion]] | None = None
        # After an unexpected error: when to plan again, and what was said.
        self._plan_at, self._failure = -math.inf, ""

    def take(self, state: ControllerState) -> None:
        """Plan for these objects next."""
        now = self._clock()
        if self._heartbeats is not None:
            self._heartbeats.see(state.snapshot.of_kind(*LEASE), now)
        if self._newest is not None and self._leadership.may_write:
            self._note_changes(state.snapshot, self._newest.snapshot, now)
        else:
            self._changed_at.clear()
        self._newest = state
        self._news.set()

    def nudge(self) -> None:
        """Plan again: what Envoys hold has changed."""
        self._news.set()

    def _note_changes(self, snapshot: Snapshot, before: Snapshot, now: float) -> None:
        for old, new in snapshot.changes(before):
            either = new or old
            assert either is not None
            if (either.group, either.kind) not in _POLICIES:
                continue
            if new is None:
                self._changed_at.pop(either.identity, None)
            elif old is None or generation_of(old) != generation_of(new):
                self._changed_at[new.identity] = generation_of(new), now

    async def run(self, stop: asyncio.Event) -> None:
        """Plan and write until `stop` is set, while this process leads."""
        writing = asyncio.create_task(self.writer.run(stop))
        try:
            while await self._leadership.wait_to_lead(stop):
                self._news.clear()
                await self._plan_all()
                await first_of(self._news, stop, seconds=_LOOK_S)
                if writing.done():
                    break
        finally:
            stop.set()
            await writing

    async def _plan_all(self) -> None:
        state, term, now = self._newest, self._leadership.term, self._clock()
        if state is None or now < self._plan_at:
            return
        fleet = self._fleet.state() if self._fleet is not None else None
        release = await self._release(now) if self._release is not None else UNSEEN
        try:
            plan = await asyncio.to_thread(self._plan, state, term, fleet, release, now)
        except Exception as error:
            self._begin_anew(error, now)
            return
        self._failure = ""
        if plan is None:
            return
        self.writer.put(term, plan.differing)
        if plan.nodes is None or plan.nodes.is_certain:
            # Else policies without a status would seem to lose and regain what nobody has looked at.
            self._events.observe(plan.planned, state.snapshot)
        self._metrics.show(plan)
        self._observe_programmed(plan.planned)

    def _begin_anew(self, error: Exception, now: float) -> None:
        """Forget everything, and plan again after a while: Envoys and warnings must not end with statuses."""
        self._planner, self._gateways = StatusPlanner(), GatewayStatusPlanner()
        self._planned_from, self._compared, self._versions = (), {}, None
        self._plan_at = now + _RETRY_S
        if (failure := failure_words(error)) != self._failure:
            self._failure = failure
            self._send_report(EngineReport(f"statuses cannot be computed, and stay as they are: {failure}"))

    # In a thread

    def _plan(
        self, state: ControllerState, term: int, fleet: FleetState | None, release: GatewayApiVersion | None, now: float
    ) -> _Plan | None:
        """Plan all statuses; None if nothing has changed since the last time."""
        live, judged = state.snapshot, state.judged
        nodes = self._nodes_state(live, now)
        made_of = term, judged, nodes, fleet, release
        before = self._planned_from
        if before and before[:-1] == made_of and not _have_statuses_changed(live, before[-1]):
            return None
        planned = self._planner.plan(live, judged, self._programmed(live, nodes, fleet))
        statuses = dict(planned.statuses)
        statuses |= self._plan_gateways(live, judged, planned, fleet, release)
        statuses |= _affected(live, planned.affected, statuses)
        differing = self._differing(live, statuses)
        self._planned_from = *made_of, live
        return _Plan(planned, differing, nodes)

    def _plan_gateways(
        self,
        live: Snapshot,
        judged: Snapshot,
        planned: PlannedStatuses,
        fleet: FleetState | None,
        release: GatewayApiVersion | None,
    ) -> Mapping[Identity, DesiredStatus]:
        in_force = fleet or FleetState({}, {})
        return self._gateways.plan(
            live,
            judged,
            in_force.gateways.get,
            lambda gateway: self._addresses(live, gateway),
            planned.affected,
            lambda listener_set: in_force.policies.get(generation_of(listener_set)),
            lambda name: in_force.closed.get(name, {}),
            release,
        )

    def _nodes_state(self, live: Snapshot, now: float) -> NodesState | None:
        if self._nodes is None or self._heartbeats is None:
            return None
        versions = self._policy_versions(live)
        return self._nodes.state(versions, _facts(live, self._heartbeats, now), now)

    def _policy_versions(self, live: Snapshot) -> Mapping[Reference, PolicyVersion]:
        """Return the network policies as they are now; the same value as before if none has changed."""
        known = self._versions
        if known is None or any(_key(either) in NETWORK_POLICIES for either in _changed(live, known[0])):
            known = live, policy_versions(live)
        self._versions = live, known[1]
        return known[1]

    def _programmed(
        self, live: Snapshot, nodes: NodesState | None, fleet: FleetState | None
    ) -> Callable[[Resource, WantedRef | None], WantedCondition | None]:
        versions = self._policy_versions(live) if nodes is not None else {}

        def programmed(policy: Resource, ref: WantedRef | None) -> WantedCondition | None:
            if ref is not None:
                return _in_envoys(fleet, policy)
            version = versions.get(policy.reference)
            return nodes.programmed(policy, version) if nodes is not None and version is not None else None

        return programmed

    def _differing(
        self, live: Snapshot, statuses: Mapping[Identity, DesiredStatus]
    ) -> dict[Identity, tuple[DesiredStatus, Resource]]:
        """Return the statuses that the followed objects do not have."""
        before, self._compared = self._compared, {}
        differing = {}
        for identity, desired in statuses.items():
            resource = live.get(*identity)
            if resource is None:
                continue
            known = before.get(identity)
            if known is None or known[0] is not desired or known[1] is not resource:
                status = nested_map(resource.value, "status")
                known = desired, resource, status_with(status, desired, "") == status
            self._compared[identity] = known
            if not known[2]:
                differing[identity] = desired, resource
        return differing

    # In the event loop

    def _written(self, before: Mapping[str, Any], desired: DesiredStatus) -> None:
        if desired.identity[:2] in _POLICIES:
            self._events.written(before, desired)

    def _count(self, result: str) -> None:
        self._metrics.writes.labels(result).inc()

    def _observe_programmed(self, planned: PlannedStatuses) -> None:
        now = self._clock()
        for identity, (generation, changed_at) in list(self._changed_at.items()):
            desired = planned.statuses.get(identity)
            conditions = _conditions(desired) if desired is not None else planned.unwritten.get(identity, ())
            if desired is not None and (desired.uid, desired.generation) != generation:
                continue
            said = [condition for condition in conditions if condition.type.rpartition("/")[2] == "Programmed"]
            if said and all(condition.status == "True" for condition in said):
                del self._changed_at[identity]
                self._metrics.seconds.observe(now - changed_at)


def _key(resource: Resource) -> KindKey:
    return resource.group, resource.kind


def _changed(live: Snapshot, before: Snapshot) -> Iterable[Resource]:
    for old, new in live.changes(before):
        either = new or old
        assert either is not None
        yield either


def _have_statuses_changed(live: Snapshot, before: object) -> bool:
    """Whether anything differs except for what nodes report."""
    assert isinstance(before, Snapshot)
    return any(_key(each) not in (LEASE, NODE_REPORT) for each in _changed(live, before))


def _facts(live: Snapshot, heartbeats: NodeHeartbeats, now: float) -> Iterable[NodeFacts]:
    reports = {resource.name: resource for resource in live.of_kind(*NODE_REPORT)}
    for node in sorted(live.of_kind(*_NODE), key=lambda node: node.name):
        resource = reports.get(node.name)
        # A report about an earlier Node of this name goes away with that Node.
        is_about = resource is not None and owner_uid(resource) == node.metadata.get("uid")
        report = report_of(resource) if resource is not None and is_about else None
        yield NodeFacts(node.name, report, heartbeats.standing(node.name, now))


def _in_envoys(fleet: FleetState | None, policy: Resource) -> WantedCondition | None:
    """Return `Programmed` of an AccessPolicy by what Envoys hold; None if this controller serves no Envoys."""
    if fleet is None:
        return None
    state = fleet.policies.get(generation_of(policy)) or ProgrammedState(
        ProgrammedReason.RECONCILING,
        "No Envoy holds this policy as it is now. If this stays so, no route leads through its target to a backend",
    )
    is_programmed = state.reason is ProgrammedReason.PROGRAMMED
    message = state.message or ("Every Envoy holds this policy" if is_programmed else "")
    # It may have an Envoy's words and names, which whoever runs that Envoy chooses.
    words = bounded_message((message,))
    return WantedCondition("Programmed", "True" if is_programmed else "False", state.reason.value, words)


def _affected(
    live: Snapshot, affected: Mapping[Identity, WantedCondition], statuses: Mapping[Identity, DesiredStatus]
) -> dict[Identity, DesiredStatus]:
    """Return the statuses of Gateways that are not ours any more, as far as they say something about our policies."""
    out = {}
    for gateway in live.of_kind(*GATEWAY):
        condition = affected.get(gateway.identity)
        if gateway.identity not in statuses and (condition is not None or _says_affected(gateway)):
            conditions = (condition,) if condition is not None else ()
            out[gateway.identity] = DesiredStatus.of(gateway, conditions=conditions)
    return out


def _says_affected(gateway: Resource) -> bool:
    conditions = list_of_maps(nested_map(gateway.value, "status").get("conditions"))
    return any(condition.get("type") == AFFECTED for condition in conditions)


def _conditions(desired: DesiredStatus) -> list[WantedCondition]:
    entries = [entry.conditions for entry in desired.ancestors or ()]
    return [condition for listed in (*entries, desired.conditions or ()) for condition in listed]


def _acceptance(planned: PlannedStatuses) -> Iterable[tuple[str, str]]:
    """Yield the kind and the acceptance of each policy; one with several entries is accepted if all are."""
    every = {identity: _conditions(desired) for identity, desired in planned.statuses.items()}
    for identity, conditions in (*every.items(), *planned.unwritten.items()):
        accepted = [condition for condition in conditions if condition.type.rpartition("/")[2] == "Accepted"]
        if accepted:
            yield identity[1], str(all(condition.status == "True" for condition in accepted)).lower()
