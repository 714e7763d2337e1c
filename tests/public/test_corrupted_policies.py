"""A policy that is broken in one field never opens what it closed, and changes nothing outside its scope, on any plane
(docs/semantics.md#invalid-objects-fail-closed)."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference.tool import invalid
from tests.worlds.network_clusters import PORTS, PROTOCOLS, clusters, endpoints
from tests.worlds.network_snapshots import document as network_document
from tests.worlds.network_snapshots import snapshot as network_snapshot
from tests.worlds.tool_worlds import World, seeds
from tests.worlds.tool_worlds import snapshot as tool_snapshot
from tierwall.resources.admission.admit import admit
from tierwall.tool.question import ToolQuestion, ask

Object = dict[str, Any]
JUNK: list[Any] = [None, [], {}, "", "x y", 5, -1, True, [None], ["x"], [{}], {"x": 1}, 1e300]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every field."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def corrupted(policy: Object, chance: random.Random) -> Object:
    """Return the policy with one field of its spec replaced, removed or added."""
    broken = copy.deepcopy(policy)
    *parents, last = ("spec", *chance.choice(list(paths(policy["spec"]))))
    holder: Any = broken
    for key in parents:
        holder = holder[key]
    match chance.randrange(4):
        case 0 if isinstance(holder, dict) and len(parents) > 0:
            del holder[last]
        case 1 if isinstance(holder, dict):
            holder[f"{last}x"] = holder.pop(last)
        case _:
            holder[last] = copy.deepcopy(chance.choice(JUNK))
    return broken


@settings(max_examples=examples(120), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(seeds)
def test_a_corrupted_tool_policy_opens_nothing(seed: int) -> None:
    world, chance = World(seed), random.Random(seed)
    valid = [policy for policy in world.policies if not invalid(policy)]
    if not valid:
        return
    policy = chance.choice(valid)
    broken = corrupted(policy, chance)
    if not any(problem.refuses for problem in admit(broken)):
        return
    others = [value for value in world.objects if value is not policy]
    before, after = tool_snapshot([*others, policy]), tool_snapshot([*others, broken])
    home = policy["metadata"]["namespace"]
    for _ in range(12):
        question = world.question()
        asked = ToolQuestion.from_dict(question)
        then, now = (ask(loaded, asked).to_dict() for loaded in (before, after))
        if then["verdict"] == "Deny":
            assert now["verdict"] == "Deny", (policy, broken, question)
        if home not in (question["gateway"].split("/")[0], question["backend"].split("/")[-2]):
            assert now == then


@settings(max_examples=examples(120), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(clusters(), st.integers(0, 2**32), st.data())
def test_a_corrupted_network_policy_opens_nothing(objects: list[Object], seed: int, data: st.DataObject) -> None:
    chance = random.Random(seed)
    valid = [
        value
        for value in objects
        if value["kind"] == "NetworkPolicy" and not any(problem.refuses for problem in admit(value))
    ]
    if not valid:
        return
    policy = chance.choice(valid)
    broken = corrupted(policy, chance)
    if not any(problem.refuses for problem in admit(broken)):
        return
    before = network_snapshot(objects)
    after = network_snapshot([broken if value is policy else value for value in objects])
    for _ in range(8):
        ends = [data.draw(st.sampled_from(endpoints(objects))) for _ in range(2)]
        protocol, port = data.draw(st.sampled_from(PROTOCOLS)), data.draw(st.sampled_from(PORTS))
        question = {"from": ends[0], "to": ends[1], "protocol": protocol, "port": port}
        then, now = network_document(before, question), network_document(after, question)
        for direction in ("egress", "ingress"):
            if then[direction]["verdict"] == "Deny":
                assert now[direction]["verdict"] == "Deny", (policy, broken, question)
