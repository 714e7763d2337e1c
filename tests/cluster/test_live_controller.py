"""`tierwall controller` on a real API server: statuses, Events and reports, takeover, a paused leader, an outage.

One cluster serves all steps: to start one takes longer than the steps.
"""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.labs.controller_run import LEASE_S, TAKEOVER_S, ControllerRun
from tests.labs.fault_proxy import FaultProxy
from tests.labs.fresh_statuses import differing_policies
from tests.labs.live_client import LiveClient, path_of
from tests.labs.live_cluster import LiveCluster
from tests.labs.waiting import eventually
from tests.randomness import SEED, outage_seconds, rounds
from tests.worlds.network_objects import admin, network_policy, rule
from tierwall.cluster.access import find_access
from tierwall.cluster.cluster import Cluster
from tierwall.cluster.load import load_cluster
from tierwall.serve.generations import policy_versions
from tierwall.serve.node_report import KernelTable, node_report
from tierwall.serve.report_sender import ReportSender, ReportTiming

pytestmark = [pytest.mark.engine, pytest.mark.slow]

Object = dict[str, Any]
API = "gateway.networking.k8s.io"
OURS, OTHER = "tierwall.io/controller", "example.com/other"


def manifest(api: str, kind: str, name: str, spec: Object, namespace: str = "shop") -> Object:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def target(name: str, section: str = "") -> Object:
    named = {"group": API, "kind": "Gateway", "name": name}
    return named | ({"sectionName": section} if section else {})


def access_policy(name: str, *targets: Object) -> Object:
    spec = {"targetRefs": list(targets), "action": "Allow"}
    return manifest("agentic.networking.x-k8s.io/v1alpha1", "XAccessPolicy", name, spec)


def gateway(name: str) -> Object:
    listeners = [{"name": name, "port": port, "protocol": "HTTP"} for name, port in (("web", 80), ("more", 81))]
    return manifest(f"{API}/v1", "Gateway", name, {"gatewayClassName": "tierwall", "listeners": listeners})


def node(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def report_definition(kind: str, plural: str, scope: str) -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.openreports.io"},
        "spec": {"group": "openreports.io", "scope": scope, "names": names, "versions": [version]},
    }


GUARD = admin("guard", rule("Deny"))
RIVAL = admin("rival", rule("Allow"))
BASELINE = admin("default", rule("Deny"))
CLUSTER_POLICY = manifest(
    "policy.networking.k8s.io/v1alpha2",
    "ClusterNetworkPolicy",
    "tenants",
    {"tier": "Admin", "priority": 9, "subject": {"namespaces": {}}, "ingress": [rule("Deny")]},
    namespace="",
)
TOOLS = access_policy("tools", target("gw", "web"), target("gw", "more"), target("gw", "none"))
LOST = access_policy("lost", target("elsewhere"))
TIMEOUTS = manifest(
    "agentgateway.dev/v1alpha1",
    "AgentgatewayPolicy",
    "timeouts",
    {"targetRefs": [target("gw")], "traffic": {"timeouts": {"request": "5s"}}},
)
POLICIES = (GUARD, RIVAL, BASELINE, CLUSTER_POLICY, TOOLS, LOST, TIMEOUTS)
OBJECTS = (
    manifest(f"{API}/v1", "GatewayClass", "tierwall", {"controllerName": OURS}, namespace=""),
    gateway("gw"),
    network_policy("open"),
    *POLICIES,
)


class Administrator:
    """The cluster of a test, as an administrator sees it."""

    def __init__(self, live: LiveClient) -> None:
        self.live = live

    def get(self, value: Object) -> Object:
        status, answer = self.live.request("GET", f"{path_of(value)}/{value['metadata']['name']}")
        assert status == 200, answer
        return dict(answer)

    def change(self, value: Object, change: Object, part: str = "") -> None:
        path = f"{path_of(value)}/{value['metadata']['name']}{part}"
        status, answer = self.live.request("PATCH", path, change)
        assert status == 200, answer

    def conditions(self, value: Object) -> dict[str, tuple[str, str]]:
        """Return status and reason of our conditions, by section and type."""
        status = self.get(value).get("status", {})
        entries = [("", status), *((entry["ancestorRef"].get("sectionName", ""), entry) for entry in _ours(status))]
        return {
            f"{section}:{each['type']}".lstrip(":"): (each["status"], each["reason"])
            for section, entry in entries
            for each in entry.get("conditions", ())
        }

    def has(self, value: Object, expected: dict[str, tuple[str, str]]) -> None:
        eventually(
            lambda: self.conditions(value) == expected,
            lambda: f"{value['metadata']['name']}: {self.conditions(value)}, expected {expected}",
        )

    def events(self) -> set[tuple[str, str]]:
        listed = self.live.request("GET", "/apis/events.k8s.io/v1/events")[1]["items"]
        ours = (event for event in listed if event["reportingController"] == OURS)
        return {(event["regarding"]["name"], event["reason"]) for event in ours}

    def versions(self) -> list[str]:
        return [self.get(policy)["metadata"]["resourceVersion"] for policy in POLICIES]


def _ours(status: Object) -> list[Object]:
    return [entry for entry in status.get("ancestors", ()) if entry["controllerName"] == OURS]


ACCEPTED, FALSE = ("True", "Accepted"), "False"
PREFIX = "tierwall.io/"
NO_CONFLICTS = {f"{PREFIX}Accepted": ACCEPTED, f"{PREFIX}Conflicted": (FALSE, "NoConflicts")}
SAME_PRIORITY = {f"{PREFIX}Accepted": ACCEPTED, f"{PREFIX}Conflicted": ("True", "SamePriority")}


def waiting(section: str) -> dict[str, tuple[str, str]]:
    return {f"{section}:Accepted": ACCEPTED, f"{section}:Programmed": (FALSE, "Reconciling")}


NOT_FOUND = (FALSE, "TargetNotFound")


def programmed(state: dict[str, tuple[str, str]], reason: str) -> dict[str, tuple[str, str]]:
    return state | {f"{PREFIX}Programmed": (str(reason == "Programmed"), reason)}


def test_the_controller_on_a_real_api_server(tmp_path: Path) -> None:
    server = LiveCluster(tmp_path)
    try:
        server.start()
        server.install(
            report_definition("Report", "reports", "Namespaced"),
            report_definition("ClusterReport", "clusterreports", "Cluster"),
        )
        live = LiveClient(tmp_path)
        for namespace in ("shop", "tierwall-system"):
            live.namespace(namespace)
        live.create(*OBJECTS)
        cluster = Administrator(live)
        _statuses(cluster)
        _restart(cluster)
        _nodes(cluster)
        _killed_leader(cluster)
        _paused_leader(cluster, server)
        _outage(cluster, server)
        live.close()
    finally:
        server.stop()


def _statuses(cluster: Administrator) -> None:
    """Every kind has its status; what belongs to others stays; entries go with their targets."""
    foreign: Object = {
        "ancestorRef": {"group": API, "kind": "Gateway", "name": "gw", "namespace": "shop"},
        "controllerName": OTHER,
        "conditions": [
            {
                "type": "Accepted",
                "status": "True",
                "reason": "Accepted",
                "message": "by somebody else",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }
    cluster.change(TOOLS, {"status": {"ancestors": [foreign]}}, "/status")
    cluster.change(GUARD, {"status": {"conditions": foreign["conditions"]}}, "/status")
    with ControllerRun(cluster.live, "first") as controller:
        cluster.has(GUARD, SAME_PRIORITY | {"Accepted": ACCEPTED})
        cluster.has(RIVAL, SAME_PRIORITY)
        cluster.has(BASELINE, {f"{PREFIX}Accepted": ACCEPTED})
        cluster.has(CLUSTER_POLICY, NO_CONFLICTS)
        cluster.has(TOOLS, waiting("web") | waiting("more") | {"none:Accepted": NOT_FOUND})
        cluster.has(LOST, {"Accepted": NOT_FOUND})
        cluster.has(TIMEOUTS, {"Accepted": ("True", "Valid"), "Attached": ("True", "Attached")})
        assert foreign in cluster.get(TOOLS)["status"]["ancestors"]
        assert foreign["conditions"][0] in cluster.get(GUARD)["status"]["conditions"]
        owners = cluster.get(GUARD)["metadata"]["managedFields"]
        assert [each["operation"] for each in owners if each["manager"] == "tierwall"] == ["Apply"]
        expected = {("guard", "Conflicted"), ("guard", "Accepted"), ("lost", "Rejected"), ("timeouts", "Accepted")}
        eventually(lambda: expected <= cluster.events(), lambda: cluster.events())
        assert "open" not in {name for name, _ in cluster.events()}, "nothing is wrong with it"
        reports = "/apis/openreports.io/v1alpha1/clusterreports"
        eventually(lambda: cluster.live.request("GET", reports)[1]["items"], "a report")
        (report,) = cluster.live.request("GET", reports)[1]["items"]
        assert "TW201" in {result["policy"] for result in report["results"]}

        before = {each["type"]: each for each in cluster.get(GUARD)["status"]["conditions"]}
        cluster.change(RIVAL, {"spec": {"priority": 6}})
        cluster.has(GUARD, NO_CONFLICTS | {"Accepted": ACCEPTED})
        after = {each["type"]: each for each in cluster.get(GUARD)["status"]["conditions"]}
        assert after[f"{PREFIX}Accepted"] == before[f"{PREFIX}Accepted"]
        cluster.change(RIVAL, {"spec": {"priority": 5}})
        cluster.has(GUARD, SAME_PRIORITY | {"Accepted": ACCEPTED})
        cluster.change(TOOLS, {"spec": {"targetRefs": [target("gw", "web")]}})
        cluster.has(TOOLS, waiting("web"))
        assert {
            each["observedGeneration"] for entry in _ours(cluster.get(TOOLS)["status"]) for each in entry["conditions"]
        } == {2}
        assert foreign in cluster.get(TOOLS)["status"]["ancestors"]

        # A list without room: the Gateway says so, and no longer when there is room again.
        cluster.change(TOOLS, {"status": {"ancestors": [foreign] * 16}}, "/status")
        affected = {f"{PREFIX}AccessPolicyAffected": ("True", "StatusFull")}
        eventually(lambda: affected.items() <= cluster.conditions(gateway("gw")).items(), "the full list")
        eventually(lambda: ("tools", "StatusFull") in cluster.events(), lambda: cluster.events())
        assert cluster.get(TOOLS)["status"]["ancestors"] == [foreign] * 16
        cluster.change(TOOLS, {"status": {"ancestors": [foreign]}}, "/status")
        cluster.has(TOOLS, waiting("web"))
        eventually(lambda: not affected.items() <= cluster.conditions(gateway("gw")).items(), "room")

        _gateways(cluster)

        cluster.live.delete(LOST)
        cluster.live.create(LOST)
        cluster.has(LOST, {"Accepted": NOT_FOUND})
        values = controller.metrics()
        assert values['tierwall_policies{accepted="true",kind="AdminNetworkPolicy"}'] == 2
        assert values['tierwall_policies{accepted="false",kind="XAccessPolicy"}'] == 1
        assert "Traceback" not in controller.end()


def _gateways(cluster: Administrator) -> None:
    """Classes, Gateways, ListenerSets and routes of ours have the statuses of the Gateway API; nothing is served."""
    added = manifest(
        f"{API}/v1",
        "ListenerSet",
        "added",
        {"parentRef": {"name": "gw"}, "listeners": [{"name": "extra", "port": 82, "protocol": "HTTP"}]},
    )
    route = manifest(
        f"{API}/v1",
        "HTTPRoute",
        "route",
        {
            "parentRefs": [{"name": "gw"}, {"name": "others"}],
            "rules": [{"backendRefs": [{"name": "none", "port": 80}]}],
        },
    )
    cluster.live.create(added, route)
    cluster.has(OBJECTS[0], {"Accepted": ACCEPTED, "SupportedVersion": ("Unknown", "Pending")})
    assert {"name": "HTTPRoute"} in cluster.get(OBJECTS[0])["status"]["supportedFeatures"]
    cluster.has(gateway("gw"), {"Accepted": ACCEPTED, "Programmed": ("False", "Pending")})
    cluster.has(added, {"Accepted": ("False", "NotAllowed"), "Programmed": ("False", "NotAllowed")})
    eventually(lambda: _parents(cluster, route) == UNRESOLVED, lambda: _parents(cluster, route))
    listeners = {each["name"]: each for each in cluster.get(gateway("gw"))["status"]["listeners"]}
    assert {name: listener["attachedRoutes"] for name, listener in listeners.items()} == {"web": 1, "more": 1}
    assert listeners["web"]["supportedKinds"] == [{"group": API, "kind": kind} for kind in ("HTTPRoute", "GRPCRoute")]

    everybody = {"allowedListeners": {"namespaces": {"from": "All"}}}
    cluster.change(gateway("gw"), {"spec": everybody})
    cluster.has(added, {"Accepted": ACCEPTED, "Programmed": ("False", "Pending")})
    foreign = {"parentRef": {"group": API, "kind": "Gateway", "name": "others"}, "controllerName": OTHER}
    said = [{"type": "x", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    entries = cluster.get(route)["status"]["parents"]
    cluster.change(route, {"status": {"parents": [*entries, {**foreign, "conditions": said}]}}, "/status")
    cluster.change(route, {"spec": {"parentRefs": [{"name": "others"}]}})
    eventually(lambda: _parents(cluster, route) == {}, lambda: _parents(cluster, route))
    assert [entry["controllerName"] for entry in cluster.get(route)["status"]["parents"]] == [OTHER]
    cluster.live.delete(route)
    cluster.live.delete(added)


UNRESOLVED = {"gw": {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("False", "BackendNotFound")}}


def _parents(cluster: Administrator, route: Object) -> dict[str, dict[str, tuple[str, str]]]:
    """Return status and reason of the conditions of a route, by parent of ours."""
    return {
        entry["parentRef"]["name"]: {each["type"]: (each["status"], each["reason"]) for each in entry["conditions"]}
        for entry in cluster.get(route).get("status", {}).get("parents", ())
        if entry["controllerName"] == OURS
    }


def _restart(cluster: Administrator) -> None:
    """Nothing has changed, so nothing is written, and nothing is told again."""
    before, told = cluster.versions(), cluster.events()
    with ControllerRun(cluster.live, "second") as controller:
        controller.leads()
        eventually(lambda: 'kind="AdminNetworkPolicy"' in str(controller.metrics()), "a plan")
        cluster.change(RIVAL, {"metadata": {"labels": {"seen": "yes"}}})
        eventually(lambda: controller.metrics()['tierwall_loads_total{outcome="good"}'] >= 3, "another load")
        assert controller.writes() == 0
        assert controller.end().count("\n") <= 8
    after = cluster.versions()
    assert [new for new, old in zip(after, before, strict=True) if new != old] == [after[1]]
    assert cluster.events() == told


class Agent:
    """The agent of a node, without a kernel."""

    def __init__(self, cluster: Administrator, name: str) -> None:
        self._access = find_access(None, str(cluster.live.kubeconfig), {})
        timing = ReportTiming(heartbeat=0.5, abandoned=2, rest=0.05, first_wait=0.05, longest_wait=0.5)
        self._name = name
        self._sender = ReportSender(self._access, 10, name, "tierwall-system", lambda words: None, timing)
        self._sender.start()

    def hold(self, *left_out: Object) -> None:
        """Report that all policies of now are in force, except for some."""
        objects = load_cluster(Cluster(), ("network",), self._access)
        names = {value["metadata"]["name"] for value in left_out}
        newest = policy_versions(objects)
        in_force = {reference: version for reference, version in newest.items() if reference.name not in names}
        self._sender.put(node_report(self._name, KernelTable("h", "2026-01-01T00:00:00Z", 0, in_force), newest))

    def stop(self) -> None:
        self._sender.close()


def _nodes(cluster: Administrator) -> None:
    """Programmed follows what agents report; a silent node counts as missing, and a restart changes nothing."""
    cluster.live.create(node("worker-1"), node("worker-2"))
    options = ("--node-agents", "--node-timeout=6s")
    guard = SAME_PRIORITY | {"Accepted": ACCEPTED}
    near, far = Agent(cluster, "worker-1"), Agent(cluster, "worker-2")
    try:
        with ControllerRun(cluster.live, "agents", *options) as controller:
            cluster.has(GUARD, programmed(guard, "NodesMissing"))
            near.hold()
            far.hold(GUARD)
            cluster.has(GUARD, programmed(guard, "Reconciling"))
            cluster.has(BASELINE, programmed({f"{PREFIX}Accepted": ACCEPTED}, "Programmed"))
            message = cluster.get(GUARD)["status"]["conditions"][-1]["message"]
            assert message == "Not in force yet on worker-2"
            far.hold()
            cluster.has(GUARD, programmed(guard, "Programmed"))
            cluster.change(GUARD, {"spec": {"ingress": [rule("Deny", 80)]}})
            cluster.has(GUARD, programmed(guard, "Reconciling"))
            near.hold()
            far.hold()
            cluster.has(GUARD, programmed(guard, "Programmed"))
            eventually(lambda: ("guard", "Programmed") in cluster.events(), lambda: cluster.events())
            values = controller.metrics()
            assert values["tierwall_policy_programmed_seconds_count"] >= 1
            assert values['tierwall_nodes{state="reporting"}'] == 2
        before = cluster.versions()
        with ControllerRun(cluster.live, "agents-again", *options) as controller:
            controller.leads()
            eventually(lambda: controller.metrics().get('tierwall_nodes{state="reporting"}') == 2, "all heartbeats")
            assert controller.writes() == 0
            assert cluster.versions() == before
            far.stop()
            cluster.has(GUARD, programmed(guard, "NodesMissing"))
            assert controller.metrics()['tierwall_nodes{state="silent"}'] == 1
            cluster.live.delete(node("worker-2"))
            cluster.has(GUARD, programmed(guard, "Programmed"))
        with ControllerRun(cluster.live, "no-agents"):
            cluster.has(GUARD, guard)
    finally:
        near.stop()
        far.stop()
        cluster.live.delete(node("worker-1"))


def _flip(cluster: Administrator) -> dict[str, tuple[str, str]]:
    """Change whether two policies conflict; return what the first must say."""
    priority = 6 if cluster.get(RIVAL)["spec"]["priority"] == 5 else 5
    cluster.change(RIVAL, {"spec": {"priority": priority}})
    return (SAME_PRIORITY if priority == 5 else NO_CONFLICTS) | {"Accepted": ACCEPTED}


def _killed_leader(cluster: Administrator) -> None:
    """Another replica leads within the lease and two retries."""
    with ControllerRun(cluster.live, "a") as leader:
        leader.leads()
        with ControllerRun(cluster.live, "b") as standby:
            standby.says("following ")
            leader.process.kill()
            leader.process.wait()
            killed = time.monotonic()
            standby.leads()
            # What the machine may need on top of it to start a request and to print a line.
            assert time.monotonic() - killed < TAKEOVER_S + LEASE_S
            cluster.has(GUARD, _flip(cluster))


def _faulty(live: LiveClient, proxy: FaultProxy) -> Path:
    """Return a kubeconfig that leads through a proxy."""
    config = json.loads(live.kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": proxy.url}
    path = live.folder / "faulty"
    path.write_text(json.dumps(config))
    return path


def _paused_leader(cluster: Administrator, server: LiveCluster) -> None:
    """A leader that wakes up late writes nothing, and follows again. What it had sent before is refused."""
    with (
        FaultProxy(server.url, cluster.live.folder / "pki" / "ca.crt") as proxy,
        ControllerRun(cluster.live, "sleeper", kubeconfig=_faulty(cluster.live, proxy)) as sleeper,
    ):
        cluster.has(GUARD, _flip(cluster))
        with ControllerRun(cluster.live, "awake") as awake:
            awake.says("following ")
            written = f"{path_of(GUARD)}/{GUARD['metadata']['name']}/status"
            proxy.always = lambda target: "hold" if target.startswith(written) else None
            expected = _flip(cluster)
            eventually(lambda: proxy.is_holding, lambda: sleeper.log)
            sleeper.process.send_signal(signal.SIGSTOP)
            try:
                awake.leads()
                cluster.has(GUARD, expected)
                versions = cluster.versions()
                proxy.release()
                eventually(lambda: proxy.held_answers, "the answer to the late write")
                assert proxy.held_answers == [409]
                assert cluster.versions() == versions
            finally:
                sleeper.process.send_signal(signal.SIGCONT)
            sleeper.says("`sleeper` no longer leads")
            before = sleeper.writes()
            cluster.has(GUARD, _flip(cluster))
            assert sleeper.writes() == before
            assert proxy.held_answers == [409]
            assert "Traceback" not in sleeper.log + awake.log


def _outage(cluster: Administrator, server: LiveCluster) -> None:
    """Statuses are right soon after the API server is back."""
    with ControllerRun(cluster.live, "patient") as controller:
        cluster.has(GUARD, _flip(cluster))
        server.send_signal("api-server", signal.SIGSTOP)
        controller.says("no longer leads")
        server.send_signal("api-server", signal.SIGCONT)
        cluster.has(GUARD, _flip(cluster))
        eventually(lambda: controller.log.count("`patient` leads") == 2, lambda: controller.log)
        cluster.has(RIVAL, {key: value for key, value in cluster.conditions(GUARD).items() if key.startswith(PREFIX)})


def _disturb(cluster: Administrator, chance: random.Random, replicas: list[ControllerRun], proxy: FaultProxy) -> None:
    """Change something, or break something."""
    name = f"p{chance.randrange(6)}"
    step = chance.randrange(8)
    if step == 0:
        _flip(cluster)
    elif step in (1, 2):
        cluster.live.create(admin(name, rule(chance.choice(["Allow", "Deny", "Pass"])), priority=chance.randrange(3)))
    elif step == 3:
        cluster.live.request("DELETE", f"{path_of(GUARD)}/{name}")
    elif step == 4:
        sections = chance.sample(["web", "more", "none"], chance.randrange(1, 4))
        cluster.change(TOOLS, {"spec": {"targetRefs": [target("gw", section) for section in sections]}})
    elif step == 5:
        cluster.change(TOOLS, {"status": {"ancestors": []}}, "/status")
    elif step == 6:
        number = chance.randrange(len(replicas))
        replicas[number].__exit__(None, None, None)
        replicas[number] = ControllerRun(cluster.live, f"storm-{number}", kubeconfig=cluster.live.folder / "faulty")
    else:
        share = chance.choice([0.0, 0.0, 0.1, 0.3])
        faults = ("cut", "delay", "500", "503", "429", "garbage")
        proxy.always = lambda request: chance.choice(faults) if chance.random() < share else None


@pytest.mark.storm
def test_statuses_after_a_storm_are_those_of_a_fresh_start(tmp_path: Path) -> None:
    server, chance = LiveCluster(tmp_path), random.Random(SEED)
    replicas: list[ControllerRun] = []
    try:
        server.start()
        live = LiveClient(tmp_path)
        for namespace in ("shop", "tierwall-system"):
            live.namespace(namespace)
        live.create(*OBJECTS)
        cluster = Administrator(live)
        with FaultProxy(server.url, tmp_path / "pki" / "ca.crt", SEED) as proxy:
            faulty = _faulty(live, proxy)
            replicas += [ControllerRun(live, f"storm-{number}", kubeconfig=faulty) for number in range(2)]
            cluster.has(TIMEOUTS, {"Accepted": ("True", "Valid"), "Attached": ("True", "Attached")})
            for _ in range(rounds(40)):
                _disturb(cluster, chance, replicas, proxy)
                time.sleep(chance.uniform(0, 0.3))
            proxy.always = lambda request: None
            server.send_signal("api-server", signal.SIGSTOP)
            # Nobody leads any more when it answers again.
            time.sleep(outage_seconds(LEASE_S))
            server.send_signal("api-server", signal.SIGCONT)
            _flip(cluster)
            access = find_access(None, str(live.kubeconfig), {})

            def differing() -> list[str]:
                return differing_policies(access, len(POLICIES))

            eventually(lambda: not differing(), differing)
            for replica in replicas:
                assert "Traceback" not in replica.log
        live.close()
    finally:
        for replica in replicas:
            replica.__exit__(None, None, None)
        server.stop()
