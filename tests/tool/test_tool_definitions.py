"""AccessPolicies follow the installed definition, even when it changes and the policies do not."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tierwall.resources.crd import crd_documents
from tierwall.resources.kinds.registry import all_kinds
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import inherit, model

NAME = "xaccesspolicies.agentic.networking.x-k8s.io"
DEFINITION = next(document for document in crd_documents(all_kinds()) if document["metadata"]["name"] == NAME)
POLICY = {
    "apiVersion": "agentic.networking.x-k8s.io/v1alpha1",
    "kind": "XAccessPolicy",
    "metadata": {"name": "p", "namespace": "a"},
    "spec": {
        "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g"}],
        "action": "Allow",
        "rules": [{"name": "r", "authorization": {"type": "Inline", "mcp": {}}}],
    },
}


def changed(change: Any) -> dict[str, Any]:
    document = deepcopy(DEFINITION)
    for version in document["spec"]["versions"]:
        change(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])
    return document


def without_rules(spec: dict[str, Any]) -> None:
    del spec["rules"]


def with_other_defaults(spec: dict[str, Any]) -> None:
    mcp = spec["rules"]["items"]["properties"]["authorization"]["properties"].get("mcp")
    if mcp is not None:
        mcp["properties"]["mcpBaseProtocolMethodsOption"]["default"] = "MATCH_BASE_PROTOCOL_METHODS"


@pytest.mark.parametrize(
    ("change", "reason"), [(without_rules, 'unknown field "spec.rules"'), (with_other_defaults, "other defaults")]
)
def test_a_policy_is_read_again_when_its_definition_changes(change: Any, reason: str) -> None:
    (policy,) = load_objects([POLICY])
    known, other = (load_objects([document])[0] for document in (DEFINITION, changed(change)))
    plain = Snapshot.of([policy])
    assert not model(plain).policy(policy).closed
    same = plain.with_changes(put=[known])
    inherit(plain, same)
    assert not model(same).policy(policy).closed
    after = same.with_changes(put=[other])
    inherit(same, after)
    assert [text for text in model(after).policy(policy).closed if reason in text]
    back = after.with_changes(drop=[other])
    inherit(after, back)
    assert not model(back).policy(policy).closed
