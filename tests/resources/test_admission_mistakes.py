"""Hints for people who come from NetworkPolicy to the administrators' policies, and back."""

from __future__ import annotations

from typing import Any

import pytest

from tierwall.resources.admission import admit
from tierwall.resources.kinds.registry import all_kinds, read_data
from tierwall.resources.schema import Schema

Object = dict[str, Any]
EVERYBODY: Object = {"namespaces": {}}
DENY: Object = {"action": "Deny", "from": [EVERYBODY]}


MINIMAL: dict[str, tuple[str, Object]] = {
    "AdminNetworkPolicy": ("policy.networking.k8s.io/v1alpha1", {"priority": 1, "subject": EVERYBODY}),
    "BaselineAdminNetworkPolicy": ("policy.networking.k8s.io/v1alpha1", {"subject": EVERYBODY}),
    "ClusterNetworkPolicy": (
        "policy.networking.k8s.io/v1alpha2",
        {"tier": "Admin", "priority": 1, "subject": EVERYBODY},
    ),
    "NetworkPolicy": ("networking.k8s.io/v1", {"podSelector": {}}),
}


def hints(kind: str, **spec: Any) -> list[str]:
    version, whole = MINIMAL[kind]
    metadata = {"name": "default"}
    document = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {**whole, **spec}}
    return [problem.hint for problem in admit(document) if problem.refuses]


@pytest.mark.parametrize(
    ("kind", "spec", "hint"),
    [
        ("AdminNetworkPolicy", {"subject": {}}, "write `subject: {namespaces: {}}` for all pods"),
        ("AdminNetworkPolicy", {"ingress": [DENY | {"from": [{"namespaces": {"related": "Other"}}]}]}, "`NotSelf`"),
        ("AdminNetworkPolicy", {"ingress": [DENY | {"ports": [{"port": 80}]}]}, "write `portNumber: {port: 80"),
        ("AdminNetworkPolicy", {"ingress": [DENY | {"from": [{"podSelector": {}}]}]}, "write `pods: {namespaceSelec"),
        ("AdminNetworkPolicy", {"egress": [{"action": "Deny", "to": [{"ipBlock": {}}]}]}, "write `networks: ["),
        ("AdminNetworkPolicy", {"ingress": [DENY | {"from": [{"ipBlock": {}}]}]}, "use a NetworkPolicy"),
        ("AdminNetworkPolicy", {"ingress": [DENY | {"action": "Accept"}]}, "write `Allow`"),
        ("AdminNetworkPolicy", {"podSelector": {}}, "write `subject: {pods: "),
        ("BaselineAdminNetworkPolicy", {"priority": 1}, "leave it out"),
        ("BaselineAdminNetworkPolicy", {"ingress": [DENY | {"action": "Pass"}]}, "no tier is below the baseline"),
        ("ClusterNetworkPolicy", {"tier": None}, "write `tier: Admin` or `tier: Baseline`"),
        ("ClusterNetworkPolicy", {"ingress": [DENY | {"action": "Allow"}]}, "write `Accept`"),
        ("ClusterNetworkPolicy", {"ingress": [DENY | {"ports": [{"port": 80}]}]}, "write `protocols: [{tcp: "),
        ("NetworkPolicy", {"subject": EVERYBODY}, "write `podSelector: …`"),
        ("NetworkPolicy", {"ingress": [{"action": "Deny"}]}, "every rule allows"),
        ("NetworkPolicy", {"ingress": [{"from": [EVERYBODY]}]}, "write `namespaceSelector: …`"),
        ("NetworkPolicy", {"ingress": [{"ports": [{"portNumber": {"port": 80}}]}]}, "write `port: 80`"),
        ("NetworkPolicy", {"egress": [{"from": []}]}, "rules with `from` belong under `ingress`"),
        ("NetworkPolicy", {"podSelector": {"app": "web"}}, "put labels below `matchLabels`"),
    ],
)
def test_a_common_mistake_gets_the_hint_that_helps(kind: str, spec: Object, hint: str) -> None:
    (shown,) = hints(kind, **spec)
    assert hint in shown


def test_a_misspelled_field_gets_the_nearest_one() -> None:
    assert hints("NetworkPolicy", ingres=[]) == ["did you mean `ingress`?"]


def test_a_size_gets_no_hint_about_the_form() -> None:
    assert hints(
        "AdminNetworkPolicy", subject={"namespaces": {}, "pods": {"namespaceSelector": {}, "podSelector": {}}}
    ) == [""]


def test_hints_are_about_places_that_exist() -> None:
    kinds = {kind.kind: kind.schema for kind in all_kinds() if kind.kind.endswith("NetworkPolicy")}
    kinds |= {"*": kinds["AdminNetworkPolicy"], "NetworkPolicy": kinds["NetworkPolicy"]}
    for kind, places in read_data("mistakes.json").items():
        for place in places:
            *parents, _ = place.partition("=")[0].split(".")
            assert any(exists(kinds[kind], parents, way) for way in ("ingress", "egress")), (kind, place)


def exists(schema: Schema, names: list[str], direction: str) -> bool:
    peers = "from" if direction == "ingress" else "to"
    for name in names:
        name = {"rules": direction, "peers": peers}.get(name, name)
        child = schema.at(name)
        if child is None:
            return False
        schema = child.items or child
    return True


def test_a_relation_that_does_not_exist_is_not_said_to_be_accepted() -> None:
    version, spec = MINIMAL["AdminNetworkPolicy"]
    for word, codes in (("Other", ["TW108"]), ("self", ["TW109"]), ("Self", [])):
        ingress = [DENY | {"from": [{"namespaces": {"related": word}}]}]
        document = {"apiVersion": version, "kind": "AdminNetworkPolicy", "metadata": {"name": "a"}}
        problems = admit({**document, "spec": {**spec, "ingress": ingress}})
        assert [problem.code for problem in problems] == codes


def test_what_yaml_does_not_read_as_text_is_put_in_quotes() -> None:
    assert hints("AdminNetworkPolicy", ingress=[DENY | {"name": True}]) == ["put it in quotes"]
    labels = {"matchLabels": {"app": 1}}
    assert hints("NetworkPolicy", podSelector=labels) == ["put it in quotes"]
