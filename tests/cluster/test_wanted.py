"""Whatever a plane looks up is read from a cluster: no answer lacks a kind (docs/clusters.md#reading)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tierwall
from tierwall import World
from tierwall.cluster.shapes import ApiObject, DefinitionObject, MetadataObject, PodObject, ReferringPodObject
from tierwall.cluster.wanted import wanted_kinds
from tierwall.planes import PLANES, plane
from tierwall.resources.snapshot import KindKey, Snapshot

HERE = Path(__file__).parents[1]
EXAMPLES = HERE.parent / "examples"
FOLDERS = (
    "agents/manifests",
    "path/manifests",
    "shop/manifests",
    "ways-in",
    "tool/manifests",
    "gateway/manifests",
    "api/policies",
)
DEFINITION = ("apiextensions.k8s.io", "CustomResourceDefinition")
# What no cluster has, or only admission of files looks at.
OF_FILES = {
    # A file of the API server.
    ("apiserver.config.k8s.io", "AuthorizationConfiguration"),
    ("gateway.networking.k8s.io", "GatewayClass"),
    ("agentgateway.dev", "AgentgatewayModel"),
}
# The Node authorizer is asked only if a file puts it into the chain.
OF_NODES = set(wanted_kinds(["node"]))


@contextmanager
def lookups(seen: set[KindKey]) -> Iterator[None]:
    """Note the kinds that are looked up in snapshots."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("of_kind", "get", "in_namespace", "selected"):
            patch.setattr(Snapshot, name, noting(getattr(Snapshot, name), seen))
        yield


def noting(lookup: Callable[..., Any], seen: set[KindKey]) -> Callable[..., Any]:
    def noted(snapshot: Snapshot, group: str, kind: str, *rest: Any, **settings: Any) -> Any:
        seen.add((group, kind))
        return lookup(snapshot, group, kind, *rest, **settings)

    return noted


def worlds() -> Iterator[World]:
    for folder in FOLDERS:
        yield tierwall.load(EXAMPLES / folder)


@pytest.mark.parametrize("name", [name for name in PLANES if name != "admit"])
def test_a_question_looks_up_what_its_plane_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[KindKey] = set()
    ask = plane(name).ask

    def noted(*arguments: Any) -> Any:
        with lookups(seen):
            return ask(*arguments)

    monkeypatch.setattr(plane(name), "ask", noted)
    conformance = HERE / "conformance"
    for folder in (conformance / "answers", conformance / name if name != "path" else EXAMPLES / "path" / "tests"):
        tierwall.run_tests(folder)
    assert len(seen) > 5
    # The definitions of a cluster judge nothing: its objects were admitted already.
    left = seen - set(wanted_kinds([name])) - OF_FILES - {DEFINITION}
    assert left <= (OF_NODES if name == "api" else set())


@pytest.mark.parametrize(
    ("planes", "asked"),
    [
        (("network",), lambda world: list(world.connections(explain=True))),
        (("network",), lambda world: list(world.exposure())),
        (("network", "ways"), lambda world: world.ways_in(explain=True)),
        (("tool",), lambda world: world.tools()),
        (("gateway",), lambda world: list(world.effective_everywhere())),
        (("api",), lambda world: world.permissions("alice", (), "default")),
        (("network", "tool", "gateway"), lambda world: world.status()),
        (("network", "tool", "gateway", "api"), lambda world: list(tierwall.diff(world, world.without()))),
        (("network", "ways", "tool", "gateway", "api"), lambda world: world.check()),
    ],
    ids=("list", "exposure", "ways", "tools", "effective", "permissions", "status", "diff", "check"),
)
def test_a_command_looks_up_what_its_planes_read(planes: tuple[str, ...], asked: Callable[[World], Any]) -> None:
    seen: set[KindKey] = set()
    for world in worlds():
        with lookups(seen):
            asked(world)
    assert len(seen) > 4
    left = seen - set(wanted_kinds(planes)) - OF_FILES - {DEFINITION}
    assert left <= (OF_NODES if "api" in planes else set())


def test_a_question_reads_no_more_than_it_needs() -> None:
    network, api = wanted_kinds(["network"]), wanted_kinds(["api"])
    assert ("", "Pod") not in api
    assert ("apiregistration.k8s.io", "APIService") not in api
    assert ("gateway.networking.k8s.io", "HTTPRoute") not in network
    assert ("networking.k8s.io", "Ingress") in wanted_kinds(["ways"])
    assert ("cilium.io", "CiliumNetworkPolicy") in network


def test_what_is_read_of_an_object_depends_on_the_planes() -> None:
    assert wanted_kinds(["network", "api"])["", "Pod"] is PodObject
    assert wanted_kinds(["network", "node"])["", "Pod"] is ReferringPodObject
    assert wanted_kinds(["network"])["apps", "Deployment"] is MetadataObject
    assert wanted_kinds(["api"])[DEFINITION] is DefinitionObject
    assert wanted_kinds(["api", "admit"])[DEFINITION] is ApiObject
