"""Two phases come to the same final answer as one phase, for a wide range of CEL.

docs/semantics.md#two-phases-decide-as-one.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference.api import Member, Policy, evaluate
from tests.worlds.api_fakes import configuration, document, policy
from tierwall.resources.snapshot import Snapshot

STRINGS = st.sampled_from((
    '"a"', '"n"', '""', "request.verb", "request.name", "request.userInfo.username", "request.namespace", "operation",
    "object.s", "oldObject.s", "object.metadata.name", "object.labels.x", 'object.labels["y"]', "options.s",
    "request.userInfo.uid", 'object.?labels[?"x"].orValue("none")', "namespaceObject.metadata.labels.env",
))  # fmt: skip
NUMBERS = st.sampled_from((
    "1", "2", "-1", "object.n", "oldObject.n", "size(object.list)", "size(request.userInfo.groups)", "object.list[0]",
    "size(request.name)", "object.n + 1", "9223372036854775807", "object.n / 0",
))  # fmt: skip
LISTS = st.sampled_from((
    "request.userInfo.groups", "object.list", "object.names", "[1, 2, 3]", '["a", "n"]', "[]", "object.labels",
    "[object.n, 1]", "[request.verb, object.s]", "object.items",
))  # fmt: skip


def booleans(depth: int) -> st.SearchStrategy[str]:
    """Expressions that are bools if nothing goes wrong."""
    atoms = st.one_of(
        st.builds(lambda a, b, o: f"{a} {o} {b}", STRINGS, STRINGS, st.sampled_from(("==", "!=", "<", ">="))),
        st.builds(lambda a, b, o: f"{a} {o} {b}", NUMBERS, NUMBERS, st.sampled_from(("==", "!=", "<", ">="))),
        st.builds(lambda a, b: f"{a} == {b}", STRINGS, NUMBERS),
        st.builds(lambda a, b: f"{a} in {b}", st.one_of(STRINGS, NUMBERS), LISTS),
        st.builds(
            lambda a, b, f: f"{a}.{f}({b})", STRINGS, STRINGS, st.sampled_from(("startsWith", "contains", "endsWith"))
        ),
        st.sampled_from(
            (
                "true",
                "false",
                "object.flag",
                "has(object.s)",
                "has(object.labels.x)",
                "has(object.labels)",
                "object == null",
                "has(request.name)",
                "request.nope",
                "oldObject == object",
                'object.s.matches("^a")',
                "object.a.b.c",
                "has(oldObject.metadata.name)",
                "1",
                '"text"',
                'request.userInfo.groups == ["a"]',
                "request.name == null",
                "type(object) == map",
                "dyn(object.n) == 1.0",
                "object.list == [1, 2]",
                "request.userInfo.extra == {}",
                "object in [request, null]",
                "[request.name] == [object.s]",
                '{"a": request.name, "b": object.s}.a == "n"',
            )
        ),
    )
    if depth == 0:
        return atoms
    deeper = booleans(depth - 1)
    return st.one_of(
        atoms,
        st.builds(lambda a, b: f"({a}) && ({b})", deeper, deeper),
        st.builds(lambda a, b: f"({a}) || ({b})", deeper, deeper),
        st.builds(lambda a: f"!({a})", deeper),
        st.builds(lambda a, b, c: f"({a}) ? ({b}) : ({c})", deeper, deeper, deeper),
        st.builds(
            lambda items, macro, test: f"{items}.{macro}(x, {test})",
            LISTS,
            st.sampled_from(("all", "exists", "exists_one")),
            st.one_of(
                st.sampled_from(("x == object.n", "x == request.name", "x != 1", "x.k == 1", "x == object.s")), deeper
            ),
        ),
        st.builds(lambda items, test, n: f"{items}.filter(x, {test}).size() > {n}", LISTS, deeper, st.integers(0, 2)),
    )


POLICIES = st.lists(
    st.builds(
        Policy,
        st.sampled_from(("Allow", "Allow", "Deny", "NoOpinion")),
        booleans(3),
        st.sampled_from(("one", "two")),
        st.just(""),
    ),
    min_size=1,
    max_size=4,
)
OBJECTS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "s": st.sampled_from(("a", "n", "", 7, None)),
            "n": st.sampled_from((1, 2, "1", 1.0, True)),
            "flag": st.sampled_from((True, False, "true", None)),
            "list": st.sampled_from(([1, 2], [], [1, "a"], "text")),
            "names": st.sampled_from((["a"], ["n", "m"])),
            "items": st.sampled_from(([{"k": 1}, {}], [{"k": 2}], {})),
            "labels": st.sampled_from(({"x": "a"}, {"y": "n"}, {}, None)),
            "metadata": st.sampled_from(({"name": "n"}, {"name": "a", "labels": {"env": "a"}}, {}, 7)),
            "a": st.sampled_from(({"b": {"c": True}}, {"b": None})),
        },
    ),
)
DATA = st.fixed_dictionaries(
    {"object": OBJECTS},
    optional={
        "oldObject": OBJECTS,
        "operation": st.sampled_from(("CREATE", "UPDATE", "a")),
        "options": OBJECTS,
        "namespaceObject": st.sampled_from(({"metadata": {"labels": {"env": "a"}}}, None)),
    },
)
QUESTIONS = st.fixed_dictionaries(
    {"user": st.sampled_from(("a", "n")), "verb": st.sampled_from(("create", "create", "update", "list"))},
    optional={
        "groups": st.sampled_from(([], ["a"], ["n", "m"])),
        "name": st.sampled_from(("n", "a")),
        "namespace": st.just("a"),
    },
)
MODES = st.sampled_from(("Deny", "NoOpinion"))


@settings(max_examples=examples(600))
@given(POLICIES, QUESTIONS, DATA, MODES, MODES)
def test_r008_two_phases_come_to_what_one_phase_comes_to_over_all_of_cel(
    policies: list[Policy], question: dict[str, Any], data: dict[str, Any], first_mode: str, second_mode: str
) -> None:
    chain = [Member("CEL", "one", first_mode), Member("CEL", "two", second_mode)]
    made = [
        policy(f"p{n}", written.effect, written.expression, written.authorizer) for n, written in enumerate(policies)
    ]
    setup = configuration(
        *({"type": "CEL", "name": authorizer.name, "failureMode": authorizer.failure_mode} for authorizer in chain)
    )
    got = document(Snapshot.of([setup, *made]), {**question, **data})
    said = [evaluate(authorizer, policies, question, data)[0] for authorizer in chain]
    final = next((verdict for verdict in said if verdict != "NoOpinion"), "NoOpinion")
    assert got["final"] == final
