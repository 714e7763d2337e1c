"""Definitions, and objects of their kinds, are taken and refused as a real kube-apiserver takes and refuses them.

The definitions are our own, those that Gateway API and network-policy-api publish (from the module proxy, pinned), and
small ones; the objects are the admission cases, and random changes of them. The module proxy refused to give
kube-agentic-networking and agentgateway (403), so whether our definitions of their kinds are theirs is not compared.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.labs.api_server import DEFINITIONS, ApiServer, path_of
from tests.needs import unavailable
from tests.randomness import examples
from tests.resources.test_definitions import KNOWN, cases, definition, widget
from tests.resources.test_kinds_access_policy import PAIRS as ACCESS
from tests.resources.test_kinds_agentgateway import PAIRS as AGENTGATEWAY
from tests.resources.test_kinds_gateway import PAIRS as GATEWAY
from tierwall.resources.admission import admit
from tierwall.resources.definition.structure import SCHEMA_KEYWORDS
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import admit_with_definitions

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MODULES = {
    "sigs.k8s.io/gateway-api@v1.4.0": "h1:ZwlNM6zOHq0h3WUX2gfByPs2yAEsy/EenYJB78jpQfQ=",
    "sigs.k8s.io/network-policy-api@v0.1.1": "h1:KDW+AkvCCQI3h8yH8j0hurhvPLNtLeVvmZoqtMaG9ew=",
}
CHANNELS = {
    "gateway-api standard": ("sigs.k8s.io/gateway-api@v1.4.0", "config/crd/standard"),
    "gateway-api experimental": ("sigs.k8s.io/gateway-api@v1.4.0", "config/crd/experimental"),
    "network-policy-api": ("sigs.k8s.io/network-policy-api@v0.1.1", "config/crd"),
}
POLICY = {
    "priority": 1,
    "subject": {"namespaces": {"matchLabels": {"a": "b"}}},
    "ingress": [{"name": "in", "action": "Pass", "from": [{"namespaces": {"namespaceSelector": {}}}]}],
    "egress": [
        {
            "action": "Deny",
            "to": [{"pods": {"namespaces": {"sameLabels": ["a"]}, "podSelector": {}}}],
            "ports": [{"portNumber": {"protocol": "UDP", "port": 53}}, {"portRange": {"start": 1, "end": 2}}],
        }
    ],
}
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 3, 70000, 2**63, "", "a", "*", "1s", "10.0.0.0/8", "x" * 400),
    *([], {}, ["a", "a"], ["name"], {"a": 1}, {"group": "", "kind": "Service", "name": "s", "port": 80}),
]
KEYWORD_VALUES: list[Any] = [
    *("object", "array", "string", "integer", "set", "map", "atomic", "self == oldSelf", "true", "has(self.spec)"),
    *({"type": "string"}, {"type": "object"}, [{"type": "string"}], [{"required": ["a"]}], [{"rule": "true"}]),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path_factory.mktemp("server"))
    try:
        api_server.start()
        yield api_server
    finally:
        api_server.stop()


def published(channel: str) -> list[dict[str, Any]]:
    """Return the definitions that a module ships."""
    module, folder = CHANNELS[channel]
    if shutil.which("go") is None:
        unavailable("Go is absent, so modules cannot be had")
    done = subprocess.run(["go", "mod", "download", "-json", module], capture_output=True, text=True, timeout=300)
    said = json.loads(done.stdout or "{}")
    if "Dir" not in said:
        unavailable(f"{module} cannot be had: {said.get('Error', done.stderr)}")
    assert said["Sum"] == MODULES[module]
    documents = [yaml.safe_load(file.read_text()) for file in sorted((Path(said["Dir"]) / folder).glob("*_*.yaml"))]
    return [
        {key: value for key, value in document.items() if key != "status"}
        for document in documents
        if document["kind"] == "CustomResourceDefinition"
    ]


class Installed:
    """Installed definitions and objects of their kinds."""

    def __init__(self, server: ApiServer, definitions: list[dict[str, Any]]) -> None:
        self.server = server
        self.definitions = {
            (document["spec"]["group"], document["spec"]["names"]["kind"]): document for document in definitions
        }
        server.install(*definitions)
        self.snapshot = Snapshot.of(load_objects(list(self.definitions.values())))
        self.objects = [value for value in _all_objects() if self.serves(value)]

    def _definition(self, value: dict[str, Any]) -> dict[str, Any] | None:
        return self.definitions.get((value["apiVersion"].rpartition("/")[0], value["kind"]))

    def serves(self, value: dict[str, Any]) -> bool:
        document = self._definition(value)
        if document is None:
            return False
        name = value["apiVersion"].rpartition("/")[2]
        return any(version["name"] == name and version["served"] for version in document["spec"]["versions"])

    def compare(self, value: dict[str, Any]) -> bool:
        """Return whether both accept an object. They must agree."""
        document = self._definition(value)
        assert document is not None
        theirs = self.server.refusal(path_of(document, value["apiVersion"]), value)
        ours = [problem.message for problem in admit_with_definitions(self.snapshot, value) if problem.refuses]
        assert bool(theirs) == bool(ours), (value, theirs, ours)
        return not theirs

    def remove(self) -> None:
        self.server.remove(*self.definitions.values())


def _all_objects() -> Iterator[dict[str, Any]]:
    for case in (*ACCESS, *AGENTGATEWAY, *GATEWAY):
        yield from deepcopy(case.values[:2])
    for kind in ("AdminNetworkPolicy", "BaselineAdminNetworkPolicy"):
        spec = {key: value for key, value in POLICY.items() if kind == "AdminNetworkPolicy" or key != "priority"}
        head = {"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "default"}}
        yield {**head, "spec": spec}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of everything in a value."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def changed(random: Random, value: Any, names: list[str], others: list[Any]) -> Any:
    """Return a copy of an object with up to two changes in its spec: a part removed, replaced or added."""
    value = deepcopy(value)
    for _ in range(random.choice((0, 1, 1, 2))):
        paths = [path for path in places(value) if len(path) > 1 and path[0] == "spec"]
        if not paths:
            break
        path = random.choice(paths)
        outer, other = at(value, path[:-1]), deepcopy(random.choice(others))
        match random.randrange(4):
            case 0:
                del outer[path[-1]]
            case 1 | 2:
                outer[path[-1]] = other
            case _ if isinstance(outer, dict):
                outer[random.choice(names)] = other
            case _:
                outer.append(other)
    return value


def parts(values: list[Any]) -> tuple[list[str], list[Any]]:
    """Return the names of fields and the small values that occur in objects."""
    names: dict[str, None] = {}
    small: list[Any] = []
    for value in values:
        for path in places(value):
            if path and isinstance(path[-1], str):
                names[path[-1]] = None
            if path and len(json.dumps(part := at(value, path))) < 300:
                small.append(part)
    return list(names), small


def test_schemas_that_are_not_structural_are_refused_by_both(server: ApiServer) -> None:
    for case in cases("definitions_refused.yaml"):
        for schema in case["schemas"]:
            document = definition()
            document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = schema
            assert server.refusal(DEFINITIONS, document), schema


def test_objects_of_a_small_definition_are_judged_alike(server: ApiServer) -> None:
    every = cases("definitions_objects.yaml")
    schemas = {f"c{number}": case["schema"] for number, case in enumerate(every)}
    document = definition(yaml.dump({"type": "object", "properties": schemas}))
    server.install(document)
    for number, case in enumerate(every):
        for word in ("good", "bad"):
            for item in case[word]:
                metadata = {"name": "w", "namespace": "default"}
                value = widget(spec={f"c{number}": item}, metadata=metadata)
                refusal = server.refusal(path_of(document, "example.com/v1"), value)
                assert (not refusal) is (word == "good"), (case["schema"], item, refusal)
    server.remove(document)


@pytest.mark.parametrize("channel", CHANNELS)
def test_published_definitions_and_objects_of_their_kinds_are_judged_alike(server: ApiServer, channel: str) -> None:
    definitions = published(channel)
    for document in definitions:
        assert [problem.message for problem in admit(document) if problem.refuses] == []
        assert server.refusal(DEFINITIONS, document) == ""
    installed = Installed(server, definitions)
    try:
        _compare_at_random(installed)
    finally:
        installed.remove()


def test_our_own_definitions_and_objects_of_their_kinds_are_judged_alike(server: ApiServer) -> None:
    installed = Installed(server, list(KNOWN.values()))
    try:
        _compare_at_random(installed)
    finally:
        installed.remove()


def _compare_at_random(installed: Installed) -> None:
    taken = [installed.compare(value) for value in installed.objects]
    assert any(taken)
    names, small = parts(installed.objects)

    @settings(max_examples=examples(300))
    @given(st.randoms(use_true_random=False))
    def compare(random: Random) -> None:
        installed.compare(changed(random, random.choice(installed.objects), names, [*VALUES, *small]))

    compare()


SMALL = [definition(yaml.dump(case["schema"])) for case in cases("definitions_objects.yaml")]
SMALL += [document for document in KNOWN.values() if len(json.dumps(document)) < 25_000]
NAMES, PARTS = parts(SMALL)


@settings(max_examples=examples(400))
@given(random=st.randoms(use_true_random=False))
def test_definitions_at_random_are_judged_alike(server: ApiServer, random: Random) -> None:
    document = changed(
        random, random.choice(SMALL), [*NAMES, *list(SCHEMA_KEYWORDS) * 3], [*VALUES, *KEYWORD_VALUES, *PARTS]
    )
    theirs = server.refusal(DEFINITIONS, document)
    ours = [problem.message for problem in admit(document) if problem.refuses]
    # What rules could cost is not estimated (docs/definitions.md#what-is-not-done).
    if "cost" not in theirs:
        assert bool(theirs) == bool(ours), (document["spec"], theirs, ours)
