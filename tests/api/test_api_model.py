"""Random chains, policies, requests and objects: the shipped decision against the model, errors included."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference.api import FIELDS, Member, Policy, decide, evaluate, is_open, outcome
from tests.worlds.api_fakes import configuration, document, policy
from tierwall.resources.snapshot import Snapshot

KNOWN = (
    'request.verb == "create"',
    'request.verb in ["create", "get"]',
    'request.userInfo.username == "alice"',
    '"dev" in request.userInfo.groups',
    'request.resource == "pods"',
    'request.namespace == "ns"',
    'request.userInfo.username.startsWith("a")',
    "true",
    "false",
    'request.nope == "x"',
    "has(request.userInfo.nope.more)",
    'request.userInfo.extra["x"] == []',
    "1 / 0 == 1",
    "request.verb",
    "7",
    'request.verb == 1 || request.apiGroup == "apps"',
)
UNKNOWN = (
    "object.a == 1",
    "object.a in [1, 2]",
    "object.b == 1",
    "object.c == 1",
    "[1, 3].exists(x, object.c == x)",
    "[1, 2].all(x, object.c != x)",
    "object.flag",
    'request.name == "n"',
)


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """A policy's expression; every field of the object is looked at only once, so no two parts hang together.

    Only tests whose possible outcomes are plain to see are used, since how far a simplifier sees is left open.
    """
    fresh = {"a", "b", "c", "flag", "name"}

    def grow(depth: int) -> str:
        if depth == 0 or draw(st.integers(0, 3)) == 0:
            left = [atom for atom in UNKNOWN if any(word in atom for word in fresh) and _field(atom) in fresh]
            atom = draw(st.sampled_from((*KNOWN, *left) if len(fresh) > 2 else KNOWN))
            if atom in UNKNOWN:
                fresh.discard(_field(atom))
            return atom
        match draw(st.integers(0, 5)):
            case 0 | 1:
                return f"({grow(depth - 1)}) && ({grow(depth - 1)})"
            case 2 | 3:
                return f"({grow(depth - 1)}) || ({grow(depth - 1)})"
            case 4:
                return f"!({grow(depth - 1)})"
            case _:
                return f"({grow(depth - 1)}) ? ({grow(depth - 1)}) : ({grow(depth - 1)})"

    return grow(draw(st.integers(0, 3)))


def _field(atom: str) -> str:
    return "name" if "request.name" in atom else next(field for field in FIELDS if f"object.{field}" in atom)


AUTHORIZERS = st.lists(
    st.one_of(
        st.builds(
            Member,
            st.just("CEL"),
            st.sampled_from(("one", "two", "three")),
            st.sampled_from(("Deny", "NoOpinion")),
        ),
        st.sampled_from((Member("AlwaysAllow", "yes"), Member("AlwaysDeny", "silent"))),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda authorizer: authorizer.name,
)
POLICIES = st.lists(
    st.builds(
        Policy,
        st.sampled_from(("Allow", "Allow", "Deny", "NoOpinion")),
        expressions(),
        st.sampled_from(("one", "one", "two", "three", "elsewhere")),
        st.sampled_from(("", "", "ns", "other")),
    ),
    max_size=6,
)
QUESTIONS = st.fixed_dictionaries(
    {
        "user": st.sampled_from(("alice", "bob")),
        "verb": st.sampled_from(("create", "create", "update", "get", "list")),
        "resource": st.sampled_from(("pods", "services", "*")),
        "version": st.just("v1"),
        "groups": st.sampled_from(([], ["dev"], ["ops", "dev"])),
    },
    optional={
        "namespace": st.sampled_from(("ns", "other")),
        "name": st.sampled_from(("n", "m", "")),
        "conditions": st.sampled_from(("HumanReadable", "Optimized", "")),
    },
)
OBJECTS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            **{
                name: st.sampled_from([value for value in values if value is not None])
                for name, values in FIELDS.items()
            },
            "metadata": st.sampled_from(({"name": "n"}, {"name": "m"}, {"name": 7}, {}, "text")),
        },
    ),
)
DATA = st.fixed_dictionaries({"object": OBJECTS}, optional={"operation": st.sampled_from(("CREATE", "UPDATE"))})


def snapshot(chain: list[Member], policies: list[Policy]) -> Snapshot:
    return Snapshot.of(
        (
            configuration(
                *(
                    {"type": authorizer.type, "name": authorizer.name, "failureMode": authorizer.failure_mode}
                    for authorizer in chain
                )
            ),
            *(
                policy(f"p{number}", drawn.effect, drawn.expression, drawn.authorizer, drawn.namespace)
                for number, drawn in enumerate(policies)
            ),
        )
    )


@settings(max_examples=examples(700))
@given(AUTHORIZERS, POLICIES, QUESTIONS, st.one_of(st.none(), DATA))
def test_every_answer_is_what_the_settled_semantics_say(
    chain: list[Member], policies: list[Policy], question: dict[str, Any], data: dict[str, Any] | None
) -> None:
    assume(not any(is_open(drawn, question) for drawn in policies))
    want = decide(chain, policies, question, data)
    got = document(snapshot(chain, policies), {**question, **(data or {})})
    assert got["verdict"] == want.verdict
    assert got["called"] == want.called
    assert want.final is None or got["final"] == want.final
    if want.verdict == "Conditional":
        assert [opinion["authorizer"] for opinion in got["conditionSets"]] == [name for name, _ in want.entries]
        for opinion, (_, answer) in zip(got["conditionSets"], want.entries, strict=True):
            if answer.verdict != "Conditional":
                assert opinion["allowed" if answer.verdict == "Allow" else "denied"] is True
                continue
            effects = opinion["effects"]
            assert effects.get("Deny", 0) == answer.deny
            assert answer.no_opinion is None or effects.get("NoOpinion", 0) == answer.no_opinion
            assert effects.get("Allow", 0) == answer.allow if answer.allow is not None else effects["Allow"] >= 1


@settings(max_examples=examples(500))
@given(AUTHORIZERS, POLICIES, QUESTIONS, DATA)
def test_r008_two_phases_come_to_what_one_phase_comes_to(
    chain: list[Member], policies: list[Policy], question: dict[str, Any], data: dict[str, Any]
) -> None:
    question["conditions"] = "HumanReadable"
    got = document(snapshot(chain, policies), {**question, **data})
    said = [evaluate(authorizer, policies, question, data) for authorizer in chain]
    decider = next((answer for answer in said if answer[0] != "NoOpinion"), None)
    assert got["final"] == (decider[0] if decider is not None else "NoOpinion")
    if decider is None:
        fails_open = [
            authorizer.name
            for authorizer in chain
            if any(
                policy.authorizer == authorizer.name
                and policy.effect == "Deny"
                and outcome(policy, question, data) == "E"
                for policy in policies
            )
        ]
        assert got.get("error", False) or not fails_open
    if not any(outcome(policy, question, data) == "E" for policy in policies):
        assert "error" not in got
