"""An answer that names no gap is the answer of somebody who may read everything.

docs/reference/sources.md#what-could-not-be-read. Clusters are random, and so are the kinds that a user may not list,
and the namespaces in which that holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples, seeds
from tests.worlds import api_clusters, gateway_clusters, tool_worlds
from tests.worlds.network_clusters import NAMESPACES, PORTS, clusters, endpoints
from tierwall import ApiQuestion, GatewayQuestion, InputError, NetworkQuestion, ToolQuestion, World
from tierwall.resources.plane_kinds import kinds_read
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.unlisted import UnlistedKind

# For each kind that may not be listed everywhere, the namespaces in which it may.
Rights = Mapping[KindKey, Collection[str]]


CLUSTER_SCOPED = (
    *("Node", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"),
    *("ClusterRole", "ClusterRoleBinding", "ClusterAuthorizationPolicy", "CustomResourceDefinition"),
)


def live(objects: Collection[Any]) -> list[Resource]:
    resources = []
    for value in objects:
        group, _, version = value["apiVersion"].rpartition("/")
        namespace, name = value["metadata"].get("namespace", ""), value["metadata"]["name"]
        resources.append(Resource(group, version, value["kind"], namespace, name, value, is_live=True))
    return resources


def home(of: Resource) -> str:
    return of.name if of.kind == "Namespace" else of.namespace


def readable(resources: Collection[Resource], rights: Rights, knows_namespaces: bool) -> Snapshot:
    """Return what a user with these rights reads."""
    kept = [
        resource
        for resource in resources
        if home(resource) in rights.get((resource.group, resource.kind), (home(resource),))
    ]
    assert all(resource.kind not in CLUSTER_SCOPED or not resource.namespace for resource in resources)
    return Snapshot.of(kept, tuple(unlisted(resources, rights, knows_namespaces)))


def unlisted(resources: Collection[Resource], rights: Rights, knows_namespaces: bool) -> Iterator[UnlistedKind]:
    everywhere = sorted({home(resource) for resource in resources} - {""})
    for (group, kind), allowed in sorted(rights.items()):
        local = kind not in CLUSTER_SCOPED
        missing = tuple(name for name in everywhere if name not in allowed)
        read = tuple(sorted(allowed)) if local else ()
        known = missing if local and knows_namespaces and read else ()
        if not local or missing or not knows_namespaces:
            yield UnlistedKind(kind, group, "forbidden", "", read, known, is_namespaced=local)


def assert_sound(full: Snapshot, limited: Snapshot, question: Any) -> bool:
    """Ask both; return whether the answer of the limited user claims to be complete."""
    answer = World(full).ask(question)
    other, problem = None, ""
    try:
        other = World(limited).ask(question)
    except InputError as error:
        problem = str(error)
    if other is None:
        assert "is not known" in problem
        return False
    if any(omission.reason == "forbidden" for omission in other.not_considered):
        return False
    assert other.to_dict() == answer.to_dict()
    return True


@settings(max_examples=examples(60))
@given(clusters(), st.data(), st.booleans())
def test_connections(objects: list[Any], data: st.DataObject, knows_namespaces: bool) -> None:
    resources = live(objects)
    kinds = st.sampled_from(sorted(kinds_read("network")))
    rights = data.draw(st.dictionaries(kinds, st.sets(st.sampled_from(NAMESPACES)), min_size=1, max_size=3))
    full, limited = Snapshot.of(resources), readable(resources, rights, knows_namespaces)
    ends = endpoints(objects)
    for _ in range(3):
        source, to = data.draw(st.sampled_from(ends)), data.draw(st.sampled_from(ends))
        question = NetworkQuestion(source=source, to=to, port=data.draw(st.sampled_from(PORTS)))
        assert_sound(full, limited, question)


def test_permissions() -> None:
    claims = 0
    for seed in seeds(40):
        rng = Random(seed)
        resources = live(api_clusters.cluster(rng, inside=True))
        full = Snapshot.of(resources)
        for _ in range(4):
            names = rng.sample(sorted(kinds_read("api")), rng.randint(1, 2))
            rights = {kind: set(rng.sample(api_clusters.NAMESPACES, rng.randint(0, 4))) for kind in names}
            limited = readable(resources, rights, rng.random() < 0.5)
            questions = [ApiQuestion.from_dict(api_clusters.question(rng)) for _ in range(4)]
            claims += sum(assert_sound(full, limited, question) for question in questions)
    assert claims > 100


def test_settings() -> None:
    claims = 0
    for seed in seeds(25):
        rng = Random(seed)
        resources = live(gateway_clusters.cluster(rng))
        full = Snapshot.of(resources)
        for _ in range(6):
            names = rng.sample(sorted(kinds_read("gateway")), rng.randint(1, 2))
            spaces = gateway_clusters.NAMESPACES
            rights = {kind: set(rng.sample(spaces, rng.randint(0, len(spaces) - 1))) for kind in names}
            limited = readable(resources, rights, rng.random() < 0.5)
            claims += assert_sound(full, limited, GatewayQuestion.from_dict(gateway_clusters.question(rng)))
    assert claims > 10


def test_tools() -> None:
    claims = 0
    for seed in seeds(60):
        rng, drawn = Random(seed), tool_worlds.World(seed)
        resources = live(drawn.objects)
        full = Snapshot.of(resources)
        for _ in range(6):
            names = rng.sample(sorted(kinds_read("tool")), rng.randint(1, 2))
            rights = {kind: set(rng.sample(tool_worlds.NAMESPACES, rng.randint(0, 1))) for kind in names}
            limited = readable(resources, rights, rng.random() < 0.5)
            claims += assert_sound(full, limited, ToolQuestion.from_dict(drawn.question()))
    assert claims > 10
