"""Answers of the api plane are values: showing one asks no authorizer, and its deciders are data."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import tierwall
from tests.worlds.api_fakes import CREATE, LIST, Fake, condition, configuration, data, document, objects, policy
from tierwall.api.algebra.chain import Chain, ask_the_rest
from tierwall.api.algebra.condition import FailureMode
from tierwall.api.algebra.decision import DENY, Decision
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.api.authorizers.webhook import WebhookAuthorizer, WebhookError, WebhookSettings
from tierwall.api.decide import decide
from tierwall.api.model import chain_of
from tierwall.api.permissions import permissions
from tierwall.api.question import ApiQuestion, answer, ask, attributes_of, data_of
from tierwall.api.resource_names import JUDGED, resolve
from tierwall.core.answer import DEFAULT, Decider, Reason
from tierwall.core.reference import Reference
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.render import text
from tierwall.render.api import yes_or_no
from tierwall.render.formats import View
from tierwall.resources.kinds.registry import all_kinds, built_in_definition
from tierwall.resources.snapshot import Snapshot

CA = [condition("Allow", "a")]
CD = [condition("Deny", "d")]


def shown(chain: Chain, attributes: Attributes, given: ConditionData | None = None) -> dict[str, Any]:
    """An answer in every form that it is shown in."""
    shown_answer = answer(decide(chain, attributes, given))
    assert list(text.explanation(shown_answer, View()))
    assert list(yes_or_no(shown_answer, View()))
    return shown_answer.to_dict()


# Asking ---------------------------------------------------------------------------------------------------------------

ANSWERS = st.one_of(st.sampled_from(("Allow", "Deny", "NoOpinion", "Error")), st.sampled_from((CA, CD, [*CA, *CD])))
GIVEN = st.one_of(st.none(), st.fixed_dictionaries({"a": st.booleans(), "d": st.booleans()}))


@given(st.lists(ANSWERS, max_size=5), GIVEN, st.sampled_from((CREATE, LIST)))
def test_deciding_and_showing_asks_each_authorizer_at_most_once(
    answers: list[Any], results: dict[str, bool] | None, attributes: Attributes
) -> None:
    members = [Fake(f"a{number}", answer) for number, answer in enumerate(answers)]
    given = data(**results) if results is not None else None
    got = shown(Chain(members), attributes, given)
    assert all(member.calls <= 1 for member in members)
    # Whoever was asked only to show the answer is not called.
    again = Chain([Fake(f"a{number}", answer) for number, answer in enumerate(answers)]).authorize(attributes)
    decided = again.evaluate(given) if given is not None else again
    assert got["called"] == list(decided.asked)


class CountingServer:
    """A webhook that counts how often it is asked, and may be down."""

    def __init__(self, status: dict[str, Any], is_down: bool = False) -> None:
        self.status, self.is_down, self.accesses = status, is_down, 0

    def access(self, review: dict[str, Any]) -> Any:
        self.accesses += 1
        if self.is_down:
            raise WebhookError("connection refused")
        return {"status": self.status}

    def conditions(self, review: dict[str, Any]) -> Any:
        raise WebhookError("nobody asks here")


def hook(server: CountingServer) -> WebhookAuthorizer:
    # Nothing is cached, so that every question is a call.
    settings = WebhookSettings(authorized_ttl=0.0, unauthorized_ttl=0.0)
    return WebhookAuthorizer("hook", server, settings, lambda: 0.0)


@pytest.mark.parametrize("given", [None, data(a=True), data(a=False)])
def test_a_webhook_behind_conditions_is_called_once_however_the_answer_is_shown(given: ConditionData | None) -> None:
    server = CountingServer({"allowed": True})
    chain = Chain([Fake("first", CA), hook(server)])
    decided = decide(chain, CREATE, given)
    shown_answer = answer(decided)
    for _ in range(3):
        list(text.explanation(shown_answer, View()))
        shown_answer.to_dict()
        _ = (decided.first.possible, decided.first.failure, decided.entries, decided.first.can_become_allowed)
    assert server.accesses == 1


def test_reading_a_decision_asks_no_authorizer() -> None:
    members = [Fake("first", CA), Fake("second", "Deny")]
    decision = Chain(members).authorize(CREATE)
    assert decision.possible == {Verdict.ALLOW, DENY, Verdict.NO_OPINION}
    assert decision.failure is DENY
    assert (decision.can_become_allowed, decision.is_complete) == (True, False)
    assert [member.calls for member in members] == [1, 0]
    complete = ask_the_rest(decision)
    assert ask_the_rest(complete) is complete
    assert [entry.authorizer for entry in complete.entries] == ["first", "second"]
    assert complete.evaluate(data(a=False)).asked == ("first", "second")
    assert complete.evaluate(data(a=True)).asked == ("first",)
    assert [member.calls for member in members] == [1, 1]


def test_no_authorizer_after_an_unconditional_answer_of_a_nested_chain_is_asked() -> None:
    inner, outer = [Fake("a", CA), Fake("b", "Deny"), Fake("c", "Allow")], Fake("d", "Allow")
    complete = ask_the_rest(Chain([Chain(inner, "inner"), outer]).authorize(CREATE))
    assert [entry.authorizer for entry in complete.entries] == ["a", "b"]
    assert [member.calls for member in (*inner, outer)] == [1, 1, 0, 0]


def test_a_webhook_that_is_down_is_a_step_of_the_answer() -> None:
    got = shown(Chain([hook(CountingServer({}, is_down=True))]), CREATE)
    assert (got["verdict"], got["decidedBy"], got["error"]) == ("Deny", [{"policy": "hook"}], True)
    (step,) = got["trace"]
    assert (step["tier"], step["verdict"], step["reason"]) == ("hook", "Deny", "AuthorizerUnreachable")
    assert "connection refused" in step["note"]


# Who decided ----------------------------------------------------------------------------------------------------------

CLAIMS = {"user": "alice", "verb": "create", "resource": "persistentvolumeclaims", "version": "v1"}


def settled(question: dict[str, Any], *resources: Any) -> Decision:
    asked = ApiQuestion.from_dict(question)
    attributes = attributes_of(asked, [])
    return decide(chain_of(Snapshot.of(resources)), attributes, data_of(asked, attributes, [])).last


@pytest.mark.parametrize(
    ("effect", "expression", "mode", "verdict", "reason"),
    [
        ("Deny", "true", "Deny", StepVerdict.DENY, Reason.EXPRESSION_TRUE),
        ("Allow", "true", "Deny", StepVerdict.ALLOW, Reason.EXPRESSION_TRUE),
        ("Deny", "1 / 0 == 1", "Deny", StepVerdict.DENY, Reason.EXPRESSION_FAILED),
        ("Deny", "object.x == 1", "Deny", StepVerdict.DENY, Reason.EXPRESSION_TRUE),
        ("Deny", "object.y == 1", "Deny", StepVerdict.DENY, Reason.EXPRESSION_FAILED),
        ("Allow", "object.x == 1", "Deny", StepVerdict.ALLOW, Reason.EXPRESSION_TRUE),
    ],
)
def test_the_policy_that_settles_a_request_is_part_of_the_decision(
    effect: str, expression: str, mode: str, verdict: StepVerdict, reason: Reason
) -> None:
    setup = configuration({"type": "CEL", "name": "policies", "failureMode": mode})
    others = [policy("a", "Allow", "object.x == 2"), policy("z", "Deny", "object.x == 2")]
    decision = settled({**CLAIMS, "object": {"x": 1}}, setup, policy("it", effect, expression), *others)
    step = decision.settled_by
    assert step is not None
    assert (step.policy, step.rule, step.verdict, step.reason) == (
        Reference("ClusterAuthorizationPolicy", "", "it"),
        "spec",
        verdict,
        reason,
    )
    assert step in decision.steps


def test_no_policy_settles_what_nothing_matches_and_every_authorizer_says_so() -> None:
    got = document(objects(), CLAIMS)
    assert (got["decidedBy"], got["verdict"]) == ([{"policy": "Default"}], "NoOpinion")
    assert [(step["tier"], step["verdict"], step["reason"]) for step in got["trace"]] == [
        ("policies", "NoOpinion", "NoPolicy"),
        ("rbac", "NoOpinion", "NoRuleMatched"),
    ]


@pytest.mark.parametrize(
    ("mode", "verdict"), [(FailureMode.DENY, StepVerdict.DENY), (FailureMode.NO_OPINION, StepVerdict.NO_OPINION)]
)
def test_a_failing_condition_has_the_verdict_that_results(mode: FailureMode, verdict: StepVerdict) -> None:
    members = [Fake("it", [condition("Deny", "d"), condition("Allow", "a")], mode)]
    final = Chain(members).authorize(CREATE).evaluate(data(a=True))
    failed = next(step for step in final.steps if step.reason is Reason.EXPRESSION_FAILED)
    assert (failed.verdict, failed.name, failed.policy) == (verdict, "deny-d", None)
    assert final.settled_by == (failed if mode is FailureMode.DENY else None)


def test_an_answer_names_authorizers_and_has_no_truth_value() -> None:
    reply = ask(Snapshot.of([policy("p", "Allow", "true")]), ApiQuestion.from_dict(CLAIMS))
    assert reply.decided_by == (Decider("policies"),)
    assert ask(Snapshot.of(()), ApiQuestion()).decided_by == (DEFAULT,)
    with pytest.raises(TypeError, match="not a truth value"):
        bool(reply)


# Questions ------------------------------------------------------------------------------------------------------------


def test_a_question_and_its_yaml_form_are_the_same() -> None:
    value = {**CLAIMS, "groups": ["a"], "extra": {"k": ["v"]}, "labelSelector": [], "object": None, "conditions": ""}
    question = ApiQuestion.from_dict(value)
    assert question.to_dict() == value
    assert question.has_data
    assert not ApiQuestion.from_dict(CLAIMS).has_data


WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.org"},
    "spec": {
        "group": "example.org",
        "names": {"plural": "widgets", "singular": "widget", "shortNames": ["wd"]},
        "versions": [{"name": "v2", "storage": True}],
    },
}


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"resource": "deploy"}, ("deployments", "apps", "v1", None)),
        ({"resource": "deployments.apps/scale"}, ("deployments", "apps", "v1", "scale")),
        ({"resource": "deployments.v1beta1.apps"}, ("deployments", "apps", "v1beta1", None)),
        ({"resource": "deployments.v1.apps/scale"}, ("deployments", "apps", "v1", "scale")),
        ({"resource": "leases.coordination.k8s.io"}, ("leases", "coordination.k8s.io", "v1", None)),
        ({"resource": "pods/exec"}, ("pods", "", "v1", "exec")),
        ({"resource": "pods/exec", "subresource": ""}, ("pods", "", "v1", "")),
        ({"resource": "wd"}, ("widgets", "example.org", "v2", None)),
        ({"resource": "ev", "group": "events.k8s.io"}, ("events", "events.k8s.io", "v1", None)),
        ({"resource": "deploy", "group": ""}, ("deploy", "", None, None)),
        ({"resource": "deploy", "version": ""}, ("deployments", "apps", "", None)),
        ({"resource": "things.example.com"}, ("things", "example.com", None, None)),
        ({"resource": "*"}, ("*", None, None, None)),
        ({"path": "/healthz"}, ("", None, None, None)),
    ],
)
def test_a_question_is_completed_where_that_is_asked_for(given: dict[str, str], asked: tuple[str | None, ...]) -> None:
    question, doubts = resolve(objects(WIDGETS), ApiQuestion.from_dict({"verb": "get", **given}))
    assert (question.resource, question.group, question.version, question.subresource) == asked
    known = asked[0] in ("deployments", "leases", "pods", "widgets", "events", "*", "")
    assert bool(doubts) is not known


def test_conditions_ask_about_the_resource_that_a_short_name_stands_for() -> None:
    snapshot = Snapshot.of(
        [
            policy("readers", "Allow", "request.verb == 'get' && request.resource == 'deployments'"),
            policy("writers", "Allow", "object.ok && authorizer.requestResource.check('get').allowed()"),
        ]
    )
    question = {"user": "alice", "verb": "create", "object": {"ok": True}}
    written_out = document(snapshot, {**question, "resource": "deployments", "group": "apps", "version": "v1"})
    assert written_out["final"] == "Allow"
    assert document(snapshot, {**question, "resource": "deploy"}) == written_out


def test_the_operation_follows_from_the_verb_only_where_there_is_data() -> None:
    snapshot = objects()
    patch = ApiQuestion(verb="patch", resource="pods", object={})
    assert resolve(snapshot, patch).question.operation == "UPDATE"
    assert resolve(snapshot, replace(patch, operation=None)).question.operation is None
    assert not resolve(snapshot, ApiQuestion(verb="patch", resource="pods")).question.has_data


def test_doubts_name_what_is_near() -> None:
    _, doubts = resolve(objects(WIDGETS), ApiQuestion(verb="creat", resource="widgts"))
    assert doubts == (
        "unknown verb `creat` (did you mean `create`?)",
        "unknown resource type `widgts` (did you mean `widgets`?)",
    )


# Permissions ----------------------------------------------------------------------------------------------------------


def test_permissions_are_values_and_name_the_authorizers_that_cannot_be_listed() -> None:
    webhook = {"type": "Webhook", "name": "hook", "webhook": {"failurePolicy": "NoOpinion"}}
    setup = configuration(
        webhook,
        {"type": "CEL", "name": "policies"},
        {"type": "Node", "name": "node"},
        {"type": "AlwaysAllow", "name": "yes"},
    )
    snapshot = Snapshot.of([setup, policy("p", "Allow", 'request.verb == "get" && object.x')])
    permitted = permissions(snapshot, "alice", ["dev"], "dev")
    assert [
        (permission.authorizer, str(permission.effect), permission.verbs, permission.condition)
        for permission in permitted.listed
    ] == [
        ("policies", "Allow", ("get",), "object.x"),
        ("yes", "Allow", ("*",), ""),
    ]
    assert permitted.listed[0].policy == Reference("ClusterAuthorizationPolicy", "", "p")
    assert permitted.unlisted == ("hook",)
    assert permissions(snapshot, "system:node:n", ["system:nodes"]).unlisted == ("hook", "node")


def test_an_unreachable_webhook_that_denies_is_listed_as_that() -> None:
    setup = configuration({"type": "Webhook", "name": "hook", "webhook": {}}, {"type": "RBAC", "name": "rbac"})
    (line,) = permissions(Snapshot.of([setup]), "alice").listed
    assert (line.authorizer, str(line.effect)) == ("hook", "Deny")
    assert "cannot be called from here" in line.error


@pytest.mark.parametrize(
    ("name", "group", "version"),
    [
        ("adminnetworkpolicies", "policy.networking.k8s.io", "v1alpha1"),
        ("cnp", "policy.networking.k8s.io", "v1alpha2"),
        ("gateway", "gateway.networking.k8s.io", "v1"),
        ("AdminNetworkPolicy", "policy.networking.k8s.io", "v1alpha1"),
        ("xaccesspolicies", "agentic.networking.x-k8s.io", "v1alpha1"),
        ("xaccesspolicies.agentic.prototype.x-k8s.io", "agentic.prototype.x-k8s.io", "v0alpha0"),
    ],
)
def test_the_kinds_that_tierwall_judges_need_no_definitions(name: str, group: str, version: str) -> None:
    question, doubts = resolve(objects(), ApiQuestion(verb="create", resource=name))
    assert (question.group, question.version, doubts) == (group, version, ())


def test_a_definition_among_the_objects_goes_before_the_built_in_one() -> None:
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gateways.gateway.networking.k8s.io"},
        "spec": {
            "group": "gateway.networking.k8s.io",
            "names": {"plural": "gateways", "singular": "gateway", "kind": "Gateway"},
            "versions": [{"name": "v2", "storage": True}],
        },
    }
    assert resolve(objects(definition), ApiQuestion(verb="get", resource="gateways")).question.version == "v2"


def test_every_definition_of_tierwall_is_a_resource() -> None:
    defined = set()
    for kind in all_kinds():
        if kind.is_crd and kind.storage:
            singular = built_in_definition(kind.group, kind.kind)["spec"]["names"]["singular"]
            defined.add((kind.plural, kind.group, kind.version, (singular, *kind.short_names)))
    assert {(entry.plural, entry.group, entry.version, entry.other_names) for entry in JUDGED} == defined


HOOK = """
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: audit
  webhook: {failurePolicy: Deny, matchConditions: [{expression: request.user != "bob"}]}
"""


@pytest.mark.parametrize(
    ("user", "answers", "verdict"),
    [
        ("alice", None, "Deny"),
        ("alice", {"audit": "Allow"}, "Allow"),
        ("alice", {"audit": "Deny"}, "Deny"),
        ("alice", {"audit": "NoOpinion"}, "NoOpinion"),
        # Its match conditions leave bob alone.
        ("bob", {"audit": "Allow"}, "NoOpinion"),
    ],
)
def test_a_question_says_what_webhooks_answer(user: str, answers: dict[str, str] | None, verdict: str) -> None:
    question = tierwall.ApiQuestion(user=user, verb="get", version="v1", resource="pods", webhooks=answers)
    assert tierwall.loads(HOOK).ask(question).verdict == verdict


def test_answers_of_webhooks_that_mean_nothing_are_refused() -> None:
    for answers in ({"audt": "Allow"}, {"audit": "Maybe"}, "audit"):
        question = tierwall.ApiQuestion(user="a", verb="get", resource="pods", webhooks=cast("Any", answers))
        with pytest.raises(tierwall.InputError, match="webhook"):
            tierwall.loads(HOOK).ask(question)
