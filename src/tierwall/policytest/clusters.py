"""The clusters that policy tests name (docs/policy-tests.md#smoke-tests-for-a-live-cluster).

Each is read once, however many tests name it, and only for the planes that their cases ask about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.reference import named_namespaces
from tierwall.planes import PLANES
from tierwall.proofs.planes import REGIONS
from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.cluster.access import ClusterAccess
    from tierwall.cluster.cluster import Cluster
    from tierwall.core.protocols import Progress


class ClusterObjects(NamedTuple):
    """The objects of a cluster, and the namespace of its context."""

    snapshot: Snapshot
    namespace: str


def _names_cluster(test: Resource) -> bool:
    return test.spec.get("cluster") is True or isinstance(test.spec.get("context"), str)


def read_clusters(
    tests: Iterable[Resource], cluster: Cluster, progress: Progress | None = None
) -> dict[Resource, ClusterObjects]:
    """Read the cluster of each test that names one, as `cluster` says, which has the other options of the command line.

    InputError has a sentence for each cluster that cannot be read.
    """
    naming = [test for test in tests if _names_cluster(test)]
    if not naming:
        return {}
    from tierwall.cluster.load import load_cluster

    problems: list[Diagnostic] = []
    ways: dict[str | None, ClusterAccess] = {}
    # By the name of the context, which may be the current one, or in a pod by the address of the server.
    planes: dict[str, set[str]] = {}
    namespaces: dict[str, set[str]] = {}
    for test in naming:
        context = test.spec.get("context")
        if context not in ways:
            try:
                ways[context] = replace(cluster, context=context).access()
            except InputError as error:
                at = test.position(("spec", "cluster" if context is None else "context"))
                problems += (problem if problem.at else replace(problem, at=at) for problem in error.diagnostics)
                continue
        cases = list_of_maps(test.spec.get("cases"))
        asked = {plane for plane in PLANES for case in cases if plane in case} | set(_proved_planes(cases))
        planes.setdefault(_name(ways[context]), set()).update(asked)
        namespaces.setdefault(_name(ways[context]), set()).update(_namespaces(test, cases))
    read: dict[str, ClusterObjects] = {}
    for access in ways.values() if not problems else ():
        name = _name(access)
        if name not in read:
            try:
                snapshot = load_cluster(cluster, sorted(planes[name]), access, progress, namespaces[name])
                read[name] = ClusterObjects(snapshot, access.namespace)
            except InputError as error:
                problems += error.diagnostics
    if problems:
        raise InputError(problems)
    return {test: read[_name(ways[test.spec.get("context")])] for test in naming}


def _proved_planes(cases: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the planes that proofs are about: those of their regions, and those of a change."""
    for case in cases:
        proof = case.get("prove")
        for key, value in proof.items() if isinstance(proof, dict) else ():
            if key in REGIONS:
                yield key
            elif key in ("noNew", "noLoss"):
                planes = value.get("planes") if isinstance(value, dict) else None
                yield from (name for name in REGIONS if not isinstance(planes, list) or name in planes)


def _name(access: ClusterAccess) -> str:
    return access.context or access.server


def _namespaces(test: Resource, cases: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the namespaces that a test names: its own, and those of its questions."""
    questions = [question for case in cases for plane in PLANES if isinstance(question := case.get(plane), dict)]
    names = (value for question in questions for value in question.values() if isinstance(value, str))
    given = (place.get("namespace") for place in (test.spec, *questions))
    return named_namespaces(names) | {name for name in given if isinstance(name, str)}
