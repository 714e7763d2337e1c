"""Random damage to the objects of one namespace: the others are enforced, and the kernel takes every table."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.labs.nft_kernel import fresh_namespace
from tests.randomness import examples
from tests.worlds.nft_clusters import admin_policy, namespace, network_policy, pod
from tierwall.engines.nftables.kernel.apply import check
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.table.compile import compile_snapshot
from tierwall.engines.nftables.table.options import TableOptions
from tierwall.engines.nftables.table.table import table_script
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

__all__ = ["fresh_namespace"]

pytestmark = pytest.mark.engine

PORTS = [{"name": "web", "containerPort": 80, "protocol": "TCP"}]
GOOD = [
    namespace("good"),
    pod("good/a", "10.0.0.1", app="a"),
    network_policy("good/web", podSelector={}, ingress=[{"ports": [{"port": "web"}, {"port": 443}]}]),
]
VICTIMS = [
    namespace("bad", team="x"),
    pod("bad/b", "10.0.0.2", app="b") | {"spec": {"containers": [{"name": "c", "ports": PORTS}]}},
    {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"pool": "x"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.9"}]},
    },
    network_policy(
        "bad/web",
        podSelector={"matchLabels": {"app": "b"}},
        policyTypes=["Ingress", "Egress"],
        ingress=[
            {
                "from": [
                    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
                    {"podSelector": {"matchExpressions": [{"key": "x", "operator": "In", "values": ["y"]}]}},
                ],
                "ports": [{"port": 80, "endPort": 90}, {"port": "web", "protocol": "UDP"}],
            }
        ],
        egress=[{"to": [{"ipBlock": {"cidr": "fd00::/8"}}, {"namespaceSelector": {}}]}],
    ),
    admin_policy(
        "guard",
        subject={"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "b"}}}},
        ingress=[
            {
                "name": "rule",
                "action": "Deny",
                "from": [{"namespaces": {"matchLabels": {"team": "x"}}}],
                "ports": [{"portNumber": {"protocol": "TCP", "port": 80}}, {"namedPort": "web"}],
            }
        ],
        egress=[{"action": "Pass", "to": [{"networks": ["10.0.0.0/8"]}, {"nodes": {}}, {"domainNames": ["a.b"]}]}],
    ),
]
GARBAGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 65_536, 70_000, 2**31, 2**70, 1.5),
    *("", "x" * 300, "*", "a\nb", 'a"; drop', "é漢字", "0.0.0.0/0", "::/0", "255.255.255.255", "fe80::1%eth0", "1/33"),
    *([], {}, [None], [[]], {"": ""}, {"a": {}}, {"matchLabels": None}, {"matchLabels": {"a": 1}}, "SCTP", "Deny"),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of an object but its kind, API version and name."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        if (*path, key) not in (("kind",), ("apiVersion",), ("metadata",), ("metadata", "name")):
            yield from places(part, (*path, key))


def damaged(chance: random.Random, victim: Any) -> Any:
    """Return an object with some parts replaced, removed or repeated."""
    out = copy.deepcopy(victim)
    for _ in range(chance.randrange(5)):
        candidates = list(places(out))
        if not candidates:
            break
        *path, last = chance.choice(candidates)
        part = out
        for key in path:
            part = part[key]
        kind = chance.randrange(4)
        if kind == 0 and isinstance(part, dict):
            del part[last]
        elif kind == 1 and isinstance(part, list):
            part.extend(copy.deepcopy(part) * chance.choice((1, 50)))
        else:
            part[last] = copy.deepcopy(chance.choice(GARBAGE))
    return out


@settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],
)
@given(st.integers(0, 2**32))
def test_damaged_objects_never_keep_the_others_out(fresh_namespace: NetworkNamespace, seed: int) -> None:
    chance = random.Random(seed)
    victims = [damaged(chance, chance.choice(VICTIMS)) for _ in range(chance.randrange(1, 6))]
    # As a file would have them: what JSON cannot say does not arrive.
    objects = msgspec.json.decode(msgspec.json.encode([*victims, *GOOD]))
    compiled = compile_snapshot(Snapshot.of(load_objects(objects)), TableOptions())
    with fresh_namespace.entered():
        check(table_script(compiled.table))
    assert not compiled.refused
    assert any("NetworkPolicy/good/web" in comment for comment in compiled.table.counters.values())
