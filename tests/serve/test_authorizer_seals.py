"""The second phase over HTTP: only the whole answer, for the request that it was given to, can allow."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.authorizer_server import Served, access, claim, conditions, readable, series
from tierwall.api.wire.review import WireShape

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
        {"verb": "list"},
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
