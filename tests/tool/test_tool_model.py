"""The shipped decision equals the reference on random clusters of all generations."""

from __future__ import annotations

import random

from hypothesis import example, given, settings

from tests.randomness import examples
from tests.reference.tool import Object, decide
from tests.worlds.tool_worlds import World, seeds, snapshot
from tierwall.core.expectation import mismatches
from tierwall.tool.question import EXPECTATIONS, ToolQuestion, ask


@given(seeds)
@example(0)
@settings(max_examples=examples(400))
def test_a_decision_is_the_one_that_the_texts_demand(seed: int) -> None:
    world = World(seed)
    loaded = snapshot(world.objects)
    for _ in range(10):
        question = world.question()
        want = decide(world.objects, question)
        answer = ask(loaded, ToolQuestion.from_dict(question))
        got = answer.to_dict()
        assert {key: got[key] for key in want} == want
        assert mismatches(want, answer, EXPECTATIONS) == []


def document(objects: list[Object], question: Object) -> Object:
    return ask(snapshot(objects), ToolQuestion.from_dict(question)).to_dict()


@given(seeds)
@settings(max_examples=examples(100))
def test_the_order_of_files_plays_no_part(seed: int) -> None:
    world = World(seed)
    shuffled = world.objects
    random.Random(seed).shuffle(shuffled)
    for _ in range(3):
        question = world.question()
        assert document(shuffled, question) == document(world.objects, question)


@given(seeds)
@settings(max_examples=examples(100))
def test_a_policy_that_names_no_existing_target_changes_nothing(seed: int) -> None:
    world = World(seed)
    question, elsewhere = world.question(), world.policy("nowhere", "p")
    assert document([*world.objects, elsewhere], question) == document(world.objects, question)


@given(seeds)
@settings(max_examples=examples(100))
def test_a_younger_policy_never_opens_what_was_closed(seed: int) -> None:
    """An older one may: it can push another over the limit of its target."""
    world = World(seed)
    question, more = world.question(), world.policy("a", "zz")
    more["metadata"].pop("creationTimestamp", None)
    before, after = (document(objects, question) for objects in (world.objects, [*world.objects, more]))
    assert before["verdict"] == "Allow" or after["verdict"] == "Deny"
