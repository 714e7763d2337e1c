"""Whatever the objects of one tenant are, those of another are compiled as if the first were not there."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest

from tests.engines.test_envoy_compile import KINDS
from tests.labs.envoy_passed import passed
from tests.randomness import seeds
from tests.worlds.hostile_tenants import WORLDS, HostileWorld
from tests.worlds.tenants import GOOD, HOSTILE, HOSTILE_PORT, Object, good, tenant
from tierwall.analyze.checks import check
from tierwall.engines.envoy.config.compile import CompileState, XdsResources, compile
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

OPTIONS = EnvoyOptions()


def compiled(objects: list[Object], state: CompileState | None = None) -> tuple[XdsResources, CompileState]:
    return compile(Snapshot.of(load_objects(objects)), OPTIONS, state)


def of_the_tenant(resources: XdsResources) -> dict[str, Any]:
    """Return everything that concerns the good tenant: its messages, and what its requests pass."""
    out: dict[str, Any] = {}
    for kind in KINDS:
        for name, message in getattr(resources, kind).items():
            # The routes of the shared Gateway belong to both.
            if f"/{GOOD}/" in name or (kind == "listeners" and "/infra/" in name):
                out[f"{kind} {name}"] = message.SerializeToString(deterministic=True)
    for name, way in passed(resources.routes, resources.extension_configs).items():
        if f" {GOOD}/" in name:
            out[f"way {name}"] = way.content
    for configuration in resources.routes.values():
        for host in configuration.virtual_hosts:
            for number, route in enumerate(route for route in host.routes if route.name.startswith(f"{GOOD}/")):
                # Checkpoint names depend on what else there is; `passed` compares what they lead to.
                out[f"route {configuration.name} {host.domains} {number}"] = (
                    route.name,
                    route.match.SerializeToString(deterministic=True),
                    route.route.cluster,
                )
    return out


def seen(resources: XdsResources, expected: dict[str, Any]) -> dict[str, Any]:
    """Return what there is of the expected; hosts of other tenants may add to it on a shared listener."""
    everything = of_the_tenant(resources)
    return {name: everything.get(name) for name in expected}


BEFORE, STATE = compiled(good())
EXPECTED = of_the_tenant(BEFORE)


def test_the_good_tenant_is_served() -> None:
    assert BEFORE.diagnostics == ()
    assert f"listeners gateway/{GOOD}/gate/8443" in EXPECTED
    assert {name.split()[0] for name in EXPECTED} == {"listeners", "routes", "clusters", "secrets", "way", "route"}


# Admission and Envoy take these, and nothing about them is wrong.
HARMLESS = frozenset(
    (
        "all weights 0",
        "apiVersion of Secret",
        "being deleted",
        "expired certificate",
        "expression and",
        "expression unicode",
        "headers: commands",
        "headers: facts",
        "listener hostname '10.0.0.1'",
        "listener hostname None",
        "match None",
        "route hostname '10.0.0.1'",
        "timeout None",
        "unknown field of Secret",
    )
)
# At a start the oldest Gateway gets a port, and only an API server guarantees ages.
CLASHES = frozenset(name for name in WORLDS if " port" in name and ("tenant" in name or "shared" in name))


REVOKED = good()
POLICY = next(each for each in REVOKED if each["kind"] == "XAccessPolicy")
POLICY["spec"]["rules"] = POLICY["spec"]["rules"][1:]
WAYS = {name: way for name, way in EXPECTED.items() if name.startswith("way ")}
REVOCATION = {name: way for name, way in of_the_tenant(compiled(REVOKED)[0]).items() if name.startswith("way ")}


@pytest.mark.parametrize("name", WORLDS)
def test_one_tenants_mistake_concerns_nobody_else(name: str) -> None:
    world: HostileWorld = WORLDS[name]
    objects = [*world.objects, *good()]
    resources, state = compiled(objects, STATE)
    assert seen(resources, EXPECTED) == EXPECTED
    if name not in CLASHES:
        assert seen(compiled(objects)[0], EXPECTED) == EXPECTED, "at a start"
    revoked, after = compiled([*world.objects, *REVOKED], state)
    assert seen(revoked, REVOCATION) == REVOCATION
    assert seen(compiled(good(), after)[0], WAYS) == WAYS, "without the mistake"

    diagnostics = [*resources.diagnostics, *check(Snapshot.of(load_objects(objects)))]
    named = [f"{problem.reference} {problem.message}" for problem in diagnostics]
    assert name in HARMLESS or any(world.culprit[1] in text for text in named)
    assert not any(
        problem.reference.namespace == GOOD for problem in resources.diagnostics if problem.reference is not None
    )


def test_a_revocation_differs_from_the_state_before() -> None:
    assert seen(BEFORE, REVOCATION) != REVOCATION


JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 70,
    1.5,
    "",
    "x" * 5000,
    "*",
    "a/b",
    "\u202e\n\x00",
    "\U0001f600",
    [],
    {},
    [None],
    [[]],
    {"a": {"b": [1]}},
    {"name": None},
    [{"name": "tls", "port": 1 << 20}],
    "2020-01-01T00:00:00Z",
    HOSTILE,
    GOOD,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a value, as its container and the key or index."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


@pytest.mark.parametrize("seed", seeds(100))
def test_random_junk_in_one_tenants_objects_concerns_nobody_else(seed: int) -> None:
    random = Random(seed)
    objects = copy.deepcopy(tenant(HOSTILE, HOSTILE_PORT))
    for _ in range(random.randint(1, 4)):
        container, key = random.choice(_places(random.choice(objects)))
        if random.random() < 0.2:
            del container[key]
        else:
            container[key] = copy.deepcopy(random.choice(JUNK))
    # What has no kind or name is not an object, and says so when it is read.
    hostile = [each for each in objects if _is_object(each)]
    resources, state = compiled([*hostile, *good()], STATE)
    assert seen(resources, EXPECTED) == EXPECTED
    assert [diagnostic for diagnostic in resources.diagnostics if diagnostic.code == "TW661"] == []
    revoked, _ = compiled([*hostile, *REVOKED], state)
    assert seen(revoked, REVOCATION) == REVOCATION


def _is_object(value: Any) -> bool:
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("namespace") in (GOOD, "infra"):
        return False
    namespace = metadata.get("namespace", "")
    return all(
        isinstance(text, str) and text for text in (value.get("kind"), value.get("apiVersion"), metadata.get("name"))
    ) and isinstance(namespace, str)
