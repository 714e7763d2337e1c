"""Ways in from outside: which objects lead to which pods, and from where policies let them through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.network_clusters import clusters
from tests.worlds.network_snapshots import resource, snapshot
from tierwall.cli.main import root
from tierwall.core.verdict import Verdict
from tierwall.network.decide import decide
from tierwall.network.model.endpoints import address_endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.ways import GATEWAY_LABEL
from tierwall.network.reach.exposure import future_pods
from tierwall.network.reach.ways_in import TRIED, JudgedWay
from tierwall.render.formats import View
from tierwall.render.listing import ConnectionReport, text
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import parse_address
from tierwall.world import World

Object = dict[str, Any]
GATEWAY_API = "gateway.networking.k8s.io/v1"


def an_object(api_version: str, kind: str, name: str, namespace: str = "shop", **more: Any) -> Object:
    metadata = {"name": name, "namespace": namespace, **more.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def pod(name: str, namespace: str = "shop", port: int = 8080, labels: Any = None, **spec: Any) -> Object:
    ports = [{"name": "http", "containerPort": port}]
    containers = [{"name": "c", "image": "i", "ports": ports}]
    labels = {"app": name} if labels is None else labels
    return an_object("v1", "Pod", name, namespace, metadata={"labels": labels}, spec={"containers": containers, **spec})


def service(name: str, namespace: str = "shop", **spec: Any) -> Object:
    ports = [{"name": "web", "port": 80, "targetPort": "http"}]
    return an_object("v1", "Service", name, namespace, spec={"selector": {"app": name}, "ports": ports, **spec})


def ingress(*backends: Object, host: str = "shop.example", **spec: Any) -> Object:
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend} for backend in backends]
    rules = [{"host": host, "http": {"paths": paths}}] if paths else []
    return an_object("networking.k8s.io/v1", "Ingress", "way", spec={"rules": rules, **spec})


def backend(name: str, port: int | str = 80) -> Object:
    return {"service": {"name": name, "port": {"number" if isinstance(port, int) else "name": port}}}


def policy(name: str, *sources: Object, ports: Any = None) -> Object:
    rule = {"from": list(sources)} | ({} if ports is None else {"ports": ports})
    spec = {"podSelector": {"matchLabels": {"app": name}}, "ingress": [rule] if sources else []}
    return an_object("networking.k8s.io/v1", "NetworkPolicy", f"{name}-policy", spec=spec)


def gateway(name: str = "edge", namespace: str = "infra", **listener: Any) -> Object:
    entry = {"name": "l", "port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}, **listener}
    return an_object(GATEWAY_API, "Gateway", name, namespace, spec={"gatewayClassName": "x", "listeners": [entry]})


def route(*refs: Object, kind: str = "HTTPRoute", **spec: Any) -> Object:
    parents = [{"name": "edge", "namespace": "infra"}]
    return an_object(
        GATEWAY_API, kind, "way", spec={"parentRefs": parents, "rules": [{"backendRefs": list(refs)}], **spec}
    )


def world(*objects: Object) -> World:
    return World(snapshot(objects))


def lines(*objects: Object, to: tuple[str, ...] = (), ports: tuple[str, ...] = (), explain: bool = False) -> list[str]:
    judged = world(*objects).ways_in(to, ports, explain=explain)
    return [line.removeprefix("through ") for line in text(ConnectionReport((), judged), View())]


WEB = (pod("web"), service("web"))
NGINX = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "nginx"}}}


def test_an_ingress_leads_to_the_target_port_of_each_pod() -> None:
    other = pod("other", port=9090, labels={"app": "web"})
    begin = "Ingress/shop/way (shop.example), Service/shop/web:80 =>"
    assert lines(*WEB, other, ingress(backend("web"))) == [
        f"{begin} shop/web : TCP 8080",
        f"{begin} shop/other : TCP 9090",
    ]
    assert lines(*WEB, ingress(backend("web", "web"))) == [f"{begin} shop/web : TCP 8080"]


def test_rules_for_the_same_port_are_one_way_with_all_hosts() -> None:
    rules = [
        {"host": host, "http": {"paths": [{"backend": backend("web")}]}}
        for host in ("a.example", "b.example", "a.example")
    ]
    (line,) = lines(*WEB, ingress(rules=rules))
    assert line.startswith("Ingress/shop/way (a.example, b.example), Service/shop/web:80 =>")
    # A rule without a host is about every host, and so is the default backend.
    (line,) = lines(*WEB, ingress(rules=rules, defaultBackend=backend("web")))
    assert line.startswith("Ingress/shop/way, Service/shop/web:80 =>")


def test_an_ingress_of_an_older_version_is_read() -> None:
    old = ingress({"serviceName": "web", "servicePort": "web"})
    old["apiVersion"] = "extensions/v1beta1"
    assert lines(*WEB, old) == ["Ingress/shop/way (shop.example), Service/shop/web:80 => shop/web : TCP 8080"]


@pytest.mark.parametrize(
    ("sources", "condition"),
    [
        ([{"namespaceSelector": {}}], "if the controller is any pod"),
        ([NGINX], "if the controller is any pod in namespace nginx"),
        ([{"podSelector": {"matchLabels": {"app": "proxy"}}}], "if the controller is any pod with app=proxy in shop"),
        ([{"ipBlock": {"cidr": "10.0.0.0/8"}}], "if the controller has an address in 10.0.0.0-10.255.255.255"),
        (
            [NGINX, {"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "if the controller is any pod in namespace nginx or has an address in 10.0.0.0-10.255.255.255",
        ),
    ],
)
def test_a_way_is_open_under_the_condition_that_policies_set(sources: list[Object], condition: str) -> None:
    (line,) = lines(*WEB, ingress(backend("web")), policy("web", *sources))
    assert line.endswith(f"=> shop/web : TCP 8080, {condition}")


def test_egress_of_the_controller_counts() -> None:
    locked = an_object("networking.k8s.io/v1", "NetworkPolicy", "locked", "nginx")
    locked["spec"] = {"podSelector": {"matchLabels": {"app": "locked"}}, "policyTypes": ["Egress"]}
    (line,) = lines(*WEB, ingress(backend("web")), policy("web", NGINX), locked)
    assert line.endswith("TCP 8080, if the controller is any pod with app notin (locked) in nginx")


def test_a_way_that_policies_close_is_denied_and_explained() -> None:
    objects = *WEB, ingress(backend("web")), policy("web")
    assert lines(*objects)[0].endswith("=> shop/web : denied TCP 8080")
    assert "NetworkPolicy/shop/web-policy spec" in "\n".join(lines(*objects, explain=True))
    wrong_port = policy("web", {"namespaceSelector": {}}, ports=[{"port": 80}])
    assert lines(*WEB, ingress(backend("web")), wrong_port)[0].endswith("=> shop/web : denied TCP 8080")


def test_a_backend_that_leads_nowhere_says_why() -> None:
    absent, no_port, empty = backend("absent"), backend("web", 81), backend("empty")
    stored = {"resource": {"apiGroup": "x", "kind": "Bucket", "name": "b"}}
    (gone, port, none, bucket) = lines(*WEB, service("empty"), ingress(absent, no_port, empty, stored))
    assert gone.endswith("Service/shop/absent:80 => nobody : Service/shop/absent is not among the objects")
    assert port.endswith("Service/shop/web:81 => nobody : Service/shop/web has no port 81; it has web (TCP 80)")
    assert none.endswith("Service/shop/empty:80 => nobody : Service/shop/empty selects no pod")
    assert bucket.endswith("Ingress/shop/way (shop.example) => nobody : Bucket/b is not a Service")


def test_pods_that_lack_the_named_port_are_named() -> None:
    without = an_object("v1", "Pod", "bare", metadata={"labels": {"app": "web"}}, spec={"containers": []})
    first, second = lines(*WEB, without, ingress(backend("web")))
    assert first.endswith("=> shop/web : TCP 8080")
    assert second.endswith("=> nobody : shop/bare has no port named http")


def test_a_load_balancer_is_judged_for_its_ranges() -> None:
    offered = service("web", type="LoadBalancer")
    begin = "Service/shop/web:80 (LoadBalancer) => shop/web :"
    assert lines(pod("web"), offered) == [f"{begin} TCP 8080"]
    some = policy("web", {"ipBlock": {"cidr": "203.0.113.0/24"}})
    assert lines(pod("web"), offered, some) == [f"{begin} TCP 8080, from 203.0.113.0-203.0.113.255"]
    offered["spec"]["loadBalancerSourceRanges"] = ["203.0.113.0/25"]
    assert lines(pod("web"), offered, some) == [f"{begin} TCP 8080"]
    offered["spec"]["loadBalancerSourceRanges"] = ["198.51.100.0/24"]
    assert lines(pod("web"), offered, some) == [f"{begin} denied TCP 8080"]


def test_nodes_are_judged_beside_the_addresses_of_clients() -> None:
    node: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    node["status"] = {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}
    some = policy("web", {"ipBlock": {"cidr": "203.0.113.0/24"}}, {"ipBlock": {"cidr": "10.0.0.1/32"}})
    (line,) = lines(pod("web"), service("web", type="NodePort"), some, node)
    assert line.startswith("Service/shop/web:80 (NodePort) => shop/web : TCP 8080, from ")
    assert "node:n1" in line
    assert "203.0.113.0-203.0.113.255" in line


def test_external_addresses_are_a_way_and_a_cluster_address_is_none() -> None:
    assert lines(*WEB) == []
    (line,) = lines(pod("web"), service("web", externalIPs=["203.0.113.9"]))
    assert line.startswith("Service/shop/web:80 (externalIPs) =>")


def test_a_port_of_the_node_is_a_way_to_a_pod_of_a_workload_or_to_a_pod_alone() -> None:
    ports = [{"containerPort": 8080, "hostPort": 80}, {"containerPort": 9, "hostPort": 9, "hostIP": "127.0.0.1"}]
    template: Object = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "ports": ports}]}}
    agents = an_object("apps/v1", "DaemonSet", "web", spec={"template": template})
    assert lines(agents) == ["DaemonSet/shop/web:80 (hostPort) => shop/web[DaemonSet] : TCP 8080"]
    assert lines(agents, policy("web")) == ["DaemonSet/shop/web:80 (hostPort) => shop/web[DaemonSet] : denied TCP 8080"]
    alone = an_object("v1", "Pod", "web", metadata={"labels": {"app": "web"}}, spec=template["spec"])
    assert lines(alone) == ["Pod/shop/web:80 (hostPort) => shop/web : TCP 8080"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web", "controller": True, "uid": "u"}
    alone["metadata"]["ownerReferences"] = [owner]
    assert len(lines(alone, agents)) == 1
    assert lines(an_object("v1", "Pod", "x", spec={**template["spec"], "hostNetwork": True})) == []


def test_a_pod_on_its_nodes_network_is_reached_whatever_policies_say() -> None:
    (line,) = lines(pod("web", hostNetwork=True), service("web", type="NodePort"), policy("web"))
    assert line.endswith("=> shop/web : TCP 8080")


def test_a_route_of_a_gateway_whose_pods_are_known() -> None:
    proxy = pod("proxy", "infra", labels={"gateway.networking.k8s.io/gateway-name": "edge"})
    ref = {"name": "web", "port": 80}
    begin = "Gateway/infra/edge, HTTPRoute/shop/way (shop.example), Service/shop/web:80 => shop/web :"
    objects = *WEB, gateway(), route(ref, hostnames=["shop.example"])
    (line,) = lines(*objects, policy("web", NGINX))
    assert line == f"{begin} TCP 8080, if the controller is any pod in namespace nginx"
    assert lines(*objects, policy("web", NGINX), proxy) == [f"{begin} denied TCP 8080"]
    from_proxies = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "infra"}}}
    assert lines(*objects, policy("web", from_proxies), proxy) == [f"{begin} TCP 8080"]


def test_of_two_proxies_only_one_may_pass() -> None:
    labels = {"gateway.networking.k8s.io/gateway-name": "edge"}
    proxies = pod("a", "infra", labels={**labels, "old": "yes"}), pod("b", "infra", labels=labels)
    old = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"old": "yes"}}}
    (line,) = lines(*WEB, gateway(), route({"name": "web", "port": 80}), policy("web", old), *proxies)
    assert line.endswith("TCP 8080, from infra/a")


def test_a_route_needs_a_gateway_that_takes_it_and_a_grant() -> None:
    ref = {"name": "web", "port": 80}
    same = gateway(allowedRoutes={"namespaces": {"from": "Same"}})
    (line,) = lines(*WEB, same, route(ref))
    assert "=> nobody : no listener of Gateway infra/edge allows HTTPRoute from namespace shop" in line
    (line,) = lines(*WEB, route(ref))
    assert line.startswith(
        "Gateway/infra/edge (not among the objects), HTTPRoute/shop/way, Service/shop/web:80 => shop/web"
    )
    elsewhere = pod("web", "pay"), service("web", "pay")
    across = route({**ref, "namespace": "pay"})
    (line,) = lines(*elsewhere, gateway(), across)
    assert line.endswith("=> nobody : no ReferenceGrant in namespace pay permits Service/pay/web")
    grant = an_object("gateway.networking.k8s.io/v1beta1", "ReferenceGrant", "g", "pay")
    grant["spec"] = {
        "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "shop"}],
        "to": [{"group": "", "kind": "Service"}],
    }
    (line,) = lines(*elsewhere, gateway(), across, grant)
    assert line.endswith("=> pay/web : TCP 8080")


@pytest.mark.parametrize(("kind", "protocol"), [("GRPCRoute", "HTTP"), ("TLSRoute", "TLS"), ("TCPRoute", "TCP")])
def test_other_routes_are_ways_too(kind: str, protocol: str) -> None:
    (line,) = lines(*WEB, gateway(protocol=protocol), route({"name": "web", "port": 80}, kind=kind))
    assert line == f"Gateway/infra/edge, {kind}/shop/way, Service/shop/web:80 => shop/web : TCP 8080"


def test_a_weight_of_zero_and_a_parent_that_is_a_service_are_no_ways() -> None:
    assert lines(*WEB, gateway(), route({"name": "web", "port": 80, "weight": 0})) == []
    mesh = route({"name": "web", "port": 80}, parentRefs=[{"group": "", "kind": "Service", "name": "web"}])
    assert lines(*WEB, mesh) == []


def test_a_mirror_gets_copies_of_the_requests() -> None:
    mirror = {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "audit", "port": 80}}}
    rules = [{"backendRefs": [{"name": "web", "port": 80}], "filters": [mirror]}]
    first, second = lines(*WEB, pod("audit"), service("audit"), gateway(), route(rules=rules))
    assert first.endswith("Service/shop/web:80 => shop/web : TCP 8080")
    assert second.endswith("Service/shop/audit:80 => shop/audit : TCP 8080")


def test_routes_that_delegate_are_followed_once() -> None:
    def delegating(name: str, *children: str) -> Object:
        refs = [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": child} for child in children]
        value = route(*refs)
        value["metadata"]["name"] = name
        if name != "r0":
            del value["spec"]["parentRefs"]
        return value

    # Every route delegates to the next two, twice over: paths are exponentially many, routes are not.
    chain = [delegating(f"r{at}", f"r{at + 1}", f"r{at + 2}") for at in range(12)]
    last = route({"name": "web", "port": 80}) | {"metadata": {"name": "r12", "namespace": "shop"}}
    del last["spec"]["parentRefs"]
    (line,) = lines(*WEB, gateway(), *chain, last)
    assert line.startswith("Gateway/infra/edge, HTTPRoute/shop/r0, ")
    assert line.endswith("HTTPRoute/shop/r12, Service/shop/web:80 => shop/web : TCP 8080")


def test_an_openshift_route_counts_names_of_the_service_and_numbers_of_pods() -> None:
    def shown(**spec: Any) -> list[str]:
        value = an_object("route.openshift.io/v1", "Route", "way")
        value["spec"] = {"host": "shop.example", "to": {"kind": "Service", "name": "web"}, **spec}
        return lines(*WEB, value)

    way = "Route/shop/way (shop.example), Service/shop/web:80 => shop/web : TCP 8080"
    assert shown() == shown(port={"targetPort": "web"}) == shown(port={"targetPort": 8080}) == [way]
    assert shown(port={"targetPort": 80})[0].endswith("=> nobody : no port of Service/shop/web leads to port 80")
    assert shown(to={"name": "web", "weight": 0}) == []
    assert len(shown(alternateBackends=[{"kind": "Service", "name": "green"}])) == 2


def test_a_narrowed_list_has_only_ways_to_these_pods_and_ports() -> None:
    objects = *WEB, pod("api", port=9000), service("api"), ingress(backend("web"), backend("api"), backend("absent"))
    assert len(lines(*objects)) == 3
    (line,) = lines(*objects, to=("shop/api",))
    assert "=> shop/api : TCP 9000" in line
    assert lines(*objects, ports=("8000-8999/TCP",)) == [
        "Ingress/shop/way (shop.example), Service/shop/web:80 => shop/web : TCP 8080"
    ]


def test_hostile_objects_are_read_without_failing() -> None:
    values: list[Any] = [
        None,
        7,
        "x",
        [],
        [7],
        {},
        {"rules": "x"},
        {"rules": [{"http": {"paths": [7, {"backend": 1}]}}]},
    ]
    values += [
        {"to": 7},
        {"to": {"name": 7}},
        {"parentRefs": [7, {}], "rules": 7},
        {"type": ["LoadBalancer"], "ports": 7},
    ]
    values += [
        {"type": "LoadBalancer", "loadBalancerSourceRanges": [7, "x"], "selector": {"a": 1}, "ports": [{"port": []}]}
    ]
    kinds = [
        ("networking.k8s.io/v1", "Ingress"),
        ("route.openshift.io/v1", "Route"),
        (GATEWAY_API, "HTTPRoute"),
        ("v1", "Service"),
    ]
    objects = [
        resource(an_object(api_version, kind, f"n{number}", spec=value))
        for api_version, kind in kinds
        for number, value in enumerate(values)
    ]
    World(Snapshot.of(objects)).ways_in()


def test_pods_without_any_policy_are_counted_by_direction() -> None:
    egress = an_object("networking.k8s.io/v1", "NetworkPolicy", "out")
    egress["spec"] = {"podSelector": {"matchLabels": {"app": "b"}}, "policyTypes": ["Egress"]}
    objects = pod("a"), pod("b"), pod("c"), pod("d", hostNetwork=True), policy("a"), egress
    ingress_of, egress_of, host = world(*objects).connections().unprotected()
    assert str(ingress_of) == "no policy protects ingress of 2 of 3 pods: shop/b, shop/c"
    assert str(egress_of) == "no policy protects egress of 2 of 3 pods: shop/a, shop/c"
    assert str(host) == "no policy applies to 1 pod on the network of its node: shop/d"
    assert [str(pods) for pods in world(pod("a")).connections().unprotected()] == [
        "no policy protects ingress of any pod",
        "no policy protects egress of any pod",
    ]
    both = an_object("networking.k8s.io/v1", "NetworkPolicy", "all")
    both["spec"] = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert world(pod("a"), both).connections().unprotected() == ()


def test_a_list_of_policies_alone_says_that_there_are_no_pods(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy("web")))
    done = CliRunner().invoke(root, ["list", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "no pods are among the objects: --exposure shows what policies let future pods do\n"


def test_a_list_without_pods_and_policies_says_so(tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text(yaml.safe_dump(service("web")))
    assert CliRunner().invoke(root, ["list", str(tmp_path)]).stderr == "no pods are among the objects\n"


def test_a_list_from_some_pods_has_no_ways_in_but_one_from_outside_has() -> None:
    def ways(*arguments: str) -> bool:
        return "through Ingress/shop/web" in CliRunner().invoke(root, ["list", "examples/ways-in", *arguments]).stdout

    assert ways()
    assert ways("--from", "outside")
    assert ways("--focus", "shop/api")
    assert not ways("--from", "infra")


def test_pictures_draw_the_ways_in_whole_even_if_reasons_differ() -> None:
    done = CliRunner().invoke(root, ["list", "examples/ways-in", "--explain", "-o", "mermaid"])
    assert '-->|"TCP 8080"|' in done.stdout


def test_too_many_sorts_of_controllers_are_noted(tmp_path: Path) -> None:
    rules = [{"podSelector": {"matchLabels": {f"key-{number}": "x"}}} for number in range(12)]
    policies = [policy("web", rule) for rule in rules]
    for number, value in enumerate(policies):
        value["metadata"]["name"] = f"policy-{number}"
    (tmp_path / "world.yaml").write_text(yaml.safe_dump_all([*WEB, ingress(backend("web")), *policies]))
    done = CliRunner().invoke(root, ["list", str(tmp_path)])
    assert "TW210" in done.stderr
    assert "TW210" not in CliRunner().invoke(root, ["list", str(tmp_path), "--from", "shop"]).stderr


def a_way_to(target: Object, **offered: Any) -> list[Object]:
    """Return a Service for one pod, which is then the only pod with this label."""
    name, namespace = target["metadata"]["name"], target["metadata"]["namespace"]
    target["metadata"]["labels"]["only"] = name
    ports = [{"port": 80}, {"port": 53, "protocol": "UDP", "name": "dns"}]
    return [service(f"to-{name}", namespace, selector={"only": name}, ports=ports, **offered)]


def verdicts(judged: JudgedWay, named: str = "") -> dict[str, Verdict]:
    """Return the verdict by protocol, for a place that is named so, or else for everyone."""
    return {
        ports.protocol: connected.verdict
        for connection in judged.connections
        if named in (*connection.pods, *connection.addresses) or not (*connection.pods, *connection.addresses)
        for connected in connection.flows
        for ports in connected.ranges
    }


@settings(max_examples=examples(60), deadline=None)
@given(clusters())
def test_a_way_through_a_known_pod_is_decided_as_its_connection_is(objects: list[Object]) -> None:
    pods = [value for value in objects if value["kind"] == "Pod"]
    proxy, target = pods[0], pods[1]
    services = a_way_to(target)
    proxy["metadata"]["labels"][GATEWAY_LABEL] = "edge"
    namespace = target["metadata"]["namespace"]
    edge = gateway(namespace=proxy["metadata"]["namespace"])
    both = route({"name": f"to-{target['metadata']['name']}", "port": 80})
    both["metadata"]["namespace"] = namespace
    both["spec"]["parentRefs"] = [{"name": "edge", "namespace": proxy["metadata"]["namespace"]}]
    of = World(snapshot([*objects, *services, edge, both]))
    model = network_model(of.snapshot)
    ends = [model.pod(value["metadata"]["namespace"], value["metadata"]["name"]) for value in (proxy, target)]
    assert ends[0] is not None
    assert ends[1] is not None
    (judged,) = of.ways_in()
    assert verdicts(judged) == {"TCP": decide(model, ends[0], ends[1], "TCP", 80).verdict}


@settings(max_examples=examples(60), deadline=None)
@given(clusters(), st.sampled_from(("203.0.113.7", "10.9.9.9")))
def test_a_way_from_an_address_is_decided_as_its_connection_is(objects: list[Object], address: str) -> None:
    target = next(value for value in objects if value["kind"] == "Pod")
    offered = a_way_to(target, type="LoadBalancer", loadBalancerSourceRanges=[f"{address}/32"])
    of = World(snapshot([*objects, *offered]))
    model = network_model(of.snapshot)
    end = model.pod(target["metadata"]["namespace"], target["metadata"]["name"])
    known = parse_address(address)
    assert end is not None
    assert known is not None
    for judged in of.ways_in():
        ((protocol, port, _),) = judged.way.targets
        expected = decide(model, address_endpoint(known), end, protocol, port).verdict
        # A way that is open for others only does not name the address.
        assert verdicts(judged, address).get(protocol, Verdict.DENY) is expected


@settings(max_examples=examples(40), deadline=None)
@given(clusters())
def test_a_way_without_a_known_controller_is_open_for_exactly_the_pods_that_policies_let_through(
    objects: list[Object],
) -> None:
    """Whichever pod were the controller: if it is known, its own verdict is that of its sort."""
    target = next(value for value in objects if value["kind"] == "Pod")
    services = a_way_to(target)
    way = an_object("networking.k8s.io/v1", "Ingress", "way", target["metadata"]["namespace"])
    way["spec"] = {"defaultBackend": backend(services[0]["metadata"]["name"])}
    of = snapshot([*objects, *services, way])
    (judged,) = World(of).ways_in()
    future = future_pods(of)
    assume(future.is_complete)
    model = network_model(future.snapshot)
    end = model.pod(target["metadata"]["namespace"], target["metadata"]["name"])
    assert end is not None
    passing = [
        sort
        for (namespace, name), sort in future.pods.items()
        if (controller := model.pod(namespace, name)) is not None
        and decide(model, controller, end, "TCP", 80).verdict is Verdict.ALLOW
    ]
    shown = {
        name
        for connection in judged.connections
        if connection.flows[0].verdict is Verdict.ALLOW
        for name in connection.pods
    }
    everywhere = any(not (connection.pods or connection.addresses) for connection in judged.connections)
    if everywhere:
        allowed = verdicts(judged)["TCP"] is Verdict.ALLOW
        assert len(passing) == (len(future.pods) if allowed else 0)
    else:
        assert shown == set(passing[0].space.names(passing) if passing else ())


def test_a_way_is_not_called_closed_for_sorts_of_controllers_that_were_not_tried() -> None:
    objects: list[Object] = []
    for number in range(300):
        team = {"namespaceSelector": {"matchLabels": {f"key-{number:03}": "x"}}}
        name = f"web-{number:03}"
        objects += [pod(name), service(name), policy(name, team)]
    opened, closed = lines(*objects, ingress(backend("web-000"), backend("web-299")))
    assert opened.endswith("if the controller is any pod in a namespace with key-000=x")
    assert closed.endswith(f"denied TCP 8080, if the controller is {TRIED}")
