"""Warnings tell a user nothing about objects that they may not read, whatever the cluster and the change are."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples, seeds
from tests.serve.test_controller_warnings import MASTER, judged
from tests.worlds import gateway_clusters, tool_worlds
from tests.worlds.network_clusters import clusters
from tierwall.serve.authorizer.bridge import UserInfo

Object = dict[str, Any]
# May write policies, and read nothing.
WRITER = UserInfo("dora", groups=["developers"])
# Every name in the clusters gets this in front, so that no word of a sentence looks like one.
SECRET = "zq"
_SELECTORS = ("labels", "matchLabels", "matchExpressions")


def renamed(value: Any, kinds: tuple[str, ...] = ()) -> Any:
    """Return an object with other names of objects; labels stay, because selectors are about them."""
    if isinstance(value, dict):
        out = {key: part if key in _SELECTORS else renamed(part) for key, part in value.items()}
        for key in ("name", "namespace"):
            if isinstance(metadata := out.get("metadata"), dict) and isinstance(metadata.get(key), str):
                out["metadata"] = {**out["metadata"], key: SECRET + metadata[key]}
        return out
    return [renamed(part) for part in value] if isinstance(value, list) else value


@settings(max_examples=examples(150), deadline=None)
@given(objects=clusters(8), number=st.integers(0, 100), is_new=st.booleans())
def test_no_name_of_another_object_is_told(objects: list[Object], number: int, is_new: bool) -> None:
    objects = [renamed(value) for value in objects]
    policies = [value for value in objects if value["kind"].endswith("Policy")]
    if not policies:
        return
    changed = policies[number % len(policies)]
    others = [value for value in objects if value is not changed]
    old = None if is_new else {**changed, "spec": {**changed["spec"], "ingress": [], "egress": []}}
    told = judged(others, changed, old, WRITER).warnings
    known_names = set(re.findall(rf"{SECRET}[\w.-]*", repr(changed)))
    leaked = {name for line in told for name in re.findall(rf"{SECRET}[\w.-]*", line)} - known_names
    assert not leaked, told
    # The same change tells an administrator at least as much.
    assert len(judged(others, changed, old, MASTER).warnings) >= len(told)


def tool_cluster(seed: int) -> list[Object]:
    world = tool_worlds.World(seed)
    return [*world.places, *world.policies]


def gateway_cluster(seed: int) -> list[Object]:
    return gateway_clusters.cluster(random.Random(seed))


@pytest.mark.parametrize("cluster", [tool_cluster, gateway_cluster])
def test_no_other_policy_on_a_target_is_named(cluster: Callable[[int], list[Object]]) -> None:
    count = 0
    for seed in seeds(40):
        objects = cluster(seed)
        policies = [value for value in objects if value["kind"].endswith("Policy")]
        for changed in policies[:6]:
            others = [value for value in objects if value is not changed]
            known_names = (
                f"{changed['kind']}/{changed['metadata'].get('namespace', 'default')}/{changed['metadata']['name']}"
            )
            told = judged(others, changed, None, WRITER).warnings
            named = {name for line in told for name in re.findall(r"\w*Policy/[\w./-]*\w", line)}
            assert named <= {known_names}, told
            count += len(told)
    assert count > 50
