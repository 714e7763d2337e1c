"""Random clusters in which hardly two policies are alike: `bench.warnings` measures changes in them.

A shape says how many namespaces, labels, ports and blocks there are, how many of the policies are those of
administrators, and how many of these share a priority. What policies select, and to whom and on which ports they
allow or deny, is drawn from all of these. The same seed gives the same cluster.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

Object = dict[str, Any]
POLICIES = 3000
ENVIRONMENTS, TEAMS = ("prod", "dev", "test"), 40


class Shape(Struct, frozen=True, kw_only=True):
    """How a cluster varies. `wide` is how often a selector of namespaces or pods selects all of them."""

    namespaces: int
    admin: int
    keys: int = 4
    values: int = 12
    ports: int = 200
    blocks: int = 100
    priorities: int = 1000
    rules: int = 3
    peers: int = 3
    wide: float = 0.1
    ranges: float = 0.2


SHAPES = {
    "many namespaces": Shape(namespaces=1000, admin=1000),
    "many labels": Shape(namespaces=100, admin=500, keys=12, values=60),
    "many ports": Shape(namespaces=100, admin=500, ports=20_000, ranges=0.5, peers=1),
    "many blocks": Shape(namespaces=100, admin=300, blocks=3000),
    "few namespaces": Shape(namespaces=5, admin=300),
    "one namespace": Shape(namespaces=1, admin=200, wide=0.3),
    "crowd of administrators": Shape(namespaces=200, admin=1500, priorities=60, wide=0.6),
    "overridden thousands": Shape(namespaces=1000, admin=40, wide=0.8, priorities=20),
    "long policies": Shape(namespaces=50, admin=200, rules=20, peers=6),
}


class VariedCluster:
    """Draws the objects of one cluster, and further policies like those that it has."""

    def __init__(self, shape: Shape, pods: int, seed: int = 0, policies: int = POLICIES) -> None:
        self._shape, self._pods, self._random = shape, pods, random.Random(seed)
        self._policies = policies
        self._teams = [f"t{number}" for number in range(TEAMS)]
        self._keys = [f"k{number}" for number in range(shape.keys)]
        self._numbers = self._random.sample(range(1, 60_000), shape.ports)
        self._blocks = [self._block() for _ in range(shape.blocks)]

    def objects(self) -> Iterator[Object]:
        """Yield all objects."""
        for number in range(self._shape.namespaces):
            labels = {"team": self._random.choice(self._teams), "env": self._random.choice(ENVIRONMENTS)}
            yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"ns-{number}", "labels": labels}}
        for number in range(self._pods):
            yield self._pod(number)
        for number in range(self._policies):
            yield self.admin(f"a{number}") if number < self._shape.admin else self.local(f"n{number}")

    def local(self, name: str) -> Object:
        """Draw a NetworkPolicy."""
        directions = self._random.choice((("Ingress",), ("Ingress",), ("Egress",), ("Ingress", "Egress")))
        spec: Object = {"podSelector": self._selector(self._pod_labels), "policyTypes": list(directions)}
        for direction in directions:
            side = "from" if direction == "Ingress" else "to"
            spec[direction.lower()] = [self._local_rule(side) for _ in range(self._some(self._shape.rules))]
        metadata = {"name": name, "namespace": f"ns-{self._random.randrange(self._shape.namespaces)}"}
        return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}

    def admin(self, name: str) -> Object:
        """Draw an AdminNetworkPolicy."""
        spec: Object = {"priority": self._random.randrange(self._shape.priorities), "subject": self._pods_or_spaces()}
        for direction, side in self._random.choice(((("ingress", "from"),), (("ingress", "from"), ("egress", "to")))):
            spec[direction] = [self._admin_rule(side, f"r{number}") for number in range(self._some(self._shape.rules))]
        api = "policy.networking.k8s.io/v1alpha1"
        return {"apiVersion": api, "kind": "AdminNetworkPolicy", "metadata": {"name": name}, "spec": spec}

    def change(self, known: dict[str, list[Object]]) -> tuple[Object, Object | None]:
        """Draw a policy as it is applied, and as it was: new or changed, for some pods or all, long or a rule longer.

        `known` are the policies of the cluster, by kind.
        """
        draws = (self.local, self.admin, self.cluster_policy, lambda name: self.baseline())
        draw = self._random.choices(draws, (4, 4, 2, 1))[0]
        new = draw("new")
        old = self._random.choice(known.get(new["kind"]) or [None])
        how = self._random.choice(("new", "wide", "copied", "changed", "longer", "shorter"))
        if how == "wide":
            subject: Object = {"podSelector": {}} if new["kind"] == "NetworkPolicy" else {"subject": {"namespaces": {}}}
            return {**new, "spec": {**new["spec"], **subject}}, None
        if old is None or how == "new":
            return new, None
        if how == "copied":
            return {**old, "metadata": {**old["metadata"], "name": "new"}}, None
        if how == "changed":
            return {**old, "spec": new["spec"]}, old
        rules = {key: old["spec"][key] for key in ("ingress", "egress") if old["spec"].get(key)}
        changed = {
            key: listed[1:] if how == "shorter" else [*listed, *new["spec"].get(key, ())[:1]]
            for key, listed in rules.items()
        }
        return {**old, "spec": {**old["spec"], **changed}}, old

    def baseline(self) -> Object:
        """Draw the BaselineAdminNetworkPolicy."""
        drawn = self.admin("default")
        spec = {key: value for key, value in drawn["spec"].items() if key != "priority"}
        for direction in ("ingress", "egress"):
            for rule in spec.get(direction, ()):
                rule["action"] = "Allow" if rule["action"] == "Pass" else rule["action"]
        return {**drawn, "kind": "BaselineAdminNetworkPolicy", "spec": spec}

    def cluster_policy(self, name: str) -> Object:
        """Draw a ClusterNetworkPolicy of either tier."""
        drawn = self.admin(name)
        spec = {**drawn["spec"], "tier": self._random.choice(("Admin", "Baseline"))}
        for direction in ("ingress", "egress"):
            for rule in spec.get(direction, ()):
                rule["action"] = "Accept" if rule["action"] == "Allow" else rule["action"]
                if "ports" in rule:
                    rule["protocols"] = list(map(_protocol, rule.pop("ports")))
        api = "policy.networking.k8s.io/v1alpha2"
        return {**drawn, "apiVersion": api, "kind": "ClusterNetworkPolicy", "spec": spec}

    def _pod(self, number: int) -> Object:
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        ports = [{"name": f"p{self._random.randrange(20)}", "containerPort": self._random.choice(self._numbers)}]
        space = f"ns-{self._random.randrange(self._shape.namespaces)}"
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"pod-{number}", "namespace": space, "labels": dict(self._pod_labels())},
            "spec": {"containers": [{"name": "c", "image": "i", "ports": ports}]},
            "status": {"podIP": address, "podIPs": [{"ip": address}]},
        }

    def _some(self, most: int) -> int:
        return self._random.randint(1, most)

    def _pod_labels(self) -> list[tuple[str, str]]:
        keys = self._random.sample(self._keys, min(len(self._keys), self._some(4)))
        return [(key, f"v{self._random.randrange(self._shape.values)}") for key in keys]

    def _space_labels(self) -> list[tuple[str, str]]:
        name = f"ns-{self._random.randrange(self._shape.namespaces)}"
        labels = [("team", self._random.choice(self._teams)), ("env", self._random.choice(ENVIRONMENTS))]
        return [self._random.choice((*labels, ("kubernetes.io/metadata.name", name)))]

    def _selector(self, draw: Any) -> Object:
        if self._random.random() < self._shape.wide:
            return {}
        labels = draw()[:2]
        if self._random.random() < 0.2:
            key, value = labels[0]
            operator = self._random.choice(("In", "NotIn", "Exists"))
            values = [] if operator == "Exists" else [value, draw()[0][1]]
            return {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
        return {"matchLabels": dict(labels)}

    def _pods_or_spaces(self) -> Object:
        if self._random.random() < 0.5:
            return {"namespaces": self._selector(self._space_labels)}
        return {
            "pods": {
                "namespaceSelector": self._selector(self._space_labels),
                "podSelector": self._selector(self._pod_labels),
            }
        }

    def _block(self) -> str:
        size = self._random.choice((16, 20, 24, 28, 32))
        bits = self._random.getrandbits(32) >> 32 - size << 32 - size
        return ".".join(str(bits >> shift & 255) for shift in (24, 16, 8, 0)) + f"/{size}"

    def _local_rule(self, side: str) -> Object:
        written: Object = {}
        if self._random.random() > 0.1:
            written[side] = [self._local_peer() for _ in range(self._some(self._shape.peers))]
        if self._random.random() > 0.2:
            written["ports"] = [self._local_port() for _ in range(self._some(3))]
        return written

    def _local_peer(self) -> Object:
        if self._random.random() < 0.3:
            return {"ipBlock": {"cidr": self._random.choice(self._blocks)}}
        peer = {"podSelector": self._selector(self._pod_labels)}
        if self._random.random() < 0.6:
            peer["namespaceSelector"] = self._selector(self._space_labels)
        return peer

    def _local_port(self) -> Object:
        protocol = self._random.choice(("TCP", "TCP", "UDP"))
        if self._random.random() < 0.1:
            return {"protocol": protocol, "port": f"p{self._random.randrange(20)}"}
        number = self._random.choice(self._numbers)
        if self._random.random() < self._shape.ranges:
            return {"protocol": protocol, "port": number, "endPort": number + self._some(2000)}
        return {"protocol": protocol, "port": number}

    def _admin_rule(self, side: str, name: str) -> Object:
        peers = [self._pods_or_spaces() for _ in range(self._some(self._shape.peers))]
        if side == "to" and self._random.random() < 0.3:
            peers = [{"networks": [self._random.choice(self._blocks)]}]
        rule: Object = {"name": name, "action": self._random.choice(("Allow", "Deny", "Pass")), side: peers}
        if self._random.random() > 0.2:
            rule["ports"] = [self._admin_port() for _ in range(self._some(3))]
        return rule

    def _admin_port(self) -> Object:
        protocol, number = self._random.choice(("TCP", "TCP", "UDP")), self._random.choice(self._numbers)
        if self._random.random() < self._shape.ranges:
            return {"portRange": {"protocol": protocol, "start": number, "end": number + self._some(2000)}}
        return {"portNumber": {"protocol": protocol, "port": number}}


def _protocol(port: Object) -> Object:
    """Return the entry of a ClusterNetworkPolicy that says what one of an AdminNetworkPolicy says."""
    (values,) = port.values()
    where = (
        {"number": values["port"]} if "port" in values else {"range": {key: values[key] for key in ("start", "end")}}
    )
    return {values["protocol"].lower(): {"destinationPort": where}}
