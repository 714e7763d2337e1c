"""Small clusters for the kernel: every endpoint has an address of its own, the same in all clusters.

The addresses never change, so one set of network namespaces serves all clusters.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.worlds.network_clusters import NAMESPACES, admin_policies, baselines, labels, network_policies, pods
from tierwall.policytest.suite import PolicyCase, PolicySuite
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Address, parse_address

Object = dict[str, Any]

DUAL = (("10.0.0.2", "fd00::2"), ("10.0.1.1", "fd01::1"), ("fd00::5", "10.0.0.5"))
POD_ADDRESSES = (("10.0.0.1",), ("10.0.1.2",), *DUAL)
NODES = (("172.18.0.2", "198.51.100.2"), ("172.18.0.3",))
OUTSIDE = ("203.0.113.7", "10.9.9.9", "2001:db8::1")
ENDPOINTS: tuple[Any, ...] = ({"node": "n0"}, {"node": "n1"}, *({"ip": ip} for ip in OUTSIDE))


@st.composite
def clusters(draw: st.DrawFn) -> list[Object]:
    """Draw a cluster: pods, nodes, and policies of every dialect."""
    out: list[Object] = [namespace(name, **draw(labels)) for name in NAMESPACES]
    for number, addresses in enumerate(NODES):
        metadata = {"name": f"n{number}", "labels": draw(st.sampled_from(({}, {"pool": "x"}, {"pool": "y"})))}
        out.append({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": _addresses(addresses)})
    for number, addresses in enumerate(POD_ADDRESSES):
        pod = draw(pods(f"p{number}"))
        pod["spec"]["hostNetwork"] = False
        pod["status"] = {"podIP": addresses[0], "podIPs": [{"ip": ip} for ip in addresses]}
        out.append(pod)
    for number in range(draw(st.integers(1, 6))):
        make = draw(st.sampled_from((admin_policies, admin_policies, network_policies)))
        out.append(draw(make(f"q{number}")))
    if draw(st.booleans()):
        out.append(draw(baselines()))
    return out


def pod_names(objects: list[Object]) -> list[str]:
    """Return `namespace/name` of every pod."""
    pods = (resource["metadata"] for resource in objects if resource["kind"] == "Pod")
    return [f"{metadata['namespace']}/{metadata['name']}" for metadata in pods]


def suite(objects: list[Object], questions: list[Object], expect: list[Object] | None = None) -> PolicySuite:
    """Return questions about some objects as a policy test."""
    snapshot = Snapshot.of(load_objects(objects))
    resource = next(iter(snapshot))
    wanted = expect or [{} for _ in questions]
    cases = tuple(
        PolicyCase(f"{number}", "network", question, want, ())
        for number, (question, want) in enumerate(zip(questions, wanted, strict=True))
    )
    return PolicySuite("", "random", resource, snapshot, {}, cases)


def namespace(name: str, **labels: str) -> Object:
    """Return a namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def pod(place: str, address: str, **labels: str) -> Object:
    """Return a pod `namespace/name` with one address."""
    space, name = place.split("/")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": space, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {"podIP": address, "podIPs": [{"ip": address}]},
    }


def network_policy(place: str, **spec: Any) -> Object:
    """Return a NetworkPolicy `namespace/name`."""
    space, name = place.split("/")
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": space},
        "spec": spec,
    }


def admin_policy(name: str, priority: int = 10, **spec: Any) -> Object:
    """Return an AdminNetworkPolicy, about every namespace unless `spec` has a subject."""
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": name},
        "spec": {"priority": priority, "subject": {"namespaces": {}}, **spec},
    }


def shadowed(policy: Object) -> Object:
    """Return a policy in shadow mode."""
    return {**policy, "metadata": {**policy["metadata"], "annotations": {"tierwall.io/mode": "shadow"}}}


def address(text: str) -> Address:
    """Return an address as a number."""
    parsed = parse_address(text)
    assert parsed is not None
    return parsed


def _addresses(texts: tuple[str, ...]) -> Object:
    kinds = ("InternalIP", "ExternalIP")
    return {"addresses": [{"type": kind, "address": text} for kind, text in zip(kinds, texts, strict=False)]}
