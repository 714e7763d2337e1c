"""The merge equals the reference, and has properties that hold for every cluster."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference import gateway as reference
from tests.worlds import gateway_objects as build
from tests.worlds.gateway_clusters import LATE, cluster, policy, question
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.core.answer import DEFAULT, Answer, Decider, Reason, Step
from tierwall.core.reference import Reference
from tierwall.gateway.decide import MergedField, merger
from tierwall.gateway.detail import GatewayDetail
from tierwall.gateway.effects import merge_status, policy_effects, policy_status
from tierwall.gateway.model.conditional import ANY_REQUEST, RequestFacts
from tierwall.gateway.model.fields import PHASES, PROFILES, Profile, unread_fields
from tierwall.gateway.model.places import reachable_places
from tierwall.gateway.question import GatewayQuestion, ask
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
def test_decided_by_lists_each_policy_in_force_once(seed: int) -> None:
    rng = Random(seed)
    objects, asked = cluster(rng), question(rng)
    snapshot = Snapshot.of(load_objects(objects))
    for profile in PROFILES:
        answer = put(snapshot, asked, profile)
        detail: GatewayDetail = answer.detail
        sources = [source for setting in detail.effective.values() for source in setting.sources]
        assert answer.decided_by == (tuple(map(Decider, dict.fromkeys(sources))) or (DEFAULT,))
        assert all(str(source) in answer.sentence for source in sources)
        steps = [step for field in detail.fields for step in (*(setter.step for setter in field.set_by), *field.over)]
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
def test_every_value_was_written_by_its_source(seed: int) -> None:
    rng = Random(seed)
    objects, asked = cluster(rng), question(rng)
    by_name = {
        f"{manifest['kind']}/{manifest['metadata']['namespace']}/{manifest['metadata']['name']}": manifest["spec"]
        for manifest in objects
    }
    for profile in PROFILES:
        for entry in got(objects, asked, profile)["effective"].values():
            several = isinstance(entry["from"], list)
            pairs = zip(entry["from"], entry["value"], strict=True) if several else [(entry["from"], entry["value"])]
            for source, value in pairs:
                assert value in list(parts(by_name[source.partition("#")[0]]))


@pytest.mark.parametrize("profile", PROFILES)
@given(seed=SEEDS)
@settings(max_examples=examples(80))
def test_the_merge_for_any_request_is_the_union_over_all_outcomes_of_the_conditions(
    profile: Profile, seed: int
) -> None:
    rng = Random(seed)
    objects, conditions = independent(crowded(rng) if rng.random() < 0.9 else cluster(rng))
    snapshot = Snapshot.of(load_objects(objects))
    every = product((False, True), repeat=len(conditions))
    outcomes = [RequestFacts(dict(zip(conditions, outcome, strict=True))) for outcome in every]
    for phase in PHASES:
        possible = merger(snapshot, profile, phase, ANY_REQUEST)
        merges = [merger(snapshot, profile, phase, facts) for facts in outcomes]
        for asked in reachable_places(snapshot):
            in_force: dict[str, set[Reference]] = {}
            for merging in merges:
                for path, merged in merging.merge_at(asked).items():
                    in_force.setdefault(path, set()).update(candidate.source for candidate in merged.in_force)
            answered = possible.merge_at(asked)
            assert answered.keys() == in_force.keys()
            for path, merged in answered.items():
                said = {candidate.source for candidate in merged.in_force}
                assert said >= in_force[path]
                if not twice(merged):
                    assert said == in_force[path]
                beaten = {lost.candidate.source for lost in merged.losers()}
                assert beaten == {candidate.source for tier in merged.stack for candidate in tier.policies} - said
                assert {lost.winner.source for lost in merged.losers() if lost.reason is not Reason.LOSES_TIE} <= said


@pytest.mark.parametrize("profile", PROFILES)
@given(seed=SEEDS)
@settings(max_examples=examples(60))
def test_a_setting_takes_effect_exactly_where_it_can_be_in_force(profile: Profile, seed: int) -> None:
    snapshot = Snapshot.of(load_objects(broken(Random(seed))))
    in_force = {
        (candidate.source, path)
        for phase in PHASES
        for asked in reachable_places(snapshot)
        for path, merged in merger(snapshot, profile, phase, ANY_REQUEST).merge_at(asked).items()
        for candidate in merged.in_force
    }
    accepted = attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies
    for policy_ in accepted:
        effects = policy_effects(snapshot, profile).effects_of(policy_)
        for path, effect in effects.items():
            assert effect.in_force == ((policy_.reference, path) in in_force)
            assert effect.in_force or effect.beaten_by
        # The status names exactly the settings that are in force nowhere, although some profile looks for them there.
        looked_for = effects.keys() | policy_effects(snapshot, "docs").effects_of(policy_).keys()
        looked_for |= {written.field.path for written in unread_fields(policy_)}
        status = merge_status(snapshot, policy_, profile)
        assert status.overridden.keys() == {path for path in looked_for if (policy_.reference, path) not in in_force}
    for policy_ in attachments(snapshot, GATEWAY_POLICIES, admitted=False).policies:
        ancestors = policy_status(snapshot, policy_, profile).ancestors
        said = {each.status for ancestor in ancestors for each in ancestor.conditions if each.type == "Accepted"}
        assert not ancestors or said == {policy_ in accepted}
        assert policy_ in accepted or policy_.reference not in {source for source, _ in in_force}


def broken(rng: Random) -> list[dict[str, Any]]:
    """Draw a cluster in which some expressions do not parse, and admission refuses some policies."""
    objects = cluster(rng)
    for each in objects:
        traffic = each.get("spec", {}).get("traffic") if each["kind"] == "AgentgatewayPolicy" else None
        if isinstance(traffic, dict) and rng.random() < 0.3:
            traffic["delay"] = {"duration": rng.choice(("1s", "a_{{b}}"))}
        if isinstance(traffic, dict) and "authorization" in traffic and rng.random() < 0.5:
            traffic["authorization"]["policy"]["matchExpressions"] = ["a_{{b}}"]
        if each["kind"] == "AgentgatewayPolicy" and rng.random() < 0.1:
            each["spec"]["frontend"] = {"tcp": {"keepalive": {"retries": 0}}}
    return objects


def crowded(rng: Random) -> list[dict[str, Any]]:
    """Draw policies that set the same few fields along one path through a Gateway, with lists, ties and locks."""
    objects = [build.gateway(), build.route(rules=[{"name": "rule", "backendRefs": [{"name": "svc", "port": 80}]}])]
    limit = LATE["rateLimit"]
    for number in range(rng.randrange(3, 8)):
        target = rng.choice(("Gateway/gw", "Gateway/gw#web", "HTTPRoute/route", "HTTPRoute/route#rule"))
        entries = [{"condition": "true", "policy": limit(rng)} for _ in range(rng.randrange(1, 3))]
        entries += [{"policy": limit(rng)}] if rng.random() < 0.3 else []
        limits = {"conditional": entries} if rng.random() < 0.6 else limit(rng)
        traffic = {"rateLimit": limits, "buffer": LATE["buffer"](rng)}
        objects.append(build.policy(f"p{number}", target, override=rng.random() < 0.5, traffic=traffic))
    return objects


def independent(objects: list[dict[str, Any]], most: int = 4) -> tuple[list[dict[str, Any]], list[str]]:
    """Give each condition its own variable; return objects and variables. Lists beyond `most` become values."""
    conditions: list[str] = []
    for manifest in objects:
        traffic = manifest["spec"].get("traffic", {}) if manifest["kind"] == "AgentgatewayPolicy" else {}
        for name, value in traffic.items():
            entries = value["conditional"][-2:] if isinstance(value, dict) and "conditional" in value else []
            if entries and len(conditions) + len(entries) > most:
                traffic[name] = entries[0]["policy"]
            elif entries:
                value["conditional"] = entries
                for entry in entries:
                    if "condition" in entry:
                        conditions.append(f"known.c{len(conditions)}")
                        entry["condition"] = conditions[-1]
    return objects, conditions


def twice(merged: MergedField) -> bool:
    """Whether a list is at two levels. Its conditions then agree, while the merge treats them as independent."""
    listed = [
        candidate.source
        for tier in merged.stack
        for candidate in tier.policies
        if candidate.written.entries is not None
    ]
    return len(listed) != len(set(listed))


def parts(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(inner)
