"""Every difference is a question that both snapshots answer as it says, and what differs is among the differences."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples, seeds
from tests.worlds import gateway_clusters, tool_worlds
from tests.worlds.network_clusters import clusters
from tests.worlds.network_snapshots import snapshot as network_snapshot
from tierwall.analyze.diff import differences
from tierwall.analyze.difference import Difference, SettledVerdict
from tierwall.core.answer import Answer, Reason
from tierwall.core.diagnostics import InputError
from tierwall.core.verdict import Verdict
from tierwall.gateway.detail import Setting, equal_settings
from tierwall.gateway.model.fields import PHASES, PROFILES
from tierwall.gateway.question import GatewayQuestion, ask_everywhere
from tierwall.planes import plane
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.rules import service_account_id

Object = dict[str, Any]


def answer(snapshot: Snapshot, difference: Difference) -> Answer | None:
    """Ask the question of a difference; None where it cannot be asked."""
    module = plane(difference.plane)
    try:
        return module.ask(snapshot, module.QUESTION.from_dict(difference.question))
    except InputError:
        return None


def holds(snapshot: Snapshot, difference: Difference, side: SettledVerdict | Setting | None) -> None:
    answered = answer(snapshot, difference)
    if difference.plane == "gateway":
        setting = answered.detail.effective.get(difference.field) if answered is not None else None
        assert equal_settings(setting, side if isinstance(side, Setting) else None)
    elif side is None:
        assert answered is None
    else:
        assert isinstance(side, SettledVerdict)
        assert answered is not None
        assert (answered.verdict, answered.decided_by) == (side.verdict, side.decided_by)


@settings(max_examples=examples(150))
@given(clusters(most_policies=4), clusters(most_policies=4))
def test_the_question_of_a_changed_connection_can_be_asked_again(before: list[Object], after: list[Object]) -> None:
    old, new = network_snapshot(before), network_snapshot(after)
    for difference in differences(old, new, ["network"]):
        holds(old, difference, difference.before)
        holds(new, difference, difference.after)
        assert difference.before != difference.after


def is_conditional(difference: Difference) -> bool:
    return any(isinstance(side, SettledVerdict) and side.conditions for side in (difference.before, difference.after))


@settings(max_examples=examples(150))
@given(tool_worlds.seeds, st.integers(0, 7))
def test_the_question_of_a_changed_tool_request_can_be_asked_again(seed: int, gone: int) -> None:
    world = tool_worlds.World(seed)
    old = tool_worlds.snapshot(world.objects)
    kept = [policy for number, policy in enumerate(world.policies) if number != gone]
    new = tool_worlds.snapshot([*world.places, *kept])
    for difference in differences(old, new, ["tool"]):
        if not is_conditional(difference):
            asked = difference.question.get("externalAuth", {})
            holds(old, difference, difference.before)
            if all(reference in map(str, references(new)) for reference in asked):
                holds(new, difference, difference.after)


def references(snapshot: Snapshot) -> list[Any]:
    return [resource.reference for resource in snapshot]


@settings(max_examples=examples(300))
@given(tool_worlds.seeds, st.integers(0, 7))
def test_a_tool_request_that_is_decided_differently_is_on_a_way_and_of_a_caller_that_differ(
    seed: int, gone: int
) -> None:
    world = tool_worlds.World(seed)
    old = tool_worlds.snapshot(world.objects)
    kept = [policy for number, policy in enumerate(world.policies) if number != gone]
    new = tool_worlds.snapshot([*world.places, *kept])
    tool = plane("tool")
    for _ in range(5):
        question = {**world.question(), "externalAuth": {}}
        try:
            answers = [tool.ask(side, tool.QUESTION.from_dict(question)) for side in (old, new)]
        except InputError:
            continue
        if any(step.reason is Reason.NOT_READ_AS_MCP for answer in answers for step in answer.steps):
            continue  # what is not MCP is not compared
        if answers[0].verdict != answers[1].verdict:
            listed_differences = [difference.question for difference in differences(old, new, ["tool"])]
            backend = question["backend"]
            if backend.startswith("Service/"):
                continue  # no route leads to a Service here
            caller = question.get("caller")
            if isinstance(caller, dict):
                caller = service_account_id(*caller["serviceAccount"].split("/"))
            assert any(
                asked["gateway"] == question["gateway"]
                and asked["backend"] == backend.rpartition(".io/")[2].removeprefix("XBackend/")
                and asked.get("caller") in (caller, None)
                for asked in listed_differences
            ), question


@pytest.mark.parametrize("seed", seeds(12))
def test_settings_that_differ_are_those_that_places_have_before_and_after(seed: int) -> None:
    rng = Random(seed)
    objects = gateway_clusters.cluster(rng, 12)
    policies = [value for value in objects if value["kind"] == "AgentgatewayPolicy"]
    gone = rng.choice(policies)
    old = Snapshot.of(load_objects(objects))
    new = Snapshot.of(load_objects([value for value in objects if value is not gone]))
    listed_differences = list(differences(old, new, ["gateway"]))
    listed = set()
    for difference in listed_differences:
        question = dict(difference.question)
        profile, phase = question.pop("profile", PROFILES[0]), question.pop("phase", PHASES[0])
        depends = any("conditional" in str(side) for side in (difference.before, difference.after))
        if not depends:
            holds(old, difference, difference.before)
            holds(new, difference, difference.after)
        if profile == PROFILES[0]:
            listed.add((difference.words[1].partition(" (")[0], phase, difference.field))
    for phase in PHASES:
        asked = GatewayQuestion(phase=phase)
        for then, now in zip(ask_everywhere(old, asked), ask_everywhere(new, asked), strict=True):
            assert then.detail.place == now.detail.place
            fields = {
                field
                for field in {**then.detail.effective, **now.detail.effective}
                if not equal_settings(then.detail.effective.get(field), now.detail.effective.get(field))
            }
            shown = {field for place, at, field in listed if (place, at) == (then.detail.place, phase)}
            assert {field for field in fields if phase == PHASES[0] or field.startswith("traffic.")} <= shown


RULES = st.fixed_dictionaries(
    {
        "verbs": st.lists(st.sampled_from(("get", "list", "create", "*")), min_size=1, max_size=2, unique=True),
        "apiGroups": st.lists(st.sampled_from(("", "apps", "*")), min_size=1, max_size=2, unique=True),
        "resources": st.lists(st.sampled_from(("pods", "pods/exec", "*")), min_size=1, max_size=2, unique=True),
    },
    optional={"resourceNames": st.lists(st.sampled_from(("a", "b")), min_size=1, max_size=1)},
)
SUBJECTS = (
    {"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"},
    {"kind": "Group", "name": "dev", "apiGroup": "rbac.authorization.k8s.io"},
    {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"},
    {"kind": "ServiceAccount", "name": "bot", "namespace": "shop"},
)
EXPRESSIONS = (
    'request.verb == "create" && request.resource == "pods"',
    'request.userInfo.username == "alice" && request.verb != "get"',
    '"dev" in request.userInfo.groups && request.namespace == "shop"',
    'request.resource == "pods" && object.spec.x == 1',
)


@st.composite
def api_worlds(draw: st.DrawFn) -> list[Object]:
    objects: list[Object] = []
    for number in range(draw(st.integers(0, 2))):
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"r{number}"}
        objects.append(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": f"r{number}"},
                "rules": draw(st.lists(RULES, min_size=1, max_size=2)),
            }
        )
        namespace = draw(st.sampled_from(("", "shop")))
        objects.append(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
                "metadata": {"name": f"b{number}", **({"namespace": namespace} if namespace else {})},
                "roleRef": role,
                "subjects": [draw(st.sampled_from(SUBJECTS))],
            }
        )
    policies = [
        {
            "apiVersion": "tierwall.io/v1alpha1",
            "kind": "ClusterAuthorizationPolicy",
            "metadata": {"name": f"p{number}"},
            "spec": {
                "effect": draw(st.sampled_from(("Allow", "Deny"))),
                "expression": draw(st.sampled_from(EXPRESSIONS)),
            },
        }
        for number in range(draw(st.integers(0, 2)))
    ]
    return [*objects, *policies]


ACCOUNT = "system:serviceaccount:shop:bot"
ASKING = (
    {"user": "alice", "groups": ["system:authenticated"]},
    {"user": "any-other-user", "groups": ["dev", "system:authenticated"]},
    {"user": "any-other-user", "groups": ["system:authenticated"]},
    {
        "user": ACCOUNT,
        "groups": ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"],
    },
)


@settings(max_examples=examples(200))
@given(api_worlds(), api_worlds(), st.data())
def test_permissions_that_differ_are_those_that_answers_give(
    before: list[Object], after: list[Object], data: st.DataObject
) -> None:
    old, new = Snapshot.of(load_objects(before)), Snapshot.of(load_objects(after))
    listed_differences = list(differences(old, new, ["api"]))
    for difference in listed_differences:
        holds(old, difference, difference.before)
        holds(new, difference, difference.after)
    api = plane("api")
    question = {
        **data.draw(st.sampled_from(ASKING)),
        "verb": data.draw(st.sampled_from(("get", "list", "create", "watch"))),
        "group": data.draw(st.sampled_from(("", "apps", "batch"))),
        "resource": data.draw(st.sampled_from(("pods", "secrets"))),
        "namespace": data.draw(st.sampled_from(("", "shop", "other"))),
        "name": data.draw(st.sampled_from(("", "a", "c"))),
    }
    verdicts = [api.ask(side, api.QUESTION.from_dict(question)).verdict for side in (old, new)]
    allowed = [verdict is Verdict.ALLOW for verdict in verdicts]
    # A subject whose permission differs is named, or it is any other user to the policies that differ.
    if allowed[0] != allowed[1]:
        users = {question["user"], "any-other-user"}
        groups = set(question["groups"])
        assert any(
            asked.question["user"] in users and groups >= set(asked.question["groups"]) for asked in listed_differences
        ), question


def test_a_snapshot_does_not_differ_from_itself_on_any_plane() -> None:
    for seed in range(5):
        for objects in (tool_worlds.World(seed).objects, gateway_clusters.cluster(Random(seed))):
            old, new = (Snapshot.of(load_objects(part)) for part in (objects, list(reversed(objects))))
            assert list(differences(old, new)) == []
