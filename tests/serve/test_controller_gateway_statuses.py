"""Statuses of Gateways, listeners and routes: as the Gateway API says, and never more than Envoy is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.randomness import seeds
from tests.reference import gateway_statuses as model
from tests.worlds import gateway_class_clusters as make
from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.engines.envoy.config.compile import XdsResources, compile
from tierwall.engines.envoy.config.names import listener_name, virtual_host_name
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.route_plan import route_message_name
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.desired import CONTROLLER_NAME, DesiredStatus, WantedCondition
from tierwall.serve.controller.fleet_state import ProgrammedReason, ProgrammedState
from tierwall.serve.controller.gateway_api_version import GatewayApiVersion
from tierwall.serve.controller.gateway_class import full_name, our_gateways
from tierwall.serve.controller.gateway_statuses import GatewayStatusPlanner
from tierwall.serve.controller.status_document import status_with

Object = dict[str, Any]
Statuses = Mapping[Identity, DesiredStatus]
API = make.API
HELD = ProgrammedState(ProgrammedReason.PROGRAMMED)
ADDRESS = (("IPAddress", "192.0.2.1"),)
KINDS = ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute")
CONFLICTS = ("HostnameConflict", "ProtocolConflict")


def planned(
    planner: GatewayStatusPlanner,
    snapshot: Snapshot,
    state: ProgrammedState | None = HELD,
    addresses: tuple[tuple[str, str], ...] = ADDRESS,
    **more: Any,
) -> Statuses:
    affected = more.pop("affected", {})
    return planner.plan(
        snapshot, snapshot, lambda _: state, lambda _: addresses, affected, listener_sets=lambda _: state, **more
    )


def following(snapshot: Snapshot, objects: list[Object]) -> Snapshot:
    """Return the next snapshot of a cluster: objects that have not changed are the same values."""
    wanted = {resource.identity: replace(resource, is_live=True) for resource in load_objects(objects)}
    known = {resource.identity: resource for resource in snapshot}
    put = [new for identity, new in wanted.items() if not _alike(known.get(identity), new)]
    return snapshot.with_changes(put, [old for identity, old in known.items() if identity not in wanted])


def _alike(before: Resource | None, after: Resource) -> bool:
    return before is not None and before.has_same_content(after)


def reasons(conditions: tuple[WantedCondition, ...]) -> dict[str, tuple[str, str]]:
    return {condition.type: (condition.status, condition.reason) for condition in conditions}


def check_listeners(objects: list[Object], statuses: Statuses, problems: dict[model.Key, str]) -> None:
    seen = set()
    for (_, kind, namespace, name), status in statuses.items():
        if kind not in ("Gateway", "ListenerSet"):
            continue
        owner = model.find(objects, kind, namespace, name)
        assert owner is not None
        by_name = {listener.name: listener for listener in status.listeners or ()}
        if kind == "ListenerSet" and reasons(status.conditions or ())["Accepted"] == ("False", "NotAllowed"):
            assert not by_name
            continue
        problem_of = {listener["name"]: problems[model.key(owner, listener)] for listener in owner["spec"]["listeners"]}
        assert list(by_name) == list(problem_of)
        is_any = not all(problem_of.values())
        reason = "ListenersNotValid" if any(problem_of.values()) else "Accepted"
        gateway = model.gateway_of(objects, owner)
        assert gateway is not None
        if owner is not gateway and all(problems[model.key(gateway, each)] for each in gateway["spec"]["listeners"]):
            assert reasons(status.conditions or ())["Accepted"] == ("False", "ParentNotAccepted")
        else:
            assert reasons(status.conditions or ())["Accepted"] == (str(is_any), reason)
            assert reasons(status.conditions or ())["Programmed"][0] == str(is_any)
        for listener in owner["spec"]["listeners"]:
            place = model.key(owner, listener)
            seen.add(place)
            problem, said = problem_of[listener["name"]], reasons(by_name[listener["name"]].conditions)
            is_accepted = problem not in (*CONFLICTS, "UnsupportedProtocol", "UnsupportedValue")
            assert said["Accepted"] == ((("True", "Accepted")) if is_accepted else ("False", problem))
            assert said["Programmed"][0] == str(not problem)
            assert said["Conflicted"] == (("True", problem) if problem in CONFLICTS else ("False", "NoConflicts"))
            named = [kind["kind"] for kind in listener.get("allowedRoutes", {}).get("kinds", ())]
            served = model.kinds(listener)
            kinds = [kind for kind in served if kind in (named or served)]
            assert by_name[listener["name"]].kinds == tuple((API, kind) for kind in kinds)
            if problem in ("InvalidCertificateRef", "RefNotPermitted"):
                assert said["ResolvedRefs"] == ("False", problem)
            elif set(named) - set(served):
                assert said["ResolvedRefs"] == ("False", "InvalidRouteKinds")
            else:
                assert said["ResolvedRefs"] == ("True", "ResolvedRefs")
            others = [each for each in problems if each != place]
            overlapping = listener["protocol"] == "HTTPS" and any(
                _overlaps(listener, _listener(objects, other)) for other in others if _is_beside(objects, place, other)
            )
            assert ("OverlappingTLSConfig" in said) == overlapping
    assert seen == set(problems)


def check_attached(objects: list[Object], statuses: Statuses) -> None:
    """Hold that Gateways count the ListenerSets that are accepted."""
    attached: Counter[str] = Counter()
    for (_, kind, namespace, name), status in statuses.items():
        owner = model.find(objects, kind, namespace, name)
        if kind == "ListenerSet" and owner and reasons(status.conditions or ())["Accepted"][0] == "True":
            gateway = model.gateway_of(objects, owner)
            assert gateway is not None
            attached[f"{gateway['metadata']['namespace']}/{gateway['metadata']['name']}"] += 1
    for (_, kind, namespace, name), status in statuses.items():
        if kind == "Gateway":
            assert status.attached_listener_sets == attached[f"{namespace}/{name}"]


def _listener(objects: list[Object], place: model.Key) -> Object:
    owner = model.find(objects, *place[:3])
    assert owner is not None
    return next(listener for listener in owner["spec"]["listeners"] if listener["name"] == place[3])


def _is_beside(objects: list[Object], place: model.Key, other: model.Key) -> bool:
    owners = [model.find(objects, *each[:3]) for each in (place, other)]
    gateways = [model.gateway_of(objects, owner) for owner in owners if owner is not None]
    return gateways[0] is gateways[1]


def _overlaps(listener: Object, other: Object) -> bool:
    is_alike = other["protocol"] == "HTTPS" and other["port"] == listener["port"]
    hosts = listener.get("hostname"), other.get("hostname")
    return is_alike and hosts[0] != hosts[1] and model.overlap(*hosts)


def check_routes(objects: list[Object], statuses: Statuses) -> None:
    attached: dict[model.Key, set[tuple[str, ...]]] = {}
    for route in objects:
        if route["kind"] not in KINDS:
            continue
        status = statuses.get((API, route["kind"], *model.name_of(route)))
        wanted = {}
        for parent in route["spec"]["parentRefs"]:
            outcome = model.accepted(objects, route, parent)
            if outcome is not None:
                wanted[tuple(sorted(parent.items()))] = outcome[0]
                for place in outcome[1]:
                    attached.setdefault(place, set()).add((route["kind"], *model.name_of(route)))
        if not wanted:
            has_ours = any(
                entry["controllerName"] == CONTROLLER_NAME for entry in route.get("status", {}).get("parents", ())
            )
            assert (status.parents if status is not None else None) == (() if has_ours else None)
            continue
        assert status is not None
        assert (status.uid, status.generation) == (route["metadata"]["uid"], 3)
        entries = {}
        for entry in status.parents or ():
            ref: Object = {"kind": entry.ref.kind, "name": entry.ref.name, "namespace": entry.ref.namespace}
            ref |= {"sectionName": entry.ref.section_name, "port": entry.ref.port}
            entries[tuple(sorted((part, value) for part, value in ref.items() if value))] = reasons(entry.conditions)
        assert entries.keys() == wanted.keys()
        faults = [model.rule_fault(objects, route, rule) for rule in route["spec"]["rules"]]
        for parent_ref, said in entries.items():
            is_accepted = wanted[parent_ref] == "Accepted"
            assert said["Accepted"] == (str(is_accepted), wanted[parent_ref])
            reason = model.resolved(objects, route)
            assert said["ResolvedRefs"] == (str(reason == "ResolvedRefs"), reason)
            assert ("PartiallyInvalid" in said) == (is_accepted and any(faults))
    for (_, kind, namespace, name), status in statuses.items():
        for listener in status.listeners or ():
            assert listener.attached_routes == len(attached.get((kind, namespace, name, listener.name), ()))


def check_envoy(snapshot: Snapshot, statuses: Statuses) -> None:
    """Hold statuses against the configurations that Envoys get."""
    for gateway in our_gateways(snapshot):
        resources, _ = compile(snapshot, EnvoyOptions(gateways=frozenset((full_name(gateway),))))
        hosts = {host.name: host for each in resources.routes.values() for host in each.virtual_hosts}
        for listener in gateway_listeners(snapshot, gateway):
            owner = statuses[listener.owner.identity]
            said = next(each for each in owner.listeners or () if each.name == listener.name)
            here = [host for name, host in hosts.items() if name.startswith(virtual_host_name(gateway, listener, ""))]
            is_programmed = reasons(said.conditions)["Programmed"][0] == "True"
            if listener.protocol in ("TLS", "TCP"):
                _check_stream(resources, listener_name(gateway, listener.port), listener, is_programmed)
            else:
                assert bool(here) == is_programmed
            in_envoy = {
                route.name.rsplit("/", 2)[0] for host in here for route in host.routes if route.name != "ambiguous"
            }
            for route in (*snapshot.of_kind(API, "HTTPRoute"), *snapshot.of_kind(API, "GRPCRoute")):
                name = route_name(route)
                entries = _entries_at(snapshot, statuses, route, listener.owner, listener)
                served = [entry for entry in entries if _says_served(entry, listener)]
                if name in in_envoy:
                    is_closed = all(
                        each.direct_response.status == 500
                        for host in here
                        for each in host.routes
                        if each.name.startswith(f"{route_name(route)}/")
                    )
                    assert served or is_closed
                else:
                    assert not served
                if served and reasons(served[0])["ResolvedRefs"][0] == "True":
                    _check_backends(route, here, "PartiallyInvalid" in reasons(served[0]))


def _check_stream(resources: XdsResources, port: str, listener: Listener, is_programmed: bool) -> None:
    """Hold that a listener is open if it is programmed. Another one on its port may have the same server names."""
    names = [chain.name for chain in resources.listeners[port].filter_chains] if port in resources.listeners else []
    assert f"{port}/{listener.hostname or '*'}" in names or not is_programmed


def route_name(route: Resource) -> str:
    """Return the first part of the names of a route's Envoy routes."""
    return route_message_name(route, 0, 0).removesuffix("/0/0")


def _entries_at(
    snapshot: Snapshot, statuses: Statuses, route: Resource, owner: Resource, listener: Any
) -> list[tuple[WantedCondition, ...]]:
    """Return the conditions of the accepted entries of a route that are about a listener."""
    status = statuses.get(route.identity)
    names = route.spec.get("hostnames") or [None]
    return [
        entry.conditions
        for entry in (status.parents or () if status is not None else ())
        if (entry.ref.kind, entry.ref.namespace or route.namespace, entry.ref.name)
        == (owner.kind, owner.namespace, owner.name)
        and entry.ref.section_name in ("", listener.name)
        and entry.ref.port in (0, listener.port)
        and reasons(entry.conditions)["Accepted"][0] == "True"
        and model.takes(owner.value, listener.value, route.value)
        and any(model.overlap(listener.hostname, name) for name in names)
    ]


def _says_served(conditions: tuple[WantedCondition, ...], listener: Any) -> bool:
    return f"It is not served at {listener}" not in conditions[0].message


def _check_backends(route: Resource, hosts: list[Any], is_partial: bool) -> None:
    """Hold that everything of an accepted route with resolved references leads to a backend, unless it has none."""
    for host in hosts:
        for each in host.routes:
            if not each.name.startswith(f"{route_name(route)}/"):
                continue
            rule = route.spec["rules"][int(each.name.split("/")[-2])]
            has_backend = any(ref.get("weight", 1) for ref in rule["backendRefs"])
            clusters = [each.route.cluster, *(weighted.name for weighted in each.route.weighted_clusters.clusters)]
            if has_backend and not is_partial:
                assert each.direct_response.status != 500
                assert "nowhere" not in clusters


@pytest.mark.parametrize("seed", seeds(60))
def test_statuses_are_those_of_the_gateway_api_and_of_envoy(seed: int) -> None:
    rng, planner, snapshot = Random(seed), GatewayStatusPlanner(), Snapshot({})
    served: set[model.Key] = set()
    for step in range(2):
        objects = make.cluster(rng)
        snapshot = following(snapshot, objects)
        statuses = planned(planner, snapshot)
        gateways = [each for each in objects if each["kind"] == "Gateway" and model.is_ours(objects, each)]
        problems: dict[model.Key, str] = {}
        for gateway in gateways:
            problems |= model.problems(objects, gateway, served)
        served = {place for place, problem in problems.items() if not problem}
        check_listeners(objects, statuses, problems)
        check_attached(objects, statuses)
        check_routes(objects, statuses)
        if not step:
            check_envoy(snapshot, statuses)
        again = planned(planner, snapshot)
        assert again.keys() == statuses.keys()
        assert all(again[identity] is status for identity, status in statuses.items())
    assert planner.computed == 2


# Single cases


def gateway(name: str = "g", **spec: Any) -> Object:
    listener = {"name": "web", "port": 80, "protocol": "HTTP"}
    return make.manifest("Gateway", "a", name, {"gatewayClassName": "tierwall", "listeners": [listener], **spec})


def https(**spec: Any) -> Object:
    listener = {"name": "web", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "cert"}]}}
    return gateway(listeners=[listener], **spec)


def route(name: str = "r", parents: tuple[str, ...] = ("g",), **spec: Any) -> Object:
    rules = [{"backendRefs": [{"name": "x", "port": 80}]}]
    parent_refs = [{"name": parent} for parent in parents]
    return make.manifest("HTTPRoute", "a", name, {"parentRefs": parent_refs, "rules": rules, **spec})


def world(*objects: Object) -> Snapshot:
    classes = (make.gateway_class("tierwall", CONTROLLER_NAME), make.gateway_class("other", "example.com/other"))
    service = make.manifest("Service", "a", "x", {"ports": [{"port": 80}]}, "v1")
    return following(Snapshot({}), [*classes, service, *objects])


def status(statuses: Statuses, kind: str, name: str) -> DesiredStatus:
    return next(each for identity, each in statuses.items() if (identity[1], identity[3]) == (kind, name))


def conditions(gateway_status: DesiredStatus) -> dict[str, tuple[str, str]]:
    assert gateway_status.conditions is not None
    return reasons(gateway_status.conditions)


@pytest.mark.parametrize(
    ("state", "addresses", "spec", "reason"),
    [
        (HELD, ADDRESS, {}, "Programmed"),
        (None, ADDRESS, {}, "Pending"),
        (ProgrammedState(ProgrammedReason.RECONCILING, "not yet"), ADDRESS, {}, "Pending"),
        (ProgrammedState(ProgrammedReason.ENGINE_REFUSED, "no"), ADDRESS, {}, "Invalid"),
        (HELD, (), {}, "AddressNotAssigned"),
        (HELD, None, {}, "Programmed"),
        (HELD, ADDRESS, {"addresses": [{"value": "192.0.2.1"}]}, "Programmed"),
        (HELD, ADDRESS, {"addresses": [{"type": "Hostname"}]}, "Programmed"),
        (HELD, ADDRESS, {"addresses": [{"value": "192.0.2.2"}]}, "AddressNotUsable"),
        (HELD, ADDRESS, {"addresses": [{"type": "example.com/x", "value": "1"}]}, "Invalid"),
        (HELD, ADDRESS, {"infrastructure": {"parametersRef": {"group": "", "kind": "x", "name": "x"}}}, "Invalid"),
    ],
)
def test_a_gateway_is_programmed_only_if_all_envoys_hold_it_and_it_has_its_addresses(
    state: ProgrammedState | None, addresses: tuple[tuple[str, str], ...], spec: Object, reason: str
) -> None:
    gateway_status = status(planned(GatewayStatusPlanner(), world(gateway(**spec)), state, addresses), "Gateway", "g")
    assert conditions(gateway_status)["Programmed"] == (str(reason == "Programmed"), reason)
    assert gateway_status.addresses == addresses
    assert gateway_status.listeners is not None
    is_held = state == HELD
    assert reasons(gateway_status.listeners[0].conditions)["Programmed"] == (
        str(is_held),
        "Programmed" if is_held else "Pending",
    )


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"addresses": [{"type": "example.com/x", "value": "1"}]}, "UnsupportedAddress"),
        ({"infrastructure": {"parametersRef": {"group": "", "kind": "x", "name": "x"}}}, "InvalidParameters"),
    ],
)
def test_what_a_gateway_asks_for_in_vain_is_said(spec: Object, reason: str) -> None:
    gateway_status = status(planned(GatewayStatusPlanner(), world(gateway(**spec))), "Gateway", "g")
    assert conditions(gateway_status)["Accepted"] == ("False", reason)


def test_statuses_follow_what_envoys_say_without_compiling_again() -> None:
    planner, snapshot = GatewayStatusPlanner(), world(gateway(), route())
    before = planned(planner, snapshot, None)
    after = planned(planner, snapshot)
    assert conditions(status(before, "Gateway", "g"))["Programmed"] == ("False", "Pending")
    assert conditions(status(after, "Gateway", "g"))["Programmed"] == ("True", "Programmed")
    assert status(after, "HTTPRoute", "r") is status(before, "HTTPRoute", "r")
    policy = make.manifest("NetworkPolicy", "a", "p", {"podSelector": {}}, "networking.k8s.io/v1")
    planned(planner, snapshot.with_changes(load_objects([policy])))
    assert planner.computed == 1


def test_a_gateway_says_which_policies_have_no_room_for_a_status() -> None:
    planner, snapshot = GatewayStatusPlanner(), world(gateway(), gateway("h", gatewayClassName="other"))
    affected = WantedCondition("tierwall.io/AccessPolicyAffected", "True", "StatusFull", "words")
    names = {(API, "Gateway", "a", name): affected for name in ("g", "h")}
    statuses = planned(planner, snapshot, affected=names)
    assert affected in (status(statuses, "Gateway", "g").conditions or ())
    assert affected not in (status(planned(planner, snapshot), "Gateway", "g").conditions or ())
    assert (API, "Gateway", "a", "h") not in statuses


def test_a_route_that_leaves_our_gateway_loses_our_entry_and_no_other() -> None:
    planner = GatewayStatusPlanner()
    document = route(parents=("g", "h"))
    document["status"] = {"parents": [{"controllerName": CONTROLLER_NAME}, {"controllerName": "example.com/other"}]}
    others = gateway("h", gatewayClassName="other")
    snapshot = world(gateway(), others, document)
    entries = status(planned(planner, snapshot), "HTTPRoute", "r").parents
    assert entries is not None
    assert [entry.ref.name for entry in entries] == ["g"]
    document["spec"]["parentRefs"] = [{"name": "h"}]
    assert status(planned(planner, world(gateway(), others, document)), "HTTPRoute", "r").parents == ()
    del document["status"]
    assert (API, "HTTPRoute", "a", "r") not in planned(planner, world(gateway(), others, document))


def test_entries_of_other_controllers_keep_their_room() -> None:
    document = route()
    document["status"] = {"parents": [{"controllerName": "example.com/other"}] * 32}
    assert (API, "HTTPRoute", "a", "r") not in planned(GatewayStatusPlanner(), world(gateway(), document))


def test_a_route_that_envoy_refuses_is_not_accepted() -> None:
    planner, snapshot = GatewayStatusPlanner(), world(gateway(), route())
    assert status(planned(planner, snapshot), "Gateway", "g").listeners[0].attached_routes == 1  # type: ignore[index]
    refused = {(API, "HTTPRoute", "a", "r"): "bad regex"}
    statuses = planned(planner, snapshot, refusals=lambda name: refused if name == "a/g" else {})
    (entry,) = status(statuses, "HTTPRoute", "r").parents or ()
    assert reasons(entry.conditions)["Accepted"] == ("False", "UnsupportedValue")
    assert "bad regex" in entry.conditions[0].message
    assert "answered with 500" in entry.conditions[0].message
    assert status(statuses, "Gateway", "g").listeners[0].attached_routes == 0  # type: ignore[index]


def test_a_route_whose_hosts_belong_to_a_more_specific_listener_says_so() -> None:
    hosts = {"wide": "*.example.com", "narrow": "a.example.com"}
    listeners = [{"name": name, "port": 80, "protocol": "HTTP", "hostname": host} for name, host in hosts.items()]
    refs = [{"name": "g", "sectionName": "wide"}]
    snapshot = world(gateway(listeners=listeners), route(parentRefs=refs, hostnames=["a.example.com"]))
    statuses = planned(GatewayStatusPlanner(), snapshot)
    check_envoy(snapshot, statuses)
    (entry,) = status(statuses, "HTTPRoute", "r").parents or ()
    assert reasons(entry.conditions)["Accepted"] == ("True", "Accepted")
    assert (
        "not served at Gateway/a/g#wide: its host names belong to more specific listeners"
        in entry.conditions[0].message
    )


def test_dropped_rules_are_named() -> None:
    other = [{"type": "ExtensionRef", "extensionRef": {"group": "example.org", "kind": "Filter", "name": "x"}}]
    good = {"backendRefs": [{"name": "x", "port": 80}]}
    snapshot = world(gateway(), route(rules=[good, {**good, "filters": other}]))
    (entry,) = status(planned(GatewayStatusPlanner(), snapshot), "HTTPRoute", "r").parents or ()
    assert reasons(entry.conditions)["Accepted"] == ("True", "Accepted")
    assert entry.conditions[2].message.startswith("Dropped Rule rules[1]: filter ExtensionRef is not supported")


def backend_tls(name: str = "t", **spec: Any) -> Object:
    wanted = {"hostname": "x.example", "wellKnownCACertificates": "System"}
    targets = [{"group": "", "kind": "Service", "name": "x"}]
    return make.manifest("BackendTLSPolicy", "a", name, {"targetRefs": targets, "validation": wanted, **spec})


def secured(*policies: Object) -> tuple[Object, ...]:
    """A Service that wants TLS, behind a route, with policies about it."""
    ports = [{"port": 80, "name": "web", "appProtocol": "https"}]
    return gateway(), route(), make.manifest("Service", "a", "x", {"ports": ports}, "v1"), *policies


def test_a_route_goes_by_the_policies_and_backends_that_envoy_goes_by() -> None:
    def said(*objects: Object) -> dict[str, tuple[str, str]]:
        (entry,) = status(planned(GatewayStatusPlanner(), world(*objects)), "HTTPRoute", "r").parents or ()
        return reasons(entry.conditions)

    assert said(*secured())["Accepted"] == ("False", "UnsupportedValue")
    assert said(*secured(backend_tls()))["Accepted"] == ("True", "Accepted")
    kind = {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "b"}
    routed = gateway(), route(rules=[{"backendRefs": [kind]}])
    assert said(*routed)["ResolvedRefs"] == ("False", "BackendNotFound")
    spec = {"static": {"host": "b.example", "port": 80}}
    backend = make.manifest("AgentgatewayBackend", "a", "b", spec, "agentgateway.dev/v1alpha1")
    assert said(*routed, backend)["ResolvedRefs"] == ("True", "ResolvedRefs")
    # All the servers that a backend joins need an address.
    for second, wanted in (("c.example", ("True", "ResolvedRefs")), ("no host", ("False", "BackendNotFound"))):
        hosts = ("b.example", second)
        targets = [{"name": f"t{at}", "static": {"host": host, "port": 80}} for at, host in enumerate(hosts)]
        joined = make.manifest("AgentgatewayBackend", "a", "b", {"mcp": {"targets": targets}}, backend["apiVersion"])
        assert said(*routed, joined)["ResolvedRefs"] == wanted


def test_a_route_says_whether_the_route_that_it_names_delegates_to_it() -> None:
    to_child = {"group": API, "kind": "HTTPRoute", "name": "child"}
    parent_ref = {"group": API, "kind": "HTTPRoute", "name": "r"}
    leading: list[Object] = [{"matches": [{"path": {"value": "/a"}}], "backendRefs": [{"name": "x", "port": 80}]}]
    service = make.manifest("Service", "a", "x", {"ports": [{"port": 80}]}, "v1")

    def said(parent: Object, rules: list[Object], name: str = "child") -> dict[str, tuple[str, str]] | None:
        child = make.manifest("HTTPRoute", "a", name, {"parentRefs": [parent_ref], "rules": rules})
        planned_status = planned(GatewayStatusPlanner(), world(gateway(), parent, service, child)).get(
            (API, "HTTPRoute", "a", name)
        )
        entries = planned_status.parents or () if planned_status is not None else ()
        return reasons(entries[0].conditions) if entries else None

    parent = route(rules=[{"backendRefs": [to_child]}])
    assert said(parent, leading) == {"Accepted": ("True", "Accepted"), "ResolvedRefs": RESOLVED}
    assert said(parent, leading, "another") == {"Accepted": ("False", "NoMatchingParent"), "ResolvedRefs": RESOLVED}
    closed: list[Object] = [*leading, {"backendRefs": [to_child]}]
    assert said(parent, closed) == {
        "Accepted": ("True", "Accepted"),
        "ResolvedRefs": ("False", "RefNotPermitted"),
    }
    shared: list[Object] = [{"backendRefs": [{"name": "x", "port": 80}, {**to_child, "name": "r"}]}]
    assert said(parent, shared) == {
        "Accepted": ("False", "UnsupportedValue"),
        "ResolvedRefs": ("False", "RefNotPermitted"),
    }
    # Routes that no Gateway of ours leads to are none of our business.
    elsewhere = {**parent, "spec": {**parent["spec"], "parentRefs": [{"name": "unknown"}]}}
    assert said(elsewhere, leading) is None


RESOLVED = ("True", "ResolvedRefs")


@pytest.mark.parametrize(
    ("validation", "accepted", "resolved"),
    [
        ({"wellKnownCACertificates": "System"}, ("True", "Accepted"), RESOLVED),
        ({"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}, ("True", "Accepted"), RESOLVED),
        (
            {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "gone"}]},
            ("False", "NoValidCACertificate"),
            ("False", "InvalidCACertificateRef"),
        ),
        (
            {"caCertificateRefs": [{"group": "", "kind": "Secret", "name": "ca"}]},
            ("False", "NoValidCACertificate"),
            ("False", "InvalidKind"),
        ),
        ({}, ("False", "Invalid"), RESOLVED),
        (
            {"wellKnownCACertificates": "System", "subjectAltNames": [{"type": "URI", "uri": "x"}]},
            ("False", "Invalid"),
            RESOLVED,
        ),
    ],
)
def test_a_backend_tls_policy_says_whether_it_can_be_used(
    validation: Object, accepted: tuple[str, str], resolved: tuple[str, str]
) -> None:
    policy = backend_tls(validation={"hostname": "x.example", **validation})
    snapshot = world(*secured(policy), make.authority("a", "ca"))
    (entry,) = status(planned(GatewayStatusPlanner(), snapshot), "BackendTLSPolicy", "t").ancestors or ()
    assert (entry.ref.kind, entry.ref.namespace, entry.ref.name) == ("Gateway", "a", "g")
    assert reasons(entry.conditions) == {"Accepted": accepted, "ResolvedRefs": resolved}
    # A mistake of the policy is none of the route.
    (parent,) = status(planned(GatewayStatusPlanner(), snapshot), "HTTPRoute", "r").parents or ()
    assert reasons(parent.conditions) == {"Accepted": ("True", "Accepted"), "ResolvedRefs": RESOLVED}
    # What is said of the policy is what Envoy has.
    resources, _ = compile(snapshot, EnvoyOptions(gateways=frozenset(("a/g",))))
    is_used = any(cluster.HasField("transport_socket") for cluster in resources.clusters.values())
    assert is_used == (accepted[0] == "True")


def test_of_several_backend_tls_policies_those_that_count_nowhere_are_in_conflict() -> None:
    def said(*policies: Object) -> dict[str, str]:
        statuses = planned(GatewayStatusPlanner(), world(*secured(*policies)))
        return {
            identity[3]: reasons(entry.conditions)["Accepted"][1]
            for identity, each in statuses.items()
            for entry in each.ancestors or ()
        }

    of_port = [{"group": "", "kind": "Service", "name": "x", "sectionName": "web"}]
    other_port = [{"group": "", "kind": "Service", "name": "x", "sectionName": "else"}]
    assert said(backend_tls("b"), backend_tls("a")) == {"a": "Accepted", "b": "Conflicted"}
    # A policy about a port does not conflict with one about the whole Service.
    assert said(backend_tls("a"), backend_tls("b", targetRefs=of_port)) == {"a": "Accepted", "b": "Accepted"}
    ports = backend_tls("b", targetRefs=of_port), backend_tls("c", targetRefs=of_port), backend_tls("a")
    assert said(*ports) == {"a": "Accepted", "b": "Accepted", "c": "Conflicted"}
    assert said(backend_tls("a"), backend_tls("b", targetRefs=other_port)) == {"a": "Accepted"}


def test_a_backend_tls_policy_that_leaves_our_gateway_loses_our_entry() -> None:
    planner, snapshot = GatewayStatusPlanner(), world(*secured(backend_tls()))
    before = status_with({}, status(planned(planner, snapshot), "BackendTLSPolicy", "t"), "now")
    foreign = {"ancestorRef": {"name": "other"}, "controllerName": "example.com/other", "conditions": []}
    policy = backend_tls() | {"status": {"ancestors": [*before["ancestors"], foreign]}}
    left = following(snapshot, [*(each.value for each in world(*secured(policy)) if each.kind != "HTTPRoute")])
    after = status(planned(planner, left), "BackendTLSPolicy", "t")
    assert status_with(policy["status"], after, "now")["ancestors"] == [foreign]


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ({"kind": "ConfigMap", "name": "gone"}, "InvalidCACertificateRef"),
        ({"kind": "Service", "name": "x"}, "InvalidCACertificateKind"),
        ({"kind": "ConfigMap", "name": "x", "namespace": "b"}, "RefNotPermitted"),
    ],
)
def test_a_listener_without_its_authority_is_not_accepted(ref: Object, reason: str) -> None:
    validation = {"caCertificateRefs": [{"group": "", **ref}], "mode": "AllowInsecureFallback"}
    snapshot = world(https(tls={"frontend": {"default": {"validation": validation}}}), make.secret("a"))
    gateway_status = status(planned(GatewayStatusPlanner(), snapshot), "Gateway", "g")
    assert gateway_status.listeners is not None
    said = reasons(gateway_status.listeners[0].conditions)
    assert said["Accepted"] == ("False", "NoValidCACertificate")
    assert said["ResolvedRefs"] == ("False", reason)
    assert said["Programmed"] == ("False", "Invalid")
    assert conditions(gateway_status)["InsecureFrontendValidationMode"] == ("True", "ConfigurationChanged")


def test_certificates_that_nobody_reads_are_not_called_missing() -> None:
    planner, snapshot = GatewayStatusPlanner(), world(https())
    for state, resolved in ((None, ("Unknown", "Pending")), (HELD, ("False", "InvalidCertificateRef"))):
        gateway_status = status(planned(planner, snapshot, state), "Gateway", "g")
        assert gateway_status.listeners is not None
        assert reasons(gateway_status.listeners[0].conditions)["ResolvedRefs"] == resolved
        accepted = ("True", "Accepted") if state is None else ("False", "ListenersNotValid")
        assert conditions(gateway_status)["Accepted"] == accepted
        assert conditions(gateway_status)["Programmed"][0] == "False"


def test_the_warning_of_insecure_clients_goes_with_its_cause() -> None:
    planner = GatewayStatusPlanner()
    validation = {
        "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "x"}],
        "mode": "AllowInsecureFallback",
    }
    lax = https(tls={"frontend": {"default": {"validation": validation}}})
    written = status_with({}, status(planned(planner, world(lax)), "Gateway", "g"), "2026-01-01T00:00:00Z")
    assert "InsecureFrontendValidationMode" in {each["type"] for each in written["conditions"]}
    foreign = {"type": "example.com/Seen", "status": "True"}
    written["conditions"].append(foreign)
    after = status_with(written, status(planned(planner, world(https())), "Gateway", "g"), "2026-01-02T00:00:00Z")
    assert [each["type"] for each in after["conditions"]] == ["Accepted", "Programmed", "example.com/Seen"]


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        (None, ("Unknown", "Pending")),
        ("v1.4.0", ("True", "SupportedVersion")),
        ("v1.6.1-rc.1", ("True", "SupportedVersion")),
        ("v1.7.0", ("False", "UnsupportedVersion")),
        ("v0.8.1", ("False", "UnsupportedVersion")),
        ("", ("False", "UnsupportedVersion")),
    ],
)
def test_a_class_is_accepted_and_says_whether_the_definitions_are_known(
    version: str | None, wanted: tuple[str, str]
) -> None:
    statuses = planned(GatewayStatusPlanner(), world(), release=GatewayApiVersion(version))
    assert [identity[3] for identity in statuses] == ["tierwall"]
    class_status = status(statuses, "GatewayClass", "tierwall")
    assert conditions(class_status) == {"Accepted": ("True", "Accepted"), "SupportedVersion": wanted}
    assert list(class_status.supported_features or ()) == sorted(class_status.supported_features or ())


def test_a_class_keeps_its_status_until_the_release_was_read() -> None:
    assert planned(GatewayStatusPlanner(), world(), release=None) == {}


def test_parameters_of_a_class_are_not_supported() -> None:
    document = make.gateway_class("more", CONTROLLER_NAME)
    document["spec"]["parametersRef"] = {"group": "", "kind": "ConfigMap", "name": "x", "namespace": "a"}
    class_status = status(planned(GatewayStatusPlanner(), world(document)), "GatewayClass", "more")
    assert conditions(class_status)["Accepted"] == ("False", "InvalidParameters")
