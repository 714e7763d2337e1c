"""Reads under conditions, case by case: docs/semantics.md#conditional-reads and docs/api.md#reads."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import tierwall
from tests.reference.reads import selects
from tests.worlds.api_fakes import policies_text
from tierwall import ApiQuestion, Verdict, World
from tierwall.api.reads import proof
from tierwall.api.reads.kept_proofs import KeptProofs
from tierwall.api.reads.selector_text import (
    ReadSelector,
    SelectorTextError,
    read_field_selector,
    read_label_selector,
)
from tierwall.api.wire.review import DecodedReview, read_access_review
from tierwall.core.labels import Requirement
from tierwall.logic.conflict_driven import ConflictDrivenSolver

OWN = 'object.metadata.labels.owner == "alice"'


def world(*policies: tuple[str, str], objects: tuple[dict[str, Any], ...] = ()) -> World:
    """Policies by effect and expression, and other objects."""
    made = [(f"p{number}", *each) for number, each in enumerate(policies)]
    return tierwall.loads(policies_text(made, *objects))


def question(labels: str = "", fields: str = "", verb: str = "list", **more: Any) -> ApiQuestion:
    selectors = {
        "label_selector": [each._asdict() for each in read_label_selector(labels)],
        "field_selector": [each._asdict() for each in read_field_selector(fields)],
    }
    given = {key: value for key, value in selectors.items() if value}
    return ApiQuestion(**{"user": "alice", "verb": verb, "version": "v1", "resource": "pods", **given, **more})


def verdict(asked: World, *selectors: str, **more: Any) -> str:
    return str(asked.ask(question(*selectors, **more)).verdict)


def test_a_list_is_allowed_if_its_selectors_imply_the_condition() -> None:
    reads = world(("Allow", OWN))
    assert verdict(reads, "owner=alice") == "Allow"
    assert verdict(reads, "owner in (alice),app") == "Allow"
    assert verdict(reads, "owner=alice", conditions="") == "Allow"
    for selector in ("", "owner", "owner!=bob", "owner in (alice,bob)", "other=alice"):
        assert verdict(reads, selector) == "NoOpinion"
        assert verdict(reads, selector, conditions="") == "NoOpinion"


def test_a_refusal_tells_an_object_and_a_selector() -> None:
    reads = world(("Allow", OWN))
    refused = reads.ask(question("owner in (alice,bob),app=web"))
    labels = [("owner", "In", ("alice", "bob")), ("app", "In", ("web",))]
    witness: Any = refused.detail.witness
    assert selects(labels, [], witness)
    assert witness["metadata"]["labels"]["owner"] == "bob"
    joined = (Requirement("app", "In", ("web",)), *read_label_selector("owner=alice"))
    assert refused.detail.suggestion == ReadSelector(joined)
    assert refused.to_dict()["suggestion"] == {"labelSelector": "app=web,owner=alice", "fieldSelector": ""}
    assert "with -l app=web,owner=alice it would be allowed" in refused.detail.reason


def test_what_contradicts_itself_shows_nothing() -> None:
    reads = world(("Allow", OWN))
    assert verdict(reads, "x=1,x=2") == "Allow"
    assert verdict(reads, "x,!x") == "Allow"
    assert verdict(reads, "", "spec.nodeName=a,spec.nodeName=b") == "Allow"
    assert verdict(reads, "", "spec.foo=a,spec.foo=b") == "NoOpinion", "pods do not select by this"
    # But nobody is allowed what no policy grants at all.
    assert verdict(world(("Deny", OWN)), "x,!x") == "Deny"
    refused = world(("Deny", OWN)).ask(question("x,!x"))
    assert "nothing allows it under any condition" in refused.detail.reason
    assert verdict(world(("Deny", OWN), ("Allow", "true")), "x,!x") == "Allow"


def test_deny_beats_what_selectors_allow_and_an_error_is_never_an_allow() -> None:
    guarded = world(("Allow", OWN), ("Deny", 'object.metadata.labels.secret == "yes"'))
    assert verdict(guarded, "owner=alice") == "Deny", "without the label, the Deny fails"
    assert verdict(guarded, "owner=alice,secret=no") == "Allow"
    assert verdict(guarded, "owner=alice,secret") == "Deny"
    withheld = world(("Allow", OWN), ("NoOpinion", 'object.metadata.labels[?"x"].hasValue()'))
    assert verdict(withheld, "owner=alice") == "NoOpinion"
    assert verdict(withheld, "owner=alice,!x") == "Allow"


def test_authorizers_after_a_condition_count() -> None:
    chain = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [{"type": "CEL", "name": "policies"}, {"type": "AlwaysAllow", "name": "rest"}],
    }
    denied = world(("Deny", 'has(object.metadata.labels) && "secret" in object.metadata.labels'), objects=(chain,))
    assert verdict(denied, "!secret") == "Allow"
    assert verdict(denied, "x=1") == "Deny"


def test_a_deletecollection_stays_conditional_unless_it_is_implied() -> None:
    deletes = world(("Allow", 'oldObject.metadata.labels.owner == "alice"'))
    assert verdict(deletes, "owner=alice", verb="deletecollection") == "Allow"
    assert verdict(deletes, "owner=bob", verb="deletecollection") == "Conditional"
    assert verdict(deletes, verb="deletecollection") == "Conditional"
    read = world(("Allow", OWN))
    assert verdict(read, "owner=alice", verb="deletecollection") == "Allow"
    opposed = world(("Allow", OWN), ("Deny", 'oldObject != null && oldObject.metadata.name != "x"'))
    assert verdict(opposed, "owner=alice", verb="deletecollection") == "Conditional"


@pytest.mark.parametrize("other", ["oldObject == null", 'operation != "DELETE"', "!has(oldObject.metadata)"])
def test_an_allow_for_what_is_no_deletion_allows_no_deletecollection(other: str) -> None:
    allows = world(("Allow", f'{other} || oldObject.metadata.labels.owner == "alice"'))
    assert verdict(allows, "owner=bob", verb="deletecollection") == "Conditional"
    assert verdict(allows, "owner=alice", verb="deletecollection") == "Allow"


def test_a_field_that_is_not_there_has_the_text_of_its_zero() -> None:
    reads = world(("Allow", 'object.?spec.?nodeName.orValue("") == "" && !object.?spec.?hostNetwork.orValue(false)'))
    assert verdict(reads, "", "spec.nodeName=,spec.hostNetwork=false") == "Allow"
    assert verdict(reads, "", "spec.nodeName=") == "NoOpinion"


def test_a_custom_resource_selects_by_the_fields_of_its_version() -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"color": {"type": "string"}}}}}
    versions = [
        {"name": name, "served": True, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}, **more}
        for name, more in (("v1", {"selectableFields": [{"jsonPath": ".spec.color"}]}), ("v2", {}))
    ]
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "shirts.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "shirts", "singular": "shirt", "kind": "Shirt", "listKind": "ShirtList"},
            "versions": versions,
        },
    }
    reads = world(("Allow", 'object.spec.color == "red"'), objects=(definition,))
    shirts = {"group": "example.com", "resource": "shirts"}
    assert verdict(reads, "", "spec.color=red", **shirts) == "Allow"
    assert verdict(reads, "", "spec.color=red", **{**shirts, "version": "v2"}) == "NoOpinion"
    assert verdict(reads, "", "spec.color=blue", **shirts) == "NoOpinion"
    (widest,) = reads.widest(question(**shirts)).selectors
    assert widest.options == "--field-selector spec.color=red"


def custom(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """Define a resource that selects by the properties of its spec."""
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    selected = [{"jsonPath": f".spec.{field}"} for field in properties]
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": name, "singular": name[:-1], "kind": name[:-1].title()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{name}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": names,
            "versions": [{**version, "selectableFields": selected}],
        },
    }


@pytest.mark.parametrize("number", ["7", str(10**15), str(10**18), str(2**63 - 1), str(-(2**63))])
def test_integers_of_any_size_are_selected(number: str) -> None:
    reads = world(("Allow", "object.spec.size == 5"), objects=(custom("boxes", size={"type": "integer"}),))
    boxes = {"group": "example.com", "resource": "boxes"}
    assert verdict(reads, "", "spec.size=5", **boxes) == "Allow"
    assert verdict(reads, "", f"spec.size={number}", **boxes) == "NoOpinion"
    assert verdict(reads, "", "spec.size=05", **boxes) == "Allow", "no integer is written like this"


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a\x7fb"])
def test_selectors_that_cannot_be_printed_are_not_told(text: str) -> None:
    condition = f"object.spec.color == {json.dumps(text)} || object.metadata.labels.owner == 'alice'"
    reads = world(("Allow", condition), objects=(custom("shirts", color={"type": "string"}),))
    shirts = {"group": "example.com", "resource": "shirts"}
    assert [str(each) for each in reads.widest(question(**shirts)).selectors] == ["-l owner=alice"]
    named = world(
        ("Allow", "object.metadata.labels.owner == 'alice'"), objects=(custom("shirts", color={"type": "string"}),)
    )
    refused = named.ask(question("", f"spec.color={text}", **shirts))
    assert str(refused.detail.suggestion) == "-l owner=alice"


def test_the_search_for_a_selector_ends_at_a_limit_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    solve = ConflictDrivenSolver.solve

    def counted(self: ConflictDrivenSolver, *given: Any) -> bool | None:
        asked.append(1)
        return solve(self, *given)

    monkeypatch.setattr(ConflictDrivenSolver, "solve", counted)
    reads = world(*(("Allow", f'object.metadata.labels.k{number} == "u{number}"') for number in range(120)))
    refused = reads.ask(question("owner=alice"))
    assert refused.detail.witness == {"metadata": {"name": "a", "labels": {"owner": "alice"}}}
    assert reads.widest(question()).why == "the limit of work is reached"
    assert 100 < len(asked) < 4_000


def test_the_namespace_and_the_name_of_a_request_fix_theirs() -> None:
    reads = world(("Allow", 'object.metadata.namespace == "dev" && object.metadata.name == "a"'))
    assert verdict(reads, "", "metadata.name=a", namespace="dev", name="a") == "Allow"
    assert verdict(reads, "", "metadata.name=a", namespace="prod", name="a") == "NoOpinion"
    assert verdict(reads, "", "metadata.namespace=dev,metadata.name=a") == "Allow"


MANY_TESTS = " && ".join(f'object.metadata.labels.a.contains("{letter}y")' for letter in "abcdefghijklm")


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("object.spec.replicas + 1 == 2", "+ with a value that is not known"),
        ('authorizer.group("").resource("pods").check("get").allowed() && object.metadata.name == "a"', "`authorizer`"),
        (MANY_TESTS, "so many tests on one string"),
    ],
)
def test_what_cannot_be_proved_is_refused_and_says_so(expression: str, why: str) -> None:
    refused = world(("Allow", expression)).ask(question("a=b"))
    assert refused.verdict is Verdict.NO_OPINION
    assert f"{why} cannot be part of a proof" in refused.detail.reason or refused.detail.witness is not None


def test_requirements_that_no_api_server_sends_only_widen() -> None:
    reads = world(("Allow", OWN))
    odd: tuple[dict[str, Any], ...] = (
        {"key": "owner", "operator": "In", "values": []},
        {"key": "owner", "operator": "Exists", "values": ["alice"]},
        {"key": "owner", "operator": "Gt", "values": ["1"]},
        {"key": "owner", "operator": "In", "values": ["\N{SNOWMAN}"]},
    )
    for requirement in odd:
        asked = ApiQuestion(user="alice", verb="list", version="v1", resource="pods", label_selector=[requirement])
        assert reads.ask(asked).verdict is Verdict.NO_OPINION, requirement


@pytest.mark.parametrize(
    ("labels", "fields", "key"),
    [
        (("In", "\N{SNOWMAN}"), (), "owner"),
        (("In", "y" * 64), (), "owner"),
        (("In", "a b"), (), "owner"),
        ((), ("spec.host", "n1"), "spec.host"),
        ((), ("spec.nodeName", "\N{SNOWMAN}"), "spec.nodeName"),
    ],
)
def test_an_object_that_ignored_requirements_leave_out_is_not_told(
    labels: tuple[str, ...], fields: tuple[str, ...], key: str
) -> None:
    """They only widen what is proved, but the object would not be shown."""
    asked = question(namespace="dev")
    if labels:
        requirement: dict[str, Any] = {"key": "owner", "operator": labels[0], "values": [labels[1]]}
        asked = msgspec.structs.replace(asked, label_selector=[requirement])
    else:
        requirement = {"key": fields[0], "operator": "In", "values": [fields[1]]}
        asked = msgspec.structs.replace(asked, field_selector=[requirement])
    refused = world(("Allow", OWN)).ask(asked).detail
    assert refused.witness is None
    assert f"; what the selector says about `{key}` is ignored; with -l owner=alice it would" in refused.reason
    left_out = {**requirement, "operator": "NotIn"}
    if labels:
        refused = world(("Allow", OWN)).ask(msgspec.structs.replace(asked, label_selector=[left_out])).detail
        assert refused.witness == {"metadata": {"name": "a", "namespace": "dev"}}


def test_a_policy_that_asks_for_too_much_fails_alone() -> None:
    reads = world(("Allow", MANY_TESTS.replace("labels.a", "labels.owner")), ("Allow", OWN), ("Allow", "1 / 0 == 1"))
    assert verdict(reads, "owner=alice") == "Allow"
    refused = reads.ask(question("owner=bob")).detail
    assert refused.witness == {"metadata": {"name": "a", "labels": {"owner": "bob"}}}
    closed = world(("Deny", MANY_TESTS.replace("labels.a", "labels.owner")), ("Allow", OWN))
    assert verdict(closed, "owner=alice") == "Deny", "a Deny that fails denies"


def test_the_same_question_again_asks_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = world(("Allow", OWN))
    first = reads.ask(question("owner=bob,app")).detail
    monkeypatch.setattr(ConflictDrivenSolver, "solve", lambda *_: pytest.fail("it is known already"))
    again = reads.ask(question("owner=carol,app,team notin (x)")).detail
    assert first.witness == {"metadata": {"name": "a", "labels": {"owner": "bob", "app": "x"}}}
    assert again.witness == {"metadata": {"name": "a", "labels": {"owner": "carol", "app": "x"}}}


def test_a_solver_that_has_learned_much_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ConflictDrivenSolver] = []

    def make() -> ConflictDrivenSolver:
        made.append(ConflictDrivenSolver())
        return made[-1]

    monkeypatch.setattr(proof, "ConflictDrivenSolver", make)
    reads = world(("Allow", 'object.metadata.labels.owner == "starts-anew"'))
    assert verdict(reads, "owner=starts-anew") == "Allow"
    (engine,) = made
    engine.learned = proof.MAX_LEARNED + 1
    assert verdict(reads, "owner=starts-anew,x") == "Allow"
    assert verdict(reads, "owner=bob") == "NoOpinion"
    assert len(made) == 2


class Stone(msgspec.Struct):
    """Something of a size."""

    size: int


def test_proofs_are_kept_as_far_as_their_size_allows() -> None:
    kept: KeptProofs[Stone] = KeptProofs(10)
    first = kept.get("a", lambda: Stone(4))
    assert kept.get("a", lambda: Stone(1)) is first
    kept.get("b", lambda: Stone(4))
    kept.get("a", lambda: Stone(1))
    kept.get("c", lambda: Stone(4))
    assert kept.get("a", lambda: Stone(1)) is first, "the one that was used last is not the first to go"
    assert kept.size == 8
    assert kept.get("b", lambda: Stone(1)).size == 1
    kept.get("d", lambda: Stone(100))
    assert kept.size == 100, "the last one stays, however large"
    kept.get("e", lambda: Stone(1))
    assert kept.size == 1
    kept.clear()
    assert kept.size == 0


def test_a_review_without_its_selectors_is_refused() -> None:
    """`rawSelector` and unknown operators are dropped when a review is read, which only widens the request."""
    attributes = {"verb": "list", "resource": "pods", "labelSelector": {"rawSelector": "owner=alice"}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    spec = {"user": "alice", "resourceAttributes": attributes}
    read = read_access_review(msgspec.convert({**review, "spec": spec}, DecodedReview))
    assert read.attributes.label_selector == ()


def test_the_widest_selectors_of_one_who_needs_none_or_can_have_none() -> None:
    assert world(("Allow", "true")).widest(question()).selectors == (ReadSelector(),)
    assert world().widest(question()).selectors == ()
    with pytest.raises(tierwall.InputError, match="list, watch or deletecollection"):
        world().widest(question(verb="get"))


@pytest.mark.parametrize("text", ["a=b,c!=d,e in (f,g),h notin (i),j,!k", "a=", "example.com/a"])
def test_selectors_are_read_as_they_are_written(text: str) -> None:
    read = read_label_selector(text)
    assert read_label_selector(ReadSelector(read).label_selector) == read


@pytest.mark.parametrize(
    "text", ["((", "a=b=c", "a b", "a>1", "a in b", "-a", "a=b c", "a in (b", "=", "a=" + "x" * 64]
)
def test_what_is_not_a_selector_is_refused(text: str) -> None:
    with pytest.raises(SelectorTextError):
        read_label_selector(text)


def test_field_selectors_have_escapes() -> None:
    (requirement,) = read_field_selector("a.b=c\\,d\\=e\\\\f")
    assert requirement == Requirement("a.b", "In", ("c,d=e\\f",))
    assert ReadSelector((), (Requirement(*requirement),)).field_selector == "a.b=c\\,d\\=e\\\\f"
    with pytest.raises(SelectorTextError):
        read_field_selector("a.b")
