"""A model that follows an earlier snapshot equals the model of the snapshot alone."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tierwall.attach.acceptance import exceeded_limits
from tierwall.attach.place import Place
from tierwall.attach.target import ACCESS_POLICIES, attachments
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import follow, model

NETWORKING, GATEWAY_API = "agentic.networking.x-k8s.io", "gateway.networking.k8s.io"
TARGETS = [("Gateway", "gate", None), ("Gateway", "gate", "web"), ("XBackend", "one", None), ("XBackend", "two", None)]
PLACES = [
    (Place(GATEWAY_API, "Gateway", "prod", "gate"),),
    (Place(GATEWAY_API, "Gateway", "prod", "gate"), Place(GATEWAY_API, "Gateway", "prod", "gate", "web")),
    (Place(NETWORKING, "XBackend", "prod", "one"),),
    (Place(NETWORKING, "XBackend", "prod", "two"),),
]


def thing(api: str, kind: str, name: str, spec: dict[str, Any], created: str | None = None) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "prod", **({"creationTimestamp": created} if created else {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


GATE = {"gatewayClassName": "c", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]}
PLACED = [
    thing(f"{GATEWAY_API}/v1", "Gateway", "gate", GATE),
    thing(f"{NETWORKING}/v0alpha0", "XBackend", "one", {"mcp": {"serviceName": "one", "port": 80}}),
    thing(f"{NETWORKING}/v0alpha0", "XBackend", "two", {"mcp": {"serviceName": "two", "port": 80}}),
]


def policy(name: str, targets: list[tuple[str, str, str | None]], tool: str, asks: bool, age: int) -> dict[str, Any]:
    refs = [
        {
            "group": GATEWAY_API if kind == "Gateway" else NETWORKING,
            "kind": kind,
            "name": target,
            **({"sectionName": section} if section else {}),
        }
        for kind, target, section in targets
    ]
    spec: dict[str, Any] = {"targetRefs": refs, "rules": [{"name": "r", "authorization": {"type": tool}}]}
    if asks:
        spec["action"] = "ExternalAuth"
    created = f"2026-01-0{age}T00:00:00Z" if age else None
    return thing(f"{NETWORKING}/v1alpha1", "XAccessPolicy", name, spec, created)


POLICIES = st.builds(
    policy,
    st.sampled_from("abcdefghij"),
    st.lists(st.sampled_from(TARGETS), min_size=1, max_size=3, unique=True),
    st.sampled_from(["Inline", "Nonsense"]),
    st.booleans(),
    st.integers(0, 3),
)
STEPS = st.lists(
    st.tuples(st.lists(POLICIES, max_size=3), st.lists(st.sampled_from("abcdefghij"), max_size=2)), max_size=6
)


@given(first=st.lists(POLICIES, max_size=12), steps=STEPS)
@settings(max_examples=examples(200), deadline=None)
def test_a_model_that_follows_is_the_one_of_its_snapshot(first: list[Any], steps: list[Any]) -> None:
    snapshot = Snapshot.of(load_objects([*PLACED, *first]))
    look(snapshot)
    for put, drop in steps:
        dropped = [resource for resource in snapshot if resource.kind == "XAccessPolicy" and resource.name in drop]
        after = snapshot.with_changes(load_objects(put), dropped)
        changes = list(after.changes(snapshot))
        gone = [old for old, _ in changes if old is not None]
        come = [new for _, new in changes if new is not None]
        follow(snapshot, after, gone, come)
        assert look(after) == look(Snapshot.of(list(after)))
        snapshot = after


def look(snapshot: Snapshot) -> list[Any]:
    """Everything that a model and its index say."""
    followed = model(snapshot)
    index = attachments(snapshot, ACCESS_POLICIES, admitted=False)
    out: list[Any] = [
        [(policy.reference, id(policy.resource), policy.closed) for policy in followed.policies_at(*where)]
        for where in PLACES
    ]
    out += [
        [list(map(id, index.at(place))), list(map(id, index.on(place.whole)))] for where in PLACES for place in where
    ]
    out += [(id(resource), limits(snapshot, resource)) for resource in followed.resources]
    return [*out, index.places]


def limits(snapshot: Snapshot, policy: Resource) -> list[Any]:
    return [(excess.place, excess.limit, list(map(id, excess.holders))) for excess in exceeded_limits(snapshot, policy)]
