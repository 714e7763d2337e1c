"""The authorizer allows reads whose selectors imply the conditions, whoever asks: docs/authorizer.md#reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.labs.authorizer_server import Served, access, readable, series

POLICIES = (("own-pods", "Allow", 'request.resource == "pods" && object.metadata.labels.owner == "alice"'),)
CALLERS: tuple[dict[str, Any], ...] = ({}, readable(), series())


@pytest.fixture(params=[False, True], ids=["plain", "bridged"])
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Served:
    return Served(tmp_path, POLICIES, bridged=request.param)


def status(served: Served, caller: dict[str, Any], verb: str = "list", *owners: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {"resource": "pods"}
    if owners:
        attributes["labelSelector"] = {"requirements": [{"key": "owner", "operator": "In", "values": list(owners)}]}
    answer = served.post("/authorize", access(verb=verb, attributes=attributes, **caller))
    assert answer.status == 200
    value: dict[str, Any] = answer.json["status"]
    return value


@pytest.mark.parametrize("caller", CALLERS, ids=["plain", "chain", "series"])
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_read_is_allowed_or_refused_but_never_conditional(served: Served, caller: dict[str, Any], verb: str) -> None:
    allowed = status(served, caller, verb, "alice")
    assert allowed["allowed"] is True
    assert allowed["reason"].startswith("the selectors show nothing that the conditions do not allow: allowed only if")
    for owners in ((), ("bob",), ("alice", "bob")):
        refused = status(served, caller, verb, *owners)
        assert refused.keys() == {"allowed", "reason"}
        assert refused["allowed"] is False
        assert "it would show {" in refused["reason"]
        assert refused["reason"].endswith("with -l owner=alice it would be allowed")


def test_the_log_has_the_decision(served: Served) -> None:
    status(served, {}, "list", "alice")
    status(served, {}, "list", "bob")
    allowed, refused = served.records()
    assert (allowed["verdict"], allowed["authorizer"]) == ("Allow", "policies")
    assert refused["verdict"] == "NoOpinion"


def test_a_change_of_policies_counts_at_once(served: Served) -> None:
    assert status(served, {}, "list", "alice")["allowed"] is True
    served.write([("own-pods", "Allow", 'request.resource == "pods" && object.metadata.labels.owner == "bob"')])
    served.reload()
    assert status(served, {}, "list", "alice")["allowed"] is False
    assert status(served, {}, "list", "bob")["allowed"] is True
