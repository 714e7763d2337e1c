"""The second phase over HTTP: only the whole answer, for the request that it was given to, can allow."""

from __future__ import annotations

import copy
import itertools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.authorizer_server import KEY, Served, access, claim, conditions, readable, series
from tierwall.api.wire.review import WireShape
from tierwall.serve.authorizer.issuer import MAX_KNOWN, MAX_KNOWN_BYTES, Issuer
from tierwall.serve.authorizer.reviews import CONDITIONS, Reviews

POLICIES = (
    ("never-x", "Deny", "object.spec.x == 1"),
    ("dev", "Allow", 'object.spec.storageClassName == "dev"'),
    ("no-list", "NoOpinion", 'request.verb == "list"'),
)
CHAIN = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AuthorizationConfiguration",
    "authorizers": [
        {"type": "CEL", "name": "guard"},
        {"type": "CEL", "name": "policies"},
        {"type": "AlwaysAllow", "name": "all"},
    ],
}
SHAPES = ("conditionsChain", "conditionSetChain", "conditionalDecision")


def serve(folder: Path, shape: str) -> Served:
    wire = WireShape.KEP if shape == "conditionSetChain" else WireShape.CONDITIONS_CHAIN
    served = Served(folder, (), shape=wire)
    policies = [
        {
            "apiVersion": "tierwall.io/v1alpha1",
            "kind": "ClusterAuthorizationPolicy",
            "metadata": {"name": name},
            "spec": {"effect": effect, "expression": text, "authorizer": "guard" if effect == "Deny" else "policies"},
        }
        for name, effect, text in POLICIES
    ]
    served.write((), CHAIN, *policies)
    assert served.reload()
    return served


def ask(served: Served, shape: str, **changes: Any) -> Any:
    """Return the chain that answers a request: a list of entries in every shape."""
    more = series() if shape == "conditionalDecision" else readable()
    user, verb = changes.pop("user", "alice"), changes.pop("verb", "create")
    review = access(user, verb, attributes=changes, **more)
    answered = served.post("/authorize", review).json["status"][shape]
    return answered["union"] if shape == "conditionalDecision" else answered


def review(shape: str, chain: Any, **changes: Any) -> dict[str, Any]:
    """Return the review that sends a chain back, about a create of a claim by alice, with `changes`."""
    value = {**claim(), **changes.pop("object", {})}
    value["spec"] = {"x": 0, **value["spec"]}
    operation = changes.pop("operation", "CREATE")
    if shape != "conditionalDecision":
        back = "conditionSets" if shape == "conditionsChain" else shape
        return conditions(**{back: chain}, operation=operation, object=value)
    request = {
        "uid": "u",
        "operation": operation,
        "resource": {"group": "", "version": "v1", "resource": "persistentvolumeclaims"},
        "userInfo": {"username": "alice"},
        "namespace": "dev",
        "name": "c",
        "object": value,
        **changes,
    }
    return conditions(decision={"type": "Union", "union": chain}, admissionRequest=request)


def outcome(served: Served, body: Any) -> str:
    """Return the verdict of the second phase; a 400 is one too."""
    answer = served.post("/conditions", body)
    if answer.status == 400:
        return "400"
    assert answer.status == 200
    response = answer.json["response"]
    if "decision" in response:
        return str(response["decision"]["type"])
    return "Allow" if response["allowed"] else "Deny" if response.get("denied") else "NoOpinion"


REFUSED = ("Deny", "400")


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_whole_chain_allows_and_every_other_order_and_part_is_refused(tmp_path: Path, shape: str) -> None:
    served = serve(tmp_path, shape)
    chain = ask(served, shape)
    assert [entry["authorizerName"] for entry in chain] == ["guard", "policies", "all"]
    assert outcome(served, review(shape, chain)) == "Allow"
    assert outcome(served, review(shape, chain, object={"spec": {"storageClassName": "dev", "x": 1}})) == "Deny"
    for size in range(len(chain) + 1):
        for part in itertools.permutations(chain, size):
            if list(part) != chain:
                assert outcome(served, review(shape, list(part))) in REFUSED


def test_invented_entries_are_refused(tmp_path: Path, shape: str) -> None:
    served = serve(tmp_path, shape)
    chain = ask(served, shape)
    allowed = {"type": "Allow", "allow": {}}
    for name in ("all", "guard", "unknown", "", None):
        entry: dict[str, Any] = {"authorizerName": name} if name is not None else {}
        entry |= {"decision": allowed} if shape == "conditionalDecision" else {"allowed": True}
        for made_up in ([entry], [*chain[:1], entry], [*chain, entry], [entry, *chain]):
            # The third entry of the chain itself allows, under the name `all`.
            if made_up != chain:
                assert outcome(served, review(shape, made_up)) in REFUSED


def test_an_entry_without_its_name_is_refused(tmp_path: Path, shape: str) -> None:
    served = serve(tmp_path, shape)
    for index in range(3):
        for change in ({"authorizerName": ""}, {"authorizerName": "other"}, {"authorizerName": 3}, {}):
            chain = copy.deepcopy(ask(served, shape))
            del chain[index]["authorizerName"]
            chain[index] |= change
            assert outcome(served, review(shape, chain)) in REFUSED


@pytest.mark.parametrize(
    "changes",
    [
        {"verb": "update", "name": "c"},
        {"verb": "delete", "name": "c"},
        {"resource": "configmaps"},
        {"group": "apps", "resource": "deployments"},
        {"version": "v2"},
        {"namespace": "prod"},
        {"verb": "get"},
    ],
)
def test_a_chain_for_another_request_is_refused(tmp_path: Path, shape: str, changes: dict[str, str]) -> None:
    served = serve(tmp_path, shape)
    chain = ask(served, shape, **changes)
    verb = changes.get("verb", "create")
    if verb == "update":
        # An update may create; another name shows that it is not this one.
        assert outcome(served, review(shape, chain)) == "Allow"
        other = {"metadata": {"name": "d", "namespace": "dev"}}
        assert outcome(served, review(shape, chain, object=other, name="d")) in REFUSED
    else:
        assert outcome(served, review(shape, chain)) in REFUSED


def test_a_chain_for_another_user_is_refused_where_the_review_tells_the_user(tmp_path: Path) -> None:
    shape = "conditionalDecision"
    served = serve(tmp_path, shape)
    chain = ask(served, shape)
    for user in ({"username": "bob"}, {"username": "alice", "groups": ["g"]}, {"username": "alice", "uid": "7"}):
        assert outcome(served, review(shape, chain, userInfo=user)) in REFUSED
    assert outcome(served, review(shape, ask(served, shape, user="bob"), userInfo={"username": "bob"})) == "Allow"


@pytest.mark.parametrize(
    "changes",
    [
        {"resource": {}},
        {"resource": {"resource": 5}},
        {"operation": None},
        {"operation": "create"},
        {"namespace": 5},
        {"userInfo": "bob"},
        {"userInfo": {"username": "bob", "groups": "none"}},
    ],
)
def test_a_malformed_request_does_not_hide_who_asks(tmp_path: Path, changes: dict[str, Any]) -> None:
    shape = "conditionalDecision"
    served = serve(tmp_path, shape)
    body = review(shape, ask(served, shape), **{"userInfo": {"username": "bob"}, **changes})
    assert outcome(served, body) in REFUSED
    del body["request"]["admissionRequest"]["resource"]
    assert outcome(served, body) in REFUSED


def test_what_a_request_does_not_name_its_object_tells(tmp_path: Path) -> None:
    shape = "conditionalDecision"
    served = serve(tmp_path, shape)
    for missing in ("resource", "operation"):
        body = review(shape, ask(served, shape))
        del body["request"]["admissionRequest"][missing]
        assert outcome(served, body) == "Allow"
        body["request"]["admissionRequest"]["object"]["kind"] = "Secret"
        assert outcome(served, body) in REFUSED


def test_a_chain_expires_after_the_time_that_api_servers_may_keep_it_for(tmp_path: Path, shape: str) -> None:
    served = serve(tmp_path, shape)
    chain, began = ask(served, shape), served.issuer.clock()
    assert ask(served, shape) == chain
    served.issuer.clock = lambda: began + 330
    assert outcome(served, review(shape, chain)) == "Allow"
    assert ask(served, shape) != chain, "a new one is issued in good time"
    served.issuer.clock = lambda: began + 1000
    assert outcome(served, review(shape, chain)) == "Deny"
    assert outcome(served, review(shape, ask(served, shape))) == "Allow"


def test_the_policies_of_a_chain_are_those_of_its_seal(tmp_path: Path, shape: str) -> None:
    served = serve(tmp_path, shape)
    chain, revision = ask(served, shape), served.follower.current.revision
    served.write((("none", "Deny", "true"),), CHAIN)
    assert served.reload()
    assert outcome(served, review(shape, chain)) == "Allow"
    assert served.records()[-1]["revision"] == revision


def test_an_authorizer_that_has_left_the_chain_denies(tmp_path: Path, shape: str) -> None:
    served = serve(tmp_path, shape)
    chain = ask(served, shape)
    served.write((), {**CHAIN, "authorizers": CHAIN["authorizers"][1:]})
    assert served.reload()
    assert outcome(served, review(shape, chain)) == "Deny"


@pytest.fixture(scope="module", params=SHAPES)
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Served, str, Any]:
    shape = str(request.param)
    served = serve(tmp_path_factory.mktemp("policies"), shape)
    return served, shape, ask(served, shape)


LEAVES: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.text() | st.just([]) | st.just({})


@given(data=st.data())
def test_no_change_of_one_value_allows_or_breaks_anything(known: tuple[Served, str, Any], data: st.DataObject) -> None:
    """Replace any value inside a chain. Only descriptions and reasons, which decide nothing, may change."""
    served, shape, chain = known
    changed = copy.deepcopy(chain)
    holder: Any = changed
    path: list[Any] = []
    while isinstance(holder, dict | list) and holder:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        path.append(key)
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            holder[key] = data.draw(LEAVES)
            break
        holder = inner
    if json.dumps(changed) == json.dumps(chain) or path[-1] in ("description", "reason", "evaluationError", "allow"):
        return
    answer = served.post("/conditions", review(shape, changed))
    assert answer.status in (200, 400)
    if outcome(served, review(shape, changed)) == "Allow":
        # Another spelling of the same: every word but `NoOpinion` means Deny there.
        assert path[-1] == "failureMode"


# Answers that are known ---------------------------------------------------------------------------------------------

SEAL = re.compile(rb"[0-9a-f]{32}\.[a-z][0s][0-9a-f]{48}\.[0-9a-z]{12}")


class KnownTexts(NamedTuple):
    """A server, and texts of answers that came back to it."""

    served: Served
    shape: str
    # Of the same policies: about a claim in `dev`, in `prod`, and about a ConfigMap.
    texts: tuple[bytes, ...]

    def verdict(self, text: bytes, **changes: Any) -> str:
        """Return the verdict on a text, which must be the same for a server that does not know any."""
        body = json.dumps(review(self.shape, "CHAIN", **changes)).encode().replace(b'"CHAIN"', text)
        shape = WireShape.KEP if self.shape == "conditionSetChain" else WireShape.CONDITIONS_CHAIN
        anew = Reviews(self.served.follower, Issuer(KEY), shape=shape).answer(CONDITIONS, body)
        answer = self.served.post("/conditions", body)
        assert (answer.status, answer.body) == (anew.status, anew.body)
        return outcome(self.served, body)

    @property
    def seals(self) -> tuple[bytes, ...]:
        return tuple(SEAL.findall(text)[0] for text in self.texts)


PROD = {"object": {"metadata": {"name": "c", "namespace": "prod"}}, "namespace": "prod"}


@pytest.fixture(scope="module", params=SHAPES)
def known_texts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KnownTexts:
    shape = str(request.param)
    served = serve(tmp_path_factory.mktemp("policies"), shape)
    asked: tuple[dict[str, str], ...] = ({}, {"namespace": "prod"}, {"resource": "configmaps"})
    known = KnownTexts(served, shape, tuple(json.dumps(ask(served, shape, **each)).encode() for each in asked))
    for text in known.texts:
        known.verdict(text)
    return known


def test_a_seal_on_a_known_text_counts_for_its_own_request_alone(known_texts: KnownTexts) -> None:
    text, other = known_texts.texts[:2]
    seal, other_seal = known_texts.seals[:2]
    assert other == text.replace(seal, other_seal), "only the seal tells them apart"
    assert known_texts.verdict(text) == known_texts.verdict(other, **PROD) == "Allow"
    assert known_texts.verdict(text, **PROD) == known_texts.verdict(other) == "Deny"
    mac, marks, revision = seal.split(b".")
    other_mac, other_marks, _ = other_seal.split(b".")
    for made_up in (
        b".".join((mac, other_marks, revision)),
        b".".join((other_mac, marks, revision)),
        b".".join((mac, marks, b"0" * 12)),
        b".".join((mac, b"u" + marks[1:], revision)),
        b".".join((mac, marks[:2] + b"ffffffff" + marks[10:], revision)),
    ):
        assert known_texts.verdict(text.replace(seal, made_up)) == "Deny"


def test_a_seal_elsewhere_in_a_known_text_makes_no_difference(known_texts: KnownTexts) -> None:
    text, seal = known_texts.texts[0], known_texts.seals[0]
    start = text.index(seal)
    escaped = b"".join((text[:start], b"\\u%04x" % seal[0], text[start + 1 :]))
    assert known_texts.verdict(escaped) == "Allow", "the same id in other letters"
    described = escaped.replace(b'"type"', b'"description": "%s.x", "type"' % seal)
    assert known_texts.verdict(described) == "Allow", "descriptions are not sealed"
    assert known_texts.verdict(described.replace(seal, known_texts.seals[1])) == "Deny"
    assert known_texts.verdict(text.replace(b"object.spec", b"%s.object.spec" % seal)) == "Deny"


@given(data=st.data())
def test_no_splice_of_known_texts_is_judged_in_another_way_than_anew(
    known_texts: KnownTexts, data: st.DataObject
) -> None:
    """Put parts of known texts and of their seals into each other: memory makes no difference to any of them."""
    texts, seals = known_texts.texts, known_texts.seals
    text = data.draw(st.sampled_from(texts))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 200)))
        pieces = (b"", b'"', b'" ', *seals, *(b'"%s.' % seal for seal in seals), text[start:end], text[:start])
        match data.draw(st.sampled_from(("splice", "one seal", "all seals"))):
            case "splice":
                text = text[:start] + data.draw(st.sampled_from(pieces)) + text[end:]
            case "one seal":
                text = SEAL.sub(data.draw(st.sampled_from(seals)), text, count=1)
            case _:
                text = SEAL.sub(data.draw(st.sampled_from(seals)), text)
    known_texts.verdict(text)


def test_long_texts_are_not_remembered_and_the_memory_is_bounded(tmp_path: Path) -> None:
    served = Served(tmp_path, (("dev", "Allow", "object.spec.class == request.userInfo.username"),))
    shape = "conditionsChain"
    for number in range(MAX_KNOWN + 2):
        assert outcome(served, review(shape, ask(served, shape, user=f"u{number}"))) == "NoOpinion"
    assert len(served.issuer._known) == 2
    chain = ask(served, shape, user="long")
    chain[0]["conditions"][0]["description"] = "x" * MAX_KNOWN_BYTES
    assert outcome(served, review(shape, chain)) == "NoOpinion"
    assert len(served.issuer._known) == 2
