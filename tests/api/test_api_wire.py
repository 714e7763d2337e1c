"""The wire shapes of KEP-5681 and of the API server's commit series (docs/authorizer.md#endpoints)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.worlds.api_fakes import CREATE, Fake, condition, configuration, policy
from tierwall.api.algebra.chain import Chain, ChainEntry, ask_the_rest
from tierwall.api.algebra.condition import (
    CEL_TYPE,
    PACKED_CEL_TYPE,
    Condition,
    ConditionalDecision,
    ConditionSet,
    Effect,
    FailureMode,
    conditional,
)
from tierwall.api.algebra.condition_fit import pack, unpack
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import Attributes, ConditionData, ConditionsMode
from tierwall.api.authorizers.webhook import (
    ReviewClient,
    WebhookAuthorizer,
    WebhookError,
    WebhookSettings,
    read_settings,
)
from tierwall.api.model import chain_of
from tierwall.api.wire import condition_sets, series
from tierwall.api.wire.answer import ConditionsReview, ReceivedConditionsReview, conditions_request, reply, status
from tierwall.api.wire.condition_sets import CONDITION_SET_CHAIN, CONDITIONS_CHAIN, read_sets, write_sets
from tierwall.api.wire.review import AccessReview, DecodedReview, WireError, WireShape, read_access_review, spec_of
from tierwall.core.verdict import Verdict
from tierwall.resources.snapshot import Snapshot
from tierwall.values.time import parse_seconds

RESOURCE = {"verb": "create", "group": "apps", "version": "v1", "resource": "deployments", "namespace": "dev"}
SERIES_TYPES = ["Allow", "Deny", "NoOpinion", "ConditionsMap", "Union"]


def review(version: str = "v1", **spec: Any) -> dict[str, Any]:
    given = {"user": "alice", "resourceAttributes": RESOURCE, **spec}
    return {"apiVersion": f"authorization.k8s.io/{version}", "kind": "SubjectAccessReview", "spec": given}


def read_review(value: dict[str, Any]) -> AccessReview:
    try:
        return read_access_review(msgspec.json.decode(json.dumps(value), type=DecodedReview))
    except msgspec.ValidationError as why:
        raise WireError(str(why)) from None


SHAPES: dict[WireShape, dict[str, Any]] = {
    WireShape.CONDITIONS_CHAIN: {"conditionalAuthorization": {"mode": "HumanReadable"}},
    WireShape.SERIES: {"authorizationOptions": {"handledDecisionTypes": SERIES_TYPES}},
    WireShape.PLAIN: {},
}
CHAIN = chain_of(
    Snapshot.of(
        [
            configuration(
                {"type": "CEL", "name": "guard"}, {"type": "CEL", "name": "policies", "failureMode": "NoOpinion"}
            ),
            policy("no-prod", "Deny", 'object.metadata.labels.env == "prod"', "guard", description="no prod here"),
            policy("small", "Allow", "object.spec.replicas < 3"),
        ]
    )
)


def test_a_review_becomes_attributes() -> None:
    attributes = read_review(review(groups=["a"], uid="u", extra={"k": ["v"]})).attributes
    assert (attributes.user, attributes.groups, attributes.uid, attributes.extra) == (
        "alice",
        ("a",),
        "u",
        (("k", ("v",)),),
    )
    assert (attributes.group, attributes.resource, attributes.namespace) == ("apps", "deployments", "dev")
    path = read_review(review(resourceAttributes=None, nonResourceAttributes={"path": "/x", "verb": "get"})).attributes
    assert (path.is_resource_request, path.path, path.verb) == (False, "/x", "get")


def test_v1beta1_spells_groups_group_and_has_no_conditions() -> None:
    asked = read_review(review("v1beta1", group=["a"], groups=["b"], **SHAPES[WireShape.CONDITIONS_CHAIN]))
    assert asked.attributes.groups == ("a",)
    assert asked.attributes.conditions_mode is ConditionsMode.NONE


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shape_follows_from_what_the_caller_sends(shape: WireShape) -> None:
    assert read_review(review(**SHAPES[shape])).shape is shape


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"kind": "SubjectAccessReview"},
        {"apiVersion": "authorization.k8s.io/v2", "kind": "SubjectAccessReview", "spec": {}},
        review() | {"kind": "Pod"},
        review() | {"spec": None},
        review() | {"spec": {"user": "a"}},
        review(nonResourceAttributes={"path": "/"}),
        review(user=7),
        review(groups="a"),
        review(user="", groups=[]),
        review(extra={"a": "b"}),
        review(authorizationOptions={}),
        review(authorizationOptions={"handledDecisionTypes": ["Allow"]}),
        review(resourceAttributes={**RESOURCE, "labelSelector": {"rawSelector": "a", "requirements": [{"key": "a"}]}}),
        review(resourceAttributes={**RESOURCE, "labelSelector": {"requirements": [{"key": 1, "operator": "In"}]}}),
    ],
)
def test_malformed_reviews_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        read_review(bad)


def test_selectors_of_later_releases_are_left_out_because_they_only_narrow() -> None:
    requirements = [{"key": "a", "operator": "In", "values": ["b"]}, {"key": "c", "operator": "Like", "values": []}]
    asked = read_review(review(resourceAttributes={**RESOURCE, "labelSelector": {"requirements": requirements}}))
    assert asked.attributes.label_selector is not None
    assert [requirement.key for requirement in asked.attributes.label_selector] == ["a"]


def answer(**spec: Any) -> dict[str, Any]:
    asked = read_review(review(**spec))
    return status(asked, CHAIN.authorize(asked.attributes))


def test_r073_and_r126_without_a_mode_no_condition_is_returned() -> None:
    specs: list[dict[str, Any]] = [
        {},
        {"conditionalAuthorization": {}},
        {"conditionalAuthorization": {"mode": "Later"}},
    ]
    for spec in specs:
        assert answer(**spec) == {"allowed": False, "denied": True, "reason": answer(**spec)["reason"]}


def test_r074_folding_is_deny_because_of_the_deny_condition() -> None:
    assert answer()["denied"] is True


def test_r075_optimized_leaves_out_descriptions_and_means_the_same() -> None:
    readable = answer(conditionalAuthorization={"mode": "HumanReadable"})
    compact = answer(conditionalAuthorization={"mode": "Optimized"})
    assert "no prod here" in json.dumps(readable)
    assert "no prod here" not in json.dumps(compact)
    for written in readable["conditionsChain"]:
        for each in written["conditions"]:
            each.pop("description", None)
    assert readable == compact


def test_r076_to_r081_the_chain_of_a_conditional_answer() -> None:
    status = answer(**SHAPES[WireShape.CONDITIONS_CHAIN])
    assert status == {
        "allowed": False,
        "conditionsChain": [
            {
                "authorizerName": "guard",
                "failureMode": "Deny",
                "conditions": [
                    {
                        "id": "no-prod",
                        "effect": "Deny",
                        "type": CEL_TYPE,
                        "condition": 'object.metadata.labels.env == "prod"',
                        "description": "no prod here",
                    }
                ],
            },
            {
                "authorizerName": "policies",
                "failureMode": "NoOpinion",
                "conditions": [
                    {"id": "small", "effect": "Allow", "type": CEL_TYPE, "condition": "object.spec.replicas < 3"}
                ],
            },
        ],
    }


def test_r077_an_old_reader_sees_no_opinion() -> None:
    from tierwall.api.wire.review import read_concrete

    assert read_concrete(answer(**SHAPES[WireShape.CONDITIONS_CHAIN])).verdict is NO_OPINION


@pytest.mark.parametrize(
    "both", [{"allowed": True, "denied": True}, {"allowed": True, "conditions": [{"id": "a", "effect": "Deny"}]}]
)
def test_r078_allowed_denied_and_conditions_exclude_each_other(both: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="exclude each other"):
        read_sets([{"authorizerName": "a", **both}])


def test_r079_the_chain_ends_with_the_first_concrete_answer() -> None:
    authorizer_chain = Chain(
        [Fake("a", [condition("Deny")]), Fake("b", "NoOpinion"), Fake("c", "Allow"), Fake("d", "Deny")]
    )
    sets = write_sets(CONDITIONS_CHAIN, ask_the_rest(authorizer_chain.authorize(CREATE)).entries)
    assert [written["authorizerName"] for written in sets] == ["a", "c"]
    assert sets[1] == {"authorizerName": "c", "allowed": True}


def test_r080_two_sets_of_one_name_are_refused() -> None:
    with pytest.raises(WireError, match="the same authorizer name"):
        read_sets([{"authorizerName": "a", "denied": True}, {"authorizerName": "a", "allowed": True}])


def test_r083_conditions_are_returned_for_any_verb() -> None:
    asked = read_review(review(resourceAttributes={**RESOURCE, "verb": "list"}, **SHAPES[WireShape.CONDITIONS_CHAIN]))
    assert "conditionsChain" in status(asked, CHAIN.authorize(asked.attributes))


@pytest.mark.parametrize("effect", ["Maybe", "", "allow"])
def test_r029_an_unknown_effect_falls_to_the_failure_mode(effect: str) -> None:
    for mode in ("Deny", "NoOpinion"):
        conditions = [{"id": "a", "effect": effect, "type": CEL_TYPE, "condition": "true"}]
        entries = read_sets([{"authorizerName": "a", "failureMode": mode, "conditions": conditions}])
        assert entries[0][1].verdict == mode


def test_the_series_shape_of_a_conditional_answer() -> None:
    tree = answer(**SHAPES[WireShape.SERIES])["conditionalDecision"]
    assert tree["type"] == "Union"
    assert [member["authorizerName"] for member in tree["union"]] == ["guard", "policies"]
    assert tree["union"][1]["decision"] == {
        "type": "ConditionsMap",
        "conditionsMap": {
            "allowConditions": [{"id": "small", "condition": "object.spec.replicas < 3", "type": CEL_TYPE}]
        },
    }


def test_an_error_beside_conditions_is_one_bounded_line() -> None:
    error = "no such key: \x1b[2K\nallowed by admin \u202e" * 1000
    entries = ask_the_rest(CHAIN.authorize(CREATE)).entries
    for written in (
        condition_sets.write_status(CONDITIONS_CHAIN, entries, error),
        condition_sets.write_status(CONDITION_SET_CHAIN, entries, error),
        series.write_status(entries, frozenset(("Union", "ConditionsMap")), DENY, error),
    ):
        assert written["evaluationError"].isprintable()
        assert len(written["evaluationError"]) <= 3000


def test_a_caller_that_does_not_handle_unions_gets_the_failing_answer() -> None:
    handled = [word for word in SERIES_TYPES if word != "Union"]
    status = answer(authorizationOptions={"handledDecisionTypes": handled})
    assert (status["allowed"], status["denied"], "conditionalDecision" in status) == (False, True, False)


# Round trips ----------------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=40)
CONDITIONS = st.lists(
    st.builds(
        Condition,
        st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8})?", fullmatch=True),
        st.sampled_from(Effect),
        TEXTS,
        st.sampled_from((CEL_TYPE, PACKED_CEL_TYPE)),
        st.text(max_size=10),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda condition: condition.id,
)
ENTRIES = st.lists(
    st.one_of(
        st.builds(
            lambda conditions, mode: conditional("x", conditions, mode), CONDITIONS, st.sampled_from(FailureMode)
        ),
        st.sampled_from((Decision(ALLOW), Decision(DENY))),
    ),
    min_size=1,
    max_size=4,
)


def named(decisions: list[Decision]) -> tuple[ChainEntry, ...]:
    out = []
    for number, decision in enumerate(decisions):
        if isinstance(decision, ConditionalDecision):
            decision = replace(decision, conditions=replace(decision.conditions, authorizer=f"a{number}"))
        if decision.verdict is not NO_OPINION:
            out.append(ChainEntry(f"a{number}", decision))
    return tuple(out)


def meaning(entries: tuple[ChainEntry, ...], *, modes: bool = True) -> list[Any]:
    contents: list[Any] = []
    for name, decision in entries:
        if isinstance(decision, ConditionalDecision):
            conditions = sorted(
                (each.id, each.effect, each.text, each.type, each.description)
                for each in decision.conditions.conditions
            )
            has_deny = bool(decision.conditions.of(Effect.DENY))
            contents.append((name, conditions, decision.conditions.failure_mode if modes or has_deny else None))
        else:
            contents.append((name, decision.verdict))
    return contents


@given(ENTRIES)
def test_the_seed_shape_loses_nothing(decisions: list[Decision]) -> None:
    entries = named(decisions)
    assert meaning(read_sets(json.loads(json.dumps(write_sets(CONDITIONS_CHAIN, entries))))) == meaning(entries)


@given(ENTRIES)
def test_the_kep_shape_loses_nothing_but_packs_mixed_sets(decisions: list[Decision]) -> None:
    entries = named(decisions)
    back = read_sets(json.loads(json.dumps(write_sets(CONDITION_SET_CHAIN, entries))))
    for (_, sent), (_, returned) in zip(entries, back, strict=True):
        assert sent.verdict is returned.verdict
        if isinstance(sent, ConditionalDecision) and isinstance(returned, ConditionalDecision):
            assert sent.possible == returned.possible
            assert {each.id for each in sent.conditions.conditions} == {
                each.id for each in returned.conditions.conditions
            }


@given(ENTRIES)
def test_the_series_shape_loses_nothing_where_the_failure_mode_matters(decisions: list[Decision]) -> None:
    entries = named(decisions)
    if not entries:
        return
    back = series.read_tree(json.loads(json.dumps(series.write_tree(entries))), entries[0][0])
    assert meaning(back, modes=False) == meaning(entries, modes=False)


@pytest.mark.parametrize(
    "tree",
    [
        None,
        7,
        {},
        {"type": "Maybe"},
        {"type": "Union"},
        {"type": "Union", "union": []},
        {"type": "Union", "union": [{"decision": {"type": "Allow"}}]},
        {"type": "Union", "union": [{"authorizerName": "a", "decision": {"type": "Allow"}}] * 2},
        {"type": "ConditionsMap"},
        {"type": "ConditionsMap", "conditionsMap": {"allowConditions": [{"id": 7}]}},
        {"type": "Allow", "allow": 7},
    ],
)
def test_a_malformed_tree_is_refused(tree: Any) -> None:
    with pytest.raises(WireError):
        series.read_tree(tree, "a")


def test_deep_nesting_is_refused() -> None:
    tree: dict[str, Any] = {"type": "Allow"}
    chain: list[dict[str, Any]] = [{"authorizerName": "a", "allowed": True}]
    for _ in range(40):
        tree = {"type": "Union", "union": [{"authorizerName": "a", "decision": tree}]}
        chain = [{"authorizerName": "a", "conditionSetChain": chain}]
    with pytest.raises(WireError, match="nested"):
        series.read_tree(tree, "a")
    with pytest.raises(WireError, match="nested"):
        read_sets(chain)


@given(st.text(max_size=3000))
def test_packing_gives_the_text_back(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert unpack(pack(text)) == text


@pytest.mark.parametrize("packed", ["", "x", "é", "~~~~", pack("x" * 100_000), pack("x") + "00000"])
def test_text_that_pack_did_not_write_is_refused(packed: str) -> None:
    with pytest.raises(ValueError, match=r"packed|base85|characters"):
        unpack(packed)


# AuthorizationConditionsReview ----------------------------------------------------------------------------------------


def conditions_review(value: dict[str, Any]) -> ConditionsReview:
    return ConditionsReview(msgspec.json.decode(json.dumps(value).encode(), type=ReceivedConditionsReview))


DATA = ConditionData(operation="CREATE", object={"metadata": {"labels": {"env": "dev"}}, "spec": {"replicas": 2}})


def entries_for(shape: WireShape) -> dict[str, Any]:
    entries = ask_the_rest(
        CHAIN.authorize(read_review(review(**SHAPES[WireShape.CONDITIONS_CHAIN])).attributes)
    ).entries
    return conditions_request(shape, entries, DATA)


@pytest.mark.parametrize("shape", [WireShape.CONDITIONS_CHAIN, WireShape.KEP, WireShape.SERIES])
def test_r085_to_r088_and_r098_any_replica_evaluates_what_another_returned(shape: WireShape) -> None:
    asked = conditions_review(entries_for(shape))
    assert asked.shape is shape
    reply = asked.reply(CHAIN.recall(asked.entries).evaluate(asked.data))
    assert reply["kind"] == "AuthorizationConditionsReview"
    if shape is WireShape.SERIES:
        assert reply["response"]["uid"] == series.UID
        assert reply["response"]["decision"]["type"] == "Allow"
    else:
        assert reply["response"]["allowed"] is True


def test_a_single_map_without_a_name_goes_to_the_authorizer_of_its_type() -> None:
    tree = {
        "type": "ConditionsMap",
        "conditionsMap": {"allowConditions": [{"id": "a", "condition": "object.x == 1", "type": CEL_TYPE}]},
    }
    body = {"decision": tree, "admissionRequest": {"uid": "u", "operation": "CREATE", "object": {"x": 1}}}
    asked = conditions_review({"apiVersion": condition_sets.API_VERSION, "kind": condition_sets.KIND, "request": body})
    assert CHAIN.recall(asked.entries).evaluate(asked.data).verdict is ALLOW


@pytest.mark.parametrize(
    "text",
    ["object.x ==", "__import__('os')", "[1].map(x, y)", "1", "object.nope.more", "x" * 1024, "'a'.matches('(')"],
)
def test_r089_strange_text_is_an_error_and_never_code(text: str) -> None:
    conditions = ConditionSet("policies", (Condition("a", Effect.DENY, text), Condition("b", Effect.ALLOW, "true")))
    result = CHAIN.recall([("guard", ConditionalDecision(conditions=conditions))]).evaluate(ConditionData(object={}))
    assert (result.verdict, bool(result.error)) == (DENY, True)


# Webhook --------------------------------------------------------------------------------------------------------------


class Server:
    """A webhook server in this process: a chain of its own, reached through JSON. Counts its calls."""

    def __init__(self, chain: Chain, shape: WireShape = WireShape.CONDITIONS_CHAIN) -> None:
        self.chain, self.shape = chain, shape
        self.accesses = self.evaluations = 0
        self.is_down = False

    def access(self, review: dict[str, Any]) -> Any:
        self.accesses += 1
        if self.is_down:
            raise WebhookError("connection refused")
        asked = read_review(json.loads(json.dumps(review)))
        if asked.shape is WireShape.CONDITIONS_CHAIN and self.shape is WireShape.KEP:
            asked = replace(asked, shape=WireShape.KEP)
        return json.loads(json.dumps(reply(asked, self.chain.authorize(asked.attributes))))

    def conditions(self, review: dict[str, Any]) -> Any:
        self.evaluations += 1
        if self.is_down:
            raise WebhookError("connection refused")
        asked = conditions_review(review)
        return json.loads(json.dumps(asked.reply(self.chain.recall(asked.entries).evaluate(asked.data))))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def webhook(server: ReviewClient, clock: Clock | None = None, **settings: Any) -> Chain:
    given = {"shape": WireShape.CONDITIONS_CHAIN, **settings}
    return Chain([WebhookAuthorizer("hook", server, WebhookSettings(**given), clock or Clock())])


OPAQUE = Chain([Fake("deep", [condition("Allow", "x")])])
CEL_CHAIN = chain_of(Snapshot.of([policy("p", "Allow", "object.x == true")]))


@pytest.mark.parametrize("shape", [WireShape.CONDITIONS_CHAIN, WireShape.KEP, WireShape.SERIES])
@pytest.mark.parametrize(("chain", "evaluations"), [(OPAQUE, 1), (CEL_CHAIN, 0)])
def test_r092_types_known_here_need_no_callback_and_a_cached_answer_no_call(
    shape: WireShape, chain: Chain, evaluations: int
) -> None:
    server = Server(chain, shape)
    hook = webhook(server, shape=shape)
    for round in (1, 2):
        first = hook.authorize(CREATE)
        assert first.verdict == "Conditional"
        assert first.evaluate(ConditionData(object={"x": True})).verdict is ALLOW
        assert (server.accesses, server.evaluations) == (1, evaluations * round)


def test_r090_a_failing_endpoint_fails_conditional_requests_only() -> None:
    server = Server(OPAQUE)
    first = webhook(server).authorize(CREATE)
    server.is_down = True
    decision = first.evaluate(ConditionData(object={"x": True}))
    assert (decision.verdict, bool(decision.error)) == (NO_OPINION, True)


def test_r091_without_an_endpoint_conditions_are_not_asked_for() -> None:
    assert webhook(Server(OPAQUE), shape=WireShape.PLAIN).authorize(CREATE).verdict is NO_OPINION


def test_r093_what_fails_here_is_left_to_the_webhook() -> None:
    class Newer(Server):
        def access(self, review: dict[str, Any]) -> Any:
            conditions = [{"id": "a", "effect": "Allow", "type": CEL_TYPE, "condition": "newFunction(object.x)"}]
            return {
                "status": {
                    "allowed": False,
                    "conditionsChain": [{"authorizerName": "a", "conditions": conditions}],
                }
            }

        def conditions(self, review: dict[str, Any]) -> Any:
            self.evaluations += 1
            return {"response": {"allowed": True}}

    server = Newer(OPAQUE)
    assert webhook(server).authorize(CREATE).evaluate(ConditionData(object={"x": 1})).verdict is ALLOW
    assert server.evaluations == 1


def test_r095_an_unknown_generation_of_cel_is_left_to_the_webhook() -> None:
    class Newer(Server):
        def access(self, review: dict[str, Any]) -> Any:
            conditions = [{"id": "a", "effect": "Allow", "type": "k8s.io/authorization-cel-v2", "condition": "?"}]
            return {
                "status": {"allowed": False, "conditionsChain": [{"authorizerName": "a", "conditions": conditions}]}
            }

        def conditions(self, review: dict[str, Any]) -> Any:
            return {"response": {"allowed": True}}

    assert webhook(Newer(OPAQUE)).authorize(CREATE).evaluate(ConditionData(object={})).verdict is ALLOW


def test_an_answer_that_the_conditions_cannot_give_fails_closed() -> None:
    class Liar(Server):
        def conditions(self, review: dict[str, Any]) -> Any:
            return {"response": {"allowed": True}}

    hook = webhook(Liar(Chain([Fake("a", [condition("Deny")])])))
    assert hook.authorize(CREATE).evaluate(ConditionData(object={"x": False})).verdict is DENY


def test_r096_and_r097_a_cached_answer_keeps_its_conditions_when_policies_change() -> None:
    server, clock = Server(CEL_CHAIN), Clock()
    hook = webhook(server, clock, unauthorized_ttl=30.0)
    hook.authorize(CREATE)
    server.chain = chain_of(Snapshot.of([policy("p", "Deny", "true")]))
    assert hook.authorize(CREATE).evaluate(ConditionData(object={"x": True})).verdict is ALLOW
    clock.now = 31.0
    assert hook.authorize(CREATE).verdict is DENY


def test_r099_the_cache_tells_modes_and_specs_apart() -> None:
    server = Server(CEL_CHAIN)
    hook = webhook(server)
    assert hook.authorize(CREATE).verdict == "Conditional"
    assert hook.authorize(replace(CREATE, conditions_mode=ConditionsMode.NONE)).verdict is NO_OPINION
    hook.authorize(replace(CREATE, groups=("a",)))
    assert server.accesses == 3


@pytest.mark.parametrize("policy_word", [DENY, NO_OPINION])
def test_the_failure_policy_of_an_unreachable_webhook_decides_and_is_not_cached(policy_word: Any) -> None:
    server = Server(CEL_CHAIN)
    server.is_down = True
    hook = webhook(server, failure_policy=policy_word)
    decision = hook.authorize(CREATE)
    assert (decision.verdict, bool(decision.error)) == (policy_word, True)
    server.is_down = False
    assert hook.authorize(CREATE).verdict == "Conditional"


UNKNOWN_EFFECT = {"authorizerName": "a", "conditions": [{"id": "x", "effect": "Perhaps", "condition": "true"}]}


@pytest.mark.parametrize(
    ("sets", "verdict"),
    [
        ([], ALLOW),
        ([{"authorizerName": "a"}], ALLOW),
        ([{"authorizerName": "a"}, {"authorizerName": "b", "denied": True}], DENY),
        ([{"authorizerName": "a", "allowed": True}, {"authorizerName": "b", "denied": True}], ALLOW),
        ([UNKNOWN_EFFECT], DENY),
        ([UNKNOWN_EFFECT | {"failureMode": "NoOpinion"}], ALLOW),
    ],
)
def test_sets_of_a_webhook_without_conditions_are_a_concrete_answer(sets: list[Any], verdict: Verdict) -> None:
    """Nothing would be evaluated or sealed, so the rest of the chain decides now."""
    server = Server(CEL_CHAIN)
    server.access = lambda review: {"status": {"allowed": False, "conditionsChain": sets}}  # type: ignore[method-assign]
    hook = WebhookAuthorizer("hook", server, WebhookSettings(shape=WireShape.CONDITIONS_CHAIN), Clock())
    assert Chain([hook, Fake("rest", "Allow")]).authorize(CREATE).verdict is verdict


def test_a_broken_map_that_denies_is_not_softened_by_the_failure_policy() -> None:
    broken = {"denyConditions": [{"id": "not an id", "condition": "object.x", "type": CEL_TYPE}]}
    tree = {"type": "ConditionsMap", "conditionsMap": broken}
    server = Server(CEL_CHAIN)
    server.access = lambda review: {"status": {"conditionalDecision": tree}}  # type: ignore[method-assign]
    assert webhook(server, shape=WireShape.SERIES, failure_policy=NO_OPINION).authorize(CREATE).verdict is DENY


def test_huge_requests_are_not_cached() -> None:
    server = Server(Chain([Fake("a", "Allow")]))
    hook = webhook(server)
    for _ in range(2):
        hook.authorize(replace(CREATE, groups=("g" * 10_000,)))
    assert server.accesses == 2


@pytest.mark.parametrize(
    ("conditions", "asked", "verdict"),
    [
        (("has(request.resourceAttributes)",), 1, "Allow"),
        (("request.resourceAttributes.namespace == 'prod'",), 0, "NoOpinion"),
        (("has(request.resourceAttributes)", "request.nope == 1", "request.user == 'x'"), 0, "NoOpinion"),
        (("request.nope == 1", "true"), 0, "Deny"),
    ],
)
def test_match_conditions(conditions: tuple[str, ...], asked: int, verdict: str) -> None:
    server = Server(Chain([Fake("a", "Allow")]))
    decision = webhook(server, match_conditions=conditions).authorize(CREATE)
    assert (server.accesses, decision.verdict) == (asked, verdict)


@pytest.mark.parametrize(
    "reply_",
    [
        {},
        {"status": None},
        {"status": {"allowed": "yes"}},
        {"status": {"conditionsChain": 7}},
        {"status": {"allowed": True, "conditionsChain": []}},
    ],
)
def test_replies_that_make_no_sense_are_failures(reply_: dict[str, Any]) -> None:
    class Odd(Server):
        def access(self, review: dict[str, Any]) -> Any:
            return reply_

    decision = webhook(Odd(OPAQUE)).authorize(CREATE)
    assert (decision.verdict, bool(decision.error)) == (DENY, True)


def test_settings_and_durations() -> None:
    settings, problems = read_settings(
        {"timeout": "3s", "authorizedTTL": "1m30s", "cacheUnauthorizedRequests": False, "failurePolicy": "NoOpinion"}
    )
    assert (problems, settings.timeout, settings.authorized_ttl, settings.unauthorized_ttl) == ([], 3.0, 90.0, 0.0)
    _, problems = read_settings(
        {"timeout": "31s", "authorizedTTL": "x", "failurePolicy": "Maybe", "matchConditions": [{}]}
    )
    assert [path for path, _ in problems] == [
        ("failurePolicy",),
        ("timeout",),
        ("matchConditions", 0),
        ("authorizedTTL",),
    ]
    for wrong in (5, "true", {"expression": "true"}):
        assert [path for path, _ in read_settings({"matchConditions": wrong})[1]] == [("matchConditions",)]
    assert [parse_seconds(text) for text in ("1h", "1.5s", "100ms", "0", "", "1", "s", 5)] == [
        3600,
        1.5,
        0.1,
        0,
        None,
        None,
        None,
        None,
    ]


def test_specs_go_out_as_they_come_in() -> None:
    attributes = Attributes(
        user="u", groups=("g",), uid="1", extra=(("k", ("v",)),), verb="get", resource="pods", version="v1"
    )
    there = read_review(
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec_of(attributes, shape=WireShape.CONDITIONS_CHAIN),
        }
    )
    assert there == AccessReview("authorization.k8s.io/v1", attributes, WireShape.CONDITIONS_CHAIN)
