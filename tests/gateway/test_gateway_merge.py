"""The merge that ships equals the reference, and the properties that hold for every cluster."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference import gateway as reference
from tests.worlds.gateway_clusters import FACTS, cluster, policy, question
from tierwall.attach.index import GATEWAY_POLICIES, attachments
from tierwall.core.answer import DEFAULT, Answer, Decider, Reason, Step
from tierwall.gateway.decide import merge
from tierwall.gateway.detail import GatewayDetail
from tierwall.gateway.model.conditional import Facts
from tierwall.gateway.model.places import ways
from tierwall.gateway.model.profile import PHASES, PROFILES
from tierwall.gateway.question import GatewayQuestion, ask
from tierwall.gateway.standing import standings
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

SEEDS = st.integers(0, 2**48)


def got(objects: list[dict[str, Any]], asked: dict[str, Any], profile: str) -> dict[str, Any]:
    return put(Snapshot.of(load_objects(objects)), asked, profile).to_dict()


def put(snapshot: Snapshot, asked: dict[str, Any], profile: str) -> Answer:
    return ask(snapshot, GatewayQuestion.from_dict(asked | {"profile": profile}))


def is_abstention(step: Step) -> bool:
    """Whether a step is about a list that selects nothing, which the reference leaves out."""
    return step.reason is Reason.NO_ENTRY_SELECTED


@pytest.mark.parametrize("profile", PROFILES)
@given(seed=SEEDS)
@settings(max_examples=examples(150))
def test_the_merge_equals_the_reference(profile: str, seed: int) -> None:
    rng = Random(seed)
    objects = cluster(rng)
    snapshot = Snapshot.of(load_objects(objects))
    for _ in range(6):
        asked = question(rng)
        answer = put(snapshot, asked, profile)
        document = answer.to_dict()
        wanted = reference.merge(objects, asked, profile)
        settings_ = {field: merged.setting for field, merged in wanted.items() if merged.setting is not None}
        assert document["effective"] == settings_
        assert sorted(document["conflicts"]) == sorted(field for field, merged in wanted.items() if merged.conflict)


@pytest.mark.parametrize("profile", PROFILES)
@given(seed=SEEDS)
@settings(max_examples=examples(100))
def test_the_walk_equals_the_reference(profile: str, seed: int) -> None:
    rng = Random(seed)
    objects = cluster(rng)
    snapshot = Snapshot.of(load_objects(objects))
    for _ in range(6):
        asked = question(rng)
        answer = put(snapshot, asked, profile)
        detail: GatewayDetail = answer.detail
        abstentions = [step for field in detail.fields for step in field.over if is_abstention(step)]
        walked: dict[str, list[tuple[str, str, str]]] = {}
        for step in answer.steps:
            if not any(step is abstention for abstention in abstentions):
                walked.setdefault(str(step.rule), []).append((step.tier, str(step.policy), str(step.reason)))
        wanted = reference.merge(objects, asked, profile)
        assert walked == {field: merged.steps for field, merged in wanted.items()}


@given(seed=SEEDS)
@settings(max_examples=examples(60))
def test_who_decided_is_who_is_in_force_each_once(seed: int) -> None:
    rng = Random(seed)
    objects, asked = cluster(rng), question(rng)
    snapshot = Snapshot.of(load_objects(objects))
    for profile in PROFILES:
        answer = put(snapshot, asked, profile)
        detail: GatewayDetail = answer.detail
        sources = [source for setting in detail.effective.values() for source in setting.sources]
        assert answer.decided_by == (tuple(map(Decider, dict.fromkeys(sources))) or (DEFAULT,))
        assert all(str(source) in answer.sentence for source in sources)
        steps = [step for field in detail.fields for step in (*(one.step for one in field.set_by), *field.over)]
        assert sorted(map(id, steps)) == sorted(map(id, answer.steps))


@given(seed=SEEDS)
@settings(max_examples=examples(100))
def test_the_merge_does_not_depend_on_the_order_of_files(seed: int) -> None:
    rng = Random(seed)
    objects, asked = cluster(rng), question(rng)
    shuffled = rng.sample(objects, len(objects))
    for profile in PROFILES:
        assert got(objects, asked, profile) == got(shuffled, asked, profile)


@given(seed=SEEDS)
@settings(max_examples=examples(100))
def test_a_policy_that_does_not_attach_changes_nothing(seed: int) -> None:
    rng = Random(seed)
    objects, asked = cluster(rng), question(rng)
    stranger = policy(rng, "stranger")
    stranger["metadata"]["namespace"] = "elsewhere"
    lost = policy(rng, "lost")
    for entry in lost["spec"].get("targetRefs", ()):
        entry["name"] = "no-such-object"
    for entry in lost["spec"].get("targetSelectors", ()):
        entry["matchLabels"] = {"team": "none"}
    for profile in PROFILES:
        assert got(objects, asked, profile) == got([*objects, stranger, lost], asked, profile)


@given(seed=SEEDS)
@settings(max_examples=examples(100))
def test_a_value_is_always_one_that_its_source_wrote(seed: int) -> None:
    rng = Random(seed)
    objects, asked = cluster(rng), question(rng)
    by_name = {
        f"{one['kind']}/{one['metadata']['namespace']}/{one['metadata']['name']}": one["spec"] for one in objects
    }
    for profile in PROFILES:
        for entry in got(objects, asked, profile)["effective"].values():
            several = isinstance(entry["from"], list)
            pairs = zip(entry["from"], entry["value"], strict=True) if several else [(entry["from"], entry["value"])]
            for source, value in pairs:
                assert value in list(parts(by_name[source.partition("#")[0]]))


@given(seed=SEEDS)
@settings(max_examples=examples(60))
def test_a_setting_takes_effect_somewhere_exactly_if_its_standing_says_so(seed: int) -> None:
    rng = Random(seed)
    objects = cluster(rng)
    if rng.random() < 0.5:
        objects = [one for one in objects if "conditional" not in str(one)]
    snapshot = Snapshot.of(load_objects(objects))
    in_force = set()
    for phase in PHASES:
        for facts in FACTS:
            this = merge(snapshot, "docs", phase, Facts(facts))
            for asked in ways(snapshot):
                for path, merged in this.at(asked).items():
                    in_force |= {(str(candidate.source), path) for candidate in merged.taken}
    for policy_ in attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies:
        for path, fate in standings(snapshot).of(policy_).items():
            found = (str(policy_.reference), path) in in_force
            assert fate.effective or not found
            # With conditions, an outcome that these few requests do not show may still be possible.
            assert found or not fate.effective or "conditional" in str(objects)


def parts(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(inner)
