"""Random paths: the verdict of each hop and of the whole is that of the reference."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import tierwall
from tests.network.test_network_ends import worlds as network_worlds
from tests.randomness import examples
from tests.reference.path import LABEL, walk
from tests.worlds.network_clusters import KEYS, PORTS
from tests.worlds.network_snapshots import snapshot
from tests.worlds.tool_objects import backend, calls, mcp, on_backend, on_gateway, sa, v1

Object = dict[str, Any]
ACCOUNTS = ("agent", "other")


@st.composite
def worlds(draw: st.DrawFn) -> list[Object]:
    """A random cluster in which some pods serve a Gateway, with a backend behind it and policies on both."""
    objects = draw(network_worlds())
    pods = [resource for resource in objects if resource["kind"] == "Pod"]
    namespace = draw(st.sampled_from(sorted({pod["metadata"]["namespace"] for pod in pods})))
    for pod in pods:
        if draw(st.booleans()):
            pod["status"]["phase"] = "Running"
        if draw(st.booleans()):
            pod["metadata"].setdefault("labels", {})[LABEL] = draw(st.sampled_from(("gw", "gw", "gw", "other")))
        if draw(st.integers(0, 4)):
            pod["spec"]["serviceAccountName"] = draw(st.sampled_from(ACCOUNTS))
    listener = {"name": "web", "port": draw(st.sampled_from(PORTS)), "protocol": "HTTP"}
    gateway: Object = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "gw", "namespace": namespace},
        "spec": {"gatewayClassName": "c", "listeners": [listener]},
    }
    place = draw(st.sampled_from(("front", "front", "front", "absent", "")))
    service = next(each for each in objects if each["kind"] == "Service" and each["metadata"]["namespace"] == namespace)
    if draw(st.integers(0, 3)):
        near = [pod for pod in pods if pod["metadata"]["namespace"] == namespace]
        labels = draw(st.sampled_from(near))["metadata"]["labels"]
        service["spec"]["selector"] = {key: labels[key] for key in KEYS if key in labels} or {"app": "x"}
        service["spec"]["ports"][0]["protocol"] = "TCP"
    port = service["spec"]["ports"][0]["port"] if draw(st.integers(0, 3)) else draw(st.sampled_from(PORTS))
    behind = backend("tools", namespace=namespace, port=port, serviceName=place)
    if not place:
        behind["spec"]["mcp"] = {"hostname": "tools.example.org", "port": port}
    policies = []
    for number, target in enumerate((on_gateway("gw"), on_backend("tools"))):
        if draw(st.booleans()):
            caller = draw(st.sampled_from(pods))
            name = caller["spec"].get("serviceAccountName", "default")
            source = sa(name, namespace=caller["metadata"]["namespace"])
            rule = {"source": source, "authorization": mcp(calls("add"))}
            policy = v1(f"p{number}", target, rule)
            policy["metadata"]["namespace"] = namespace
            policies.append(policy)
    return [*objects, gateway, behind, *policies]


@settings(max_examples=examples(120))
@given(worlds(), st.data())
def test_a_path_is_decided_as_its_hops(objects: list[Object], data: st.DataObject) -> None:
    pods = [resource["metadata"] for resource in objects if resource["kind"] == "Pod"]
    source = data.draw(st.sampled_from([f"{pod['namespace']}/{pod['name']}" for pod in pods]))
    (gateway,) = (each["metadata"]["namespace"] for each in objects if each["kind"] == "Gateway")
    question = {"from": source, "gateway": f"{gateway}/gw", "backend": f"{gateway}/tools", "tool": "add"}
    want = walk(objects, question)
    answer = tierwall.World(snapshot(objects)).ask(tierwall.PathQuestion.from_dict(question))
    assert [hop.verdict for hop in answer.detail.hops] == want["hops"], answer.sentence
    assert answer.verdict == want["verdict"]
    stop = next((hop for hop in answer.detail.hops if hop.verdict not in ("Allow", "NotApplicable")), None)
    assert stop is None or answer.decided_by == stop.decided_by
    unjudged = any(omission.reason == "network" for omission in answer.not_considered)
    assert unjudged is ("NotApplicable" in want["hops"])
