"""Positions in the objects of a cluster (docs/clusters.md#where-a-rule-stands)."""

from __future__ import annotations

import pickle
from typing import Any

from tierwall.cluster.origin import ClusterOrigin
from tierwall.core.source import Position
from tierwall.render.json import source_document


def policy(name: str, namespace: str = "shop") -> dict[str, Any]:
    """Make a NetworkPolicy as an API server sends it."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"ingress": [{"ports": [{"port": 5432}]}]},
    }


def test_a_place_in_a_cluster_is_a_path_in_an_object() -> None:
    at = ClusterOrigin("prod", policy("db")).position(("spec", "ingress", 0))
    assert at.is_in_cluster
    assert pickle.loads(pickle.dumps(at)) == at
    assert str(at) == "prod: NetworkPolicy/shop/db spec.ingress[0]"
    assert (at.without_column, at.beside_object) == ("prod: NetworkPolicy/shop/db", "prod: spec.ingress[0]")
    assert source_document(at) == {"cluster": "prod", "path": "spec.ingress[0]"}


def test_the_whole_object_has_an_empty_path() -> None:
    at = ClusterOrigin("prod", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}).position()
    assert (str(at), at.beside_object) == ("prod: Node/n1", "prod")
    assert source_document(at) == {"cluster": "prod", "path": ""}


def test_a_place_has_the_value_there() -> None:
    origin = ClusterOrigin("prod", policy("db"))
    assert origin.position(("spec", "ingress", 0, "ports", 0, "port")).node == 5432
    assert origin.position(("spec", "ingress", 7)).node is None
    assert origin.position(("spec", "egress", 0)).node is None


def test_the_value_of_a_secret_is_not_there() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "data": {"tls.key": "aGVsbG8="}}
    assert ClusterOrigin("prod", secret).position(("data", "tls.key")).node is None


def test_places_sort_by_file_or_cluster_then_line_or_object() -> None:
    of = ClusterOrigin
    places = [
        Position("a.yaml", 2, 1),
        of("prod", {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "z"}}).position(),
        of("prod", policy("b", "a")).position(),
        of("prod", policy("b", "a-b")).position(),
        of("prod", policy("a")).position(("spec", "ingress", 2)),
        of("prod", policy("a")).position(("spec", "ingress", 10)),
        of("prod", policy("a")).position(("spec", "ingress", "x")),
        of("prod", policy("b")).position(),
        of("prod", policy("b")).position(("spec",)),
        Position("prod", 1, 1),
        Position("z.yaml", 1, 1),
    ]
    mixed = [*places[5:], *places[:5]]
    assert sorted(mixed) == places
    assert len(set(places)) == len(places)


def test_a_place_in_a_file_stays_what_it_was() -> None:
    at = file, line, column = Position("a.yaml", 3, 5)
    assert (file, line, column) == at
    assert (at.path, at.is_in_cluster) == ("", False)
    assert (str(at), at.without_column, at.beside_object) == ("a.yaml:3:5", "a.yaml:3", "a.yaml:3")
    assert source_document(at) == {"file": "a.yaml", "line": 3, "column": 5}
