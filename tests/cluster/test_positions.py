"""Positions in the objects of a cluster (docs/clusters.md#where-a-rule-stands)."""

from __future__ import annotations

import pickle

from tierwall.cluster.origin import ClusterOrigin
from tierwall.core.source import ClusterPosition, Position
from tierwall.render.json import source_document

POLICY = {
    "kind": "NetworkPolicy",
    "metadata": {"name": "db", "namespace": "shop"},
    "spec": {"ingress": [{"ports": [{"port": 5432}]}]},
}


def test_a_place_in_a_cluster_is_a_path_in_an_object() -> None:
    at = ClusterOrigin("prod", POLICY).position(("spec", "ingress", 0))
    assert at == ClusterPosition("prod", "NetworkPolicy/shop/db", "spec.ingress[0]")
    assert at.is_in_cluster
    assert pickle.loads(pickle.dumps(at)) == at
    assert repr(at) == "ClusterPosition('prod', 'NetworkPolicy/shop/db', 'spec.ingress[0]')"
    assert str(at) == "prod: NetworkPolicy/shop/db spec.ingress[0]"
    assert at.without_column == "prod: NetworkPolicy/shop/db"
    assert source_document(at) == {"cluster": "prod", "path": "spec.ingress[0]"}


def test_the_whole_object_has_an_empty_path() -> None:
    at = ClusterOrigin("prod", {"kind": "Node", "metadata": {"name": "n1"}}).position()
    assert str(at) == "prod: Node/n1"
    assert source_document(at) == {"cluster": "prod", "path": ""}


def test_the_value_at_a_path_can_be_shown() -> None:
    origin = ClusterOrigin("prod", POLICY)
    assert origin.node(("spec", "ingress", 0, "ports", 0, "port")) == 5432
    assert origin.node(("spec", "ingress", 7)) is None
    assert origin.node(("spec", "egress", 0)) is None


def test_places_sort_by_file_or_cluster_then_line_or_object() -> None:
    places = [
        Position("a.yaml", 2, 1),
        ClusterPosition("prod", "NetworkPolicy/shop/a", "spec.ingress[0]"),
        ClusterPosition("prod", "NetworkPolicy/shop/b"),
        ClusterPosition("prod", "NetworkPolicy/shop/b", "spec"),
        Position("prod", 1, 1),
        Position("z.yaml", 1, 1),
    ]
    mixed = [*places[3:], *places[:3]]
    assert sorted(mixed) == places
    assert len(set(places)) == len(places)


def test_a_place_in_a_file_stays_what_it_was() -> None:
    at = file, line, column = Position("a.yaml", 3, 5)
    assert (file, line, column) == at
    assert (at.path, at.reference) == ("", "")
    assert (str(at), at.without_column, at.is_in_cluster) == ("a.yaml:3:5", "a.yaml:3", False)
    assert source_document(at) == {"file": "a.yaml", "line": 3, "column": 5}
