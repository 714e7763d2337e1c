"""CEL policies in the first phase (KEP-5681; docs/semantics.md#what-one-cel-authorizer-answers)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.worlds.api_fakes import condition_sets, configuration, document, policy
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.api.model import chain_of
from tierwall.render.json import step_document
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

CLAIMS: dict[str, Any] = {"verb": "create", "version": "v1", "resource": "persistentvolumeclaims", "namespace": "dev"}
BOB = policy("bob", "Allow", 'request.apiGroup == "" && request.userInfo.username == "bob"')
ALICE = policy(
    "alice",
    "Allow",
    """request.apiGroup == "" && request.resource == "persistentvolumeclaims" && request.verb == "create" &&
    request.userInfo.username == "alice" && object.spec.storageClassName == "dev" """,
)
RESIDUAL = 'object.x == "y"'


def got(question: dict[str, Any], *resources: Resource) -> dict[str, Any]:
    return document(Snapshot.of(resources), question)


def conditions(question: dict[str, Any], *resources: Resource) -> list[tuple[str, str]]:
    return [
        (condition["effect"], condition["condition"]) for condition in got(question, *resources).get("conditions", [])
    ]


def test_r004_the_answer_does_not_depend_on_the_order_of_the_files() -> None:
    resources = [policy(f"p{n}", effect, RESIDUAL) for n, effect in enumerate(("Allow", "Deny", "NoOpinion", "Allow"))]
    answers = [str(got(CLAIMS, *order)) for order in itertools.permutations(resources)]
    assert len(set(answers)) == 1


def test_r005_the_first_answer_does_not_depend_on_stored_objects() -> None:
    stored = Resource("", "v1", "PersistentVolumeClaim", "dev", "c", {"spec": {"storageClassName": "prod"}})
    question = {**CLAIMS, "user": "alice"}
    assert got(question, ALICE) == got(question, ALICE, stored)


def test_r007_the_second_phase_sees_no_policies() -> None:
    attributes = Attributes(user="alice", verb="create", version="v1", resource="persistentvolumeclaims")
    first = chain_of(Snapshot.of([ALICE])).authorize(attributes)
    later = chain_of(Snapshot.of([policy("no", "Deny", "true")]))
    data = ConditionData(object={"spec": {"storageClassName": "dev"}})
    assert later.authorize(attributes).verdict == "Deny"
    assert first.evaluate(data).verdict == "Allow"


def test_r011_known_variables_become_constants() -> None:
    expression = "object.name == request.userInfo.username && request.userInfo.groups.all(g, g != object.g)"
    ((effect, text),) = conditions({**CLAIMS, "user": "lucas", "groups": ["a", "b"]}, policy("p", "Allow", expression))
    assert effect == "Allow"
    assert 'object.name == "lucas"' in text
    assert '"a"' in text
    assert "request" not in text


def test_r011_the_name_of_a_create_is_unknown_unless_it_is_given() -> None:
    mine = policy("p", "Allow", 'request.name == "n"')
    assert conditions(CLAIMS, mine) == [("Allow", 'request.name == "n"')]
    assert got({**CLAIMS, "name": "n"}, mine)["verdict"] == "Allow"
    assert got({**CLAIMS, "name": "m"}, mine)["verdict"] == "NoOpinion"
    assert got({**CLAIMS, "verb": "update"}, mine)["verdict"] == "NoOpinion"
    assert got({**CLAIMS, "object": {"metadata": {"name": "n"}}}, mine)["final"] == "Allow"
    assert got({**CLAIMS, "object": {"metadata": {"name": 7}}}, mine)["final"] == "NoOpinion"


@pytest.mark.parametrize(
    "word", ["object", "oldObject", "options", "operation", "namespaceObject", "impersonatedRequest"]
)
@pytest.mark.parametrize("verb", ["create", "delete", "get", "impersonate"])
def test_data_is_unknown_whatever_the_verb(word: str, verb: str) -> None:
    assert got({**CLAIMS, "verb": verb}, policy("p", "Allow", f"{word} == null"))["verdict"] == "Conditional"


def test_answers_that_come_again_are_those_of_a_chain_that_was_never_asked() -> None:
    policies = [
        policy("same", "Allow", 'request.verb == "create" && object.spec.class == "dev"'),
        policy("who", "Allow", "object.owner == request.userInfo.username && request.verb == 'update'"),
        policy("never", "Allow", "request.verb == 'delete' && (request.name == 'x' ? false : object.a)"),
        policy("deny", "Deny", "request.namespace == 'prod' && object.spec.replicas > 3"),
    ]
    kept = chain_of(Snapshot.of(policies))
    asked = itertools.product(("create", "update", "delete"), ("alice", "bob"), ("dev", "prod"), ("", "x"))
    for verb, user, namespace, name in [*asked] * 2:
        attributes = Attributes(user=user, verb=verb, resource="pods", namespace=namespace, name=name)
        again, fresh = kept.authorize(attributes), chain_of(Snapshot.of(policies)).authorize(attributes)
        assert again.verdict is fresh.verdict
        texts = [
            [
                (condition.id, condition.effect, condition.text)
                for condition_set in condition_sets(answer)
                for condition in condition_set.conditions
            ]
            for answer in (again, fresh)
        ]
        assert texts[0] == texts[1]
        assert [step_document(step) for step in again.steps] == [step_document(step) for step in fresh.steps]


def test_r012_and_r017_eve_is_refused_without_conditions() -> None:
    answer = got({**CLAIMS, "user": "eve"}, BOB, ALICE)
    assert (answer["verdict"], answer["final"], answer["conditionSets"]) == ("NoOpinion", "NoOpinion", [])


def test_r013_a_true_allow_drops_residual_allows() -> None:
    answer = got({**CLAIMS, "user": "alice"}, ALICE, policy("all", "Allow", "true"))
    assert answer["verdict"] == "Allow"


def test_r014_a_false_policy_contributes_nothing() -> None:
    assert conditions({**CLAIMS, "user": "alice"}, BOB, ALICE, policy("no", "Deny", "false"))[0][0] == "Allow"


def test_r015_alice_is_left_with_the_storage_class() -> None:
    assert conditions({**CLAIMS, "user": "alice"}, BOB, ALICE) == [("Allow", 'object.spec.storageClassName == "dev"')]


def test_r016_bob_is_allowed() -> None:
    answer = got({**CLAIMS, "user": "bob"}, BOB, ALICE)
    assert (answer["verdict"], answer["decidedBy"]) == ("Allow", [{"policy": "policies"}])


def test_r018_all_pruning_that_the_attributes_allow_is_done() -> None:
    mine = policy("p", "Allow", 'object.metadata.labels.foo == "bar" && request.verb == "create"')
    assert got({**CLAIMS, "verb": "update"}, mine)["verdict"] == "NoOpinion"
    assert got(CLAIMS, mine)["verdict"] == "Conditional"


@pytest.mark.parametrize("effect", ["Allow", "Deny", "NoOpinion"])
@pytest.mark.parametrize("expression", [f"false && {RESIDUAL}", f"{RESIDUAL} && false", f"!({RESIDUAL} || true)"])
def test_r019_and_r020_false_absorbs_a_residual_on_either_side(effect: str, expression: str) -> None:
    answer = got({**CLAIMS, "object": {}}, policy("p", effect, expression))
    assert (answer["verdict"], answer.get("error")) == ("NoOpinion", None)


# The last five could be found to be false, or to fail, without looking at the data: they are kept all the same.
@pytest.mark.parametrize(
    "expression",
    [
        f"({RESIDUAL}) && 1 / 0 == 1",
        f"{RESIDUAL} ? false : false",
        f"{RESIDUAL} ? 1 / 0 == 1 : 1 / 0 == 1",
        f"({RESIDUAL}) && 1 / 0 == 1 || 1 / 0 == 1",
        f"!(({RESIDUAL}) && 1 / 0 == 1 || 1 / 0 == 1)",
        "has(object.b) ? false : false",
        "request.name == 'x' ? false : false",
    ],
)
def test_r021_an_allow_that_cannot_become_true_is_not_returned_but_a_deny_is_kept(expression: str) -> None:
    assert got(CLAIMS, policy("p", "Allow", expression))["verdict"] == "NoOpinion"
    assert got(CLAIMS, policy("p", "Deny", expression))["conditionSets"] == [
        {"authorizer": "policies", "effects": {"Deny": 1}}
    ]


def test_a_result_that_is_not_a_bool_is_an_error() -> None:
    answer = got(CLAIMS, policy("p", "Deny", "request.verb"))
    assert (answer["verdict"], answer["error"]) == ("Deny", True)


def test_a_policy_that_does_not_parse_fails_for_every_request_and_never_disappears() -> None:
    assert got(CLAIMS, policy("p", "Deny", "request.verb ==")).get("error") is True
    assert got(CLAIMS, policy("p", "Deny", "request.verb =="))["verdict"] == "Deny"
    assert got(CLAIMS, policy("p", "Maybe", "true"))["verdict"] == "Deny"
    broken_allow = got({**CLAIMS, "user": "bob"}, policy("p", "Allow", "request.verb =="), BOB)
    assert (broken_allow["verdict"], broken_allow.get("error")) == ("Allow", None)


def test_a_namespaced_policy_matches_only_its_own_namespace() -> None:
    mine = policy("p", "Allow", "true", namespace="dev")
    assert got(CLAIMS, mine)["verdict"] == "Allow"
    assert got({**CLAIMS, "namespace": "prod"}, mine)["verdict"] == "NoOpinion"
    assert got({"verb": "get", "resource": "nodes"}, mine)["verdict"] == "NoOpinion"
    assert got({"verb": "get", "path": "/healthz"}, mine)["verdict"] == "NoOpinion"


def test_a_policy_whose_authorizer_is_not_in_the_chain_does_nothing() -> None:
    assert got(CLAIMS, policy("p", "Deny", "true", "elsewhere"))["verdict"] == "NoOpinion"


# One authorizer: the order Deny > conditional Deny > NoOpinion > conditional NoOpinion > Allow > conditional Allow.

T, R = "true", RESIDUAL


@pytest.mark.parametrize(
    ("name", "policies", "verdict", "effects"),
    [
        ("an unconditional Deny denies", ("Deny T", "Deny R", "Allow T"), "Deny", None),
        (
            "conditional Deny and NoOpinion: only the denies",
            ("Deny R", "NoOpinion T", "Allow T"),
            None,
            {"Deny": 1},
        ),
        (
            "conditional Deny and Allow: denies and a true Allow",
            ("Deny R", "Allow T"),
            None,
            {"Deny": 1, "Allow": 1},
        ),
        ("NoOpinion without denies", ("NoOpinion T", "Allow T"), "NoOpinion", None),
        ("conditional NoOpinion and Allow", ("NoOpinion R", "Allow T"), None, {"NoOpinion": 1, "Allow": 1}),
        ("Allow and conditional Allow", ("Allow T", "Allow R"), "Allow", None),
        ("only conditional Allows", ("Allow R", "Allow R"), None, {"Allow": 2}),
        ("nothing", (), "NoOpinion", None),
        ("only conditional NoOpinions", ("NoOpinion R",), "NoOpinion", None),
        ("only conditional Denies", ("Deny R",), None, {"Deny": 1}),
    ],
    ids=lambda value: value.split(" ", 1)[0] if isinstance(value, str) else None,
)
def test_precedence_inside_one_authorizer(
    name: str, policies: tuple[str, ...], verdict: str | None, effects: dict[str, int] | None
) -> None:
    manifests = [policy(f"p{n}", words.split()[0], T if words.endswith("T") else R) for n, words in enumerate(policies)]
    answer = got(CLAIMS, *manifests)
    assert answer["verdict"] == (verdict or "Conditional"), name
    if effects is not None:
        assert answer["conditionSets"] == [{"authorizer": "policies", "effects": effects}]


@pytest.mark.parametrize(("mode", "verdict"), [("Deny", "Deny"), ("NoOpinion", "NoOpinion")])
def test_a_deny_that_fails_now_falls_to_the_failure_mode(mode: str, verdict: str) -> None:
    chain = configuration({"type": "CEL", "name": "policies", "failureMode": mode}, {"type": "RBAC", "name": "rbac"})
    answer = got(CLAIMS, chain, policy("p", "Deny", "1 / 0 == 1"), policy("a", "Allow", "true"))
    assert (answer["verdict"], answer["error"]) == (verdict, True)


# Limits ---------------------------------------------------------------------------------------------------------------


def test_a_long_disjunction_is_split_and_a_long_conjunction_packed() -> None:
    parts = [f'object.spec.f{n} == "{"x" * 60}"' for n in range(20)]
    whole = {"spec": {f"f{n}": "x" * 60 for n in range(20)}}
    split = got({**CLAIMS, "object": whole}, policy("p", "Allow", " || ".join(parts)))
    assert (split["verdict"], split["final"]) == ("Conditional", "Allow")
    assert split["conditionSets"][0]["effects"] == {"Allow": 20}
    packed = got({**CLAIMS, "object": whole}, policy("p", "Allow", " && ".join(parts)))
    assert (packed["verdict"], packed["final"]) == ("Conditional", "Allow")
    assert len(packed["conditions"][0]["condition"]) <= 1024
    assert got({**CLAIMS, "object": {"spec": {}}}, policy("p", "Allow", " && ".join(parts)))["final"] == "NoOpinion"


def test_conditions_that_do_not_fit_fall_to_the_failure_mode() -> None:
    import random

    noise = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=3000))
    answer = got(CLAIMS, policy("p", "Allow", f'object.x == "{noise}"'))
    assert (answer["verdict"], answer["error"]) == ("Deny", True)
    assert "at most 1,024" in answer["evaluationError"]


def test_more_than_128_conditions_are_joined() -> None:
    many = [policy(f"p{n}", "Allow", f"object.x == {n}") for n in range(300)]
    answer = got({**CLAIMS, "object": {"x": 299}}, *many)
    assert (answer["verdict"], answer["final"]) == ("Conditional", "Allow")
    assert answer["conditionSets"][0]["effects"]["Allow"] <= 128


def test_ids_of_long_and_strange_names_are_label_keys() -> None:
    answer = got(
        CLAIMS, policy("a" * 200, "Allow", RESIDUAL), policy("b." * 100 + "b", "Allow", RESIDUAL, namespace="dev")
    )
    assert answer["verdict"] == "Conditional"
    assert len({condition["id"] for condition in answer["conditions"]}) == 2


# Versions and the authorizer variable ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "thing", "final"), [
    ("v1", {"spec": {"foo": "baz"}}, "Allow"), ("v2", {"spec": {"bar": "baz"}}, "Allow"),
    ("v1", {"spec": {"bar": "baz"}}, "NoOpinion"), ("v3", {"spec": {"foo": "baz", "bar": "baz"}}, "NoOpinion"),
])  # fmt: skip
def test_r114_and_r115_a_version_aware_policy_fails_closed_on_a_new_version(
    version: str, thing: dict[str, Any], final: str
) -> None:
    mine = policy(
        "p",
        "Allow",
        """request.verb in ["create", "update"] && (request.apiVersion == "v1" ? object.spec.foo == "baz"
        : request.apiVersion == "v2" ? object.spec.bar == "baz" : false)""",
    )
    question = {**CLAIMS, "version": version, "object": thing}
    assert got(question, mine)["final"] == final
    if version == "v3":
        assert got(question, mine)["verdict"] == "NoOpinion"


SIGN = policy(
    "sign",
    "Deny",
    """request.resource == "certificatesigningrequests" && request.verb == "create" &&
    !authorizer.group("certificates.k8s.io").resource("signers").name(object.spec.signerName).check("sign").allowed()""",
)
SIGNERS = policy(
    "signers", "Allow", 'request.verb == "sign" && request.name == "good" && request.userInfo.username == "alice"'
)
CSRS = policy("csrs", "Allow", 'request.resource == "certificatesigningrequests"')
CSR = {
    "user": "alice",
    "verb": "create",
    "group": "certificates.k8s.io",
    "version": "v1",
    "resource": "certificatesigningrequests",
}


@pytest.mark.parametrize(
    ("signer", "user", "final"), [("good", "alice", "Allow"), ("bad", "alice", "Deny"), ("good", "bob", "Deny")]
)
def test_r111_compound_checks_ask_the_same_chain_about_the_same_user(signer: str, user: str, final: str) -> None:
    question = {**CSR, "user": user, "object": {"spec": {"signerName": signer}}}
    assert got(question, SIGN, SIGNERS, CSRS)["final"] == final


def test_a_check_without_data_is_settled_in_the_first_phase() -> None:
    mine = policy(
        "p", "Allow", 'request.verb == "list" && authorizer.group("").resource("pods").check("get").allowed()'
    )
    gets = policy("g", "Allow", 'request.verb == "get" && request.userInfo.username == "alice"')
    assert got({"user": "alice", "verb": "list", "resource": "pods"}, mine, gets)["verdict"] == "Allow"
    assert got({"user": "eve", "verb": "list", "resource": "pods"}, mine, gets)["verdict"] == "NoOpinion"


def test_r113_a_check_supports_no_conditions() -> None:
    mine = policy(
        "p", "Allow", 'request.verb == "list" && authorizer.group("").resource("pods").check("create").allowed()'
    )
    creates = policy("c", "Allow", f'request.verb == "create" && {RESIDUAL}')
    assert got({"user": "alice", "verb": "list", "resource": "pods"}, mine, creates)["verdict"] == "NoOpinion"


def test_a_policy_that_checks_itself_ends() -> None:
    mine = policy("p", "Allow", 'authorizer.group(request.apiGroup).resource("pods").check(request.verb).allowed()')
    assert got({"user": "alice", "verb": "list", "resource": "pods"}, mine)["verdict"] == "NoOpinion"


def test_service_accounts_and_paths_can_be_checked() -> None:
    mine = policy(
        "p", "Allow", 'request.verb == "list" && authorizer.serviceAccount("a", "b").path("/x").check("get").allowed()'
    )
    path = policy("x", "Allow", 'request.path == "/x" && request.userInfo.username == "system:serviceaccount:a:b"')
    assert got({"user": "alice", "verb": "list", "resource": "pods"}, mine, path)["verdict"] == "Allow"


# Index ----------------------------------------------------------------------------------------------------------------


def test_unrelated_policies_are_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    from tierwall.api.authorizers import expression

    seen: list[object] = []
    first_phase = expression.Expression.first_phase

    def spy(self: Any, request: Any, *, name_unknown: bool) -> Any:
        seen.append(self)
        return first_phase(self, request, name_unknown=name_unknown)

    monkeypatch.setattr(expression.Expression, "first_phase", spy)
    unrelated = [
        policy(f"u{n}", "Allow", f'request.userInfo.username == "u{n}" && request.verb in ["create", "get"] && {R}')
        for n in range(200)
    ]
    groups = [policy(f"g{n}", "Allow", f'"g{n}" in request.userInfo.groups && {R}') for n in range(200)]
    answer = got({**CLAIMS, "user": "u7", "groups": ["g3", "g9"]}, *unrelated, *groups)
    assert answer["conditionSets"][0]["effects"] == {"Allow": 3}
    assert len(seen) == 3


def test_wide_demands_are_still_met() -> None:
    names = ", ".join(f'"n{n}"' for n in range(40))
    mine = policy(
        "p",
        "Allow",
        f"request.userInfo.username in [{names}] && request.namespace in [{names}] && request.resource in [{names}]",
    )
    inside = {"user": "n1", "namespace": "n2", "resource": "n39", "verb": "get"}
    assert got(inside, mine)["verdict"] == "Allow"
    for key in ("user", "namespace", "resource"):
        assert got({**inside, key: "other"}, mine)["verdict"] == "NoOpinion"
