"""Exposure: what future pods could reach."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.network_clusters import KEYS, NAMESPACES, PORTS, PROTOCOLS, VALUES, clusters
from tests.worlds.network_objects import namespace, network_policy, pod
from tests.worlds.network_snapshots import snapshot
from tierwall.core.verdict import Verdict
from tierwall.network.decide import decide
from tierwall.network.model.endpoints import NAMESPACE_NAME, Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.reach.exposure import exposure, with_stand_ins
from tierwall.network.reach.label_space import LabelBox
from tierwall.network.reach.listing import ConnectionFlow

Object = dict[str, Any]


def policy(**peer: Any) -> Object:
    ingress = {"from": [peer], "ports": [{"port": 5432}]}
    return network_policy("np", ingress, podSelector={"matchLabels": {"app": "db"}})


def lines(*objects: Object) -> list[str]:
    return [f"{entry.sources} => {entry.destinations} : {entry.ports}" for entry in exposure(snapshot(objects))]


def test_future_pods_that_could_connect_are_described_by_label() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "x"}}, "podSelector": {"matchLabels": {"app": "client"}}}
    exposed = lines(pod("shop", "db", app="db"), policy(**peer))
    assert [line for line in exposed if "=> shop/db" in line] == [
        "any pod with app=client in a namespace with team=x => shop/db : TCP 5432"
    ]


def test_a_pod_that_no_policy_protects_is_open_to_any_pod() -> None:
    exposed = lines(pod("shop", "db", app="db"), pod("shop", "web", app="web"), policy(podSelector={}))
    assert "any pod => shop/web : all" in exposed


def test_future_pods_of_an_existing_namespace_are_listed_apart_from_others() -> None:
    exposed = lines(pod("shop", "db", app="db"), policy(podSelector={"matchLabels": {"app": "client"}}))
    assert "any pod with app=client in shop => shop/db : TCP 5432" in exposed
    fence = {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "fence"},
        "spec": {
            "priority": 1,
            "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {"related": "NotSelf"}}]}],
        },
    }
    exposed = lines(pod("shop", "web"), policy(podSelector={"matchLabels": {"app": "client"}}), fence)
    assert [line for line in exposed if "=> shop/web" in line] == ["any pod in shop => shop/web : all"]


def test_without_policies_every_future_pod_reaches_everything() -> None:
    assert lines(pod("shop", "db")) == [
        "any pod => shop/db : all",
        "shop/db => any pod : all",
    ]


def test_values_that_rules_bar_and_values_that_no_rule_mentions_are_told_apart() -> None:
    barring = {"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}}
    lacking = {"podSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}
    rules = ({"from": [barring], "ports": [{"port": 9090}]}, {"from": [lacking], "ports": [{"port": 8080}]})
    exposed = lines(pod("shop", "a", app="a"), network_policy("np", *rules, podSelector={"matchLabels": {"app": "a"}}))
    assert [line for line in exposed if "=> shop/a" in line] == [
        "any pod with !app in shop => shop/a : TCP 8080,9090",
        "any pod with app,app notin (x) in shop => shop/a : TCP 9090",
    ]


def test_namespaces_alike_are_named_together() -> None:
    exposed = lines(*(pod(f"team-{number}", "web") for number in range(8)), policy(podSelector={}))
    assert "any pod => team-0/*" not in exposed
    assert any("team-0/web" in line and line.startswith("any pod =>") for line in exposed)


def test_more_sorts_than_the_limit_are_not_told_apart_in_silence() -> None:
    many = [
        network_policy(f"np-{number}", {"from": [{"podSelector": {"matchLabels": {f"key-{number}": "x"}}}]})
        for number in range(12)
    ]
    assert not with_stand_ins(snapshot((pod("default", "web"), *many))).is_complete
    assert with_stand_ins(snapshot((pod("default", "web"), *many[:4]))).is_complete


@st.composite
def newcomers(draw: st.DrawFn, existing: list[str]) -> tuple[str, dict[str, str], dict[str, str], list[Object]]:
    """A new pod: its namespace, its labels, those of the namespace if that is new, and the objects to add."""
    name = draw(st.sampled_from([*existing, *VALUES, "unheard-of"]))
    some_labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from((*VALUES, *NAMESPACES, "unheard-of")))
    labels, of_namespace = draw(some_labels), draw(some_labels)
    added = [pod(name, "newcomer", **labels)]
    if name not in existing:
        added.append(namespace(name, **of_namespace))
    return name, labels, {NAMESPACE_NAME: name, **of_namespace}, added


@settings(max_examples=examples(100))
@given(clusters(most_policies=4), st.data())
def test_a_new_pod_is_decided_like_the_hypothetical_pod_of_its_sort(objects: list[Object], data: st.DataObject) -> None:
    before = snapshot(objects)
    hypothetical = with_stand_ins(before)
    assume(hypothetical.is_complete)
    namespaces = network_model(before).namespaces
    name, labels, namespace_labels, added = data.draw(newcomers(sorted(namespaces)))
    (stand_in,) = [
        place
        for place, sort in hypothetical.pods.items()
        if (name in sort.namespaces or (name not in namespaces and not sort.namespaces))
        and any(_contains(sort, box, namespace_labels, labels) for box in sort.boxes)
    ]
    model = network_model(hypothetical.snapshot.with_changes(put=snapshot(added)))
    newcomer, same = model.pod(name, "newcomer"), model.pod(*stand_in)
    assert newcomer is not None
    assert same is not None
    for other in network_model(before).pods:
        for protocol in PROTOCOLS:
            for port in PORTS:
                of_newcomer, of_stand_in = (
                    (
                        decide(model, end, other, protocol, port).verdict,
                        decide(model, other, end, protocol, port).verdict,
                    )
                    for end in (newcomer, same)
                )
                assert of_newcomer == of_stand_in


def _contains(sort: Any, box: LabelBox, namespace_labels: dict[str, str], labels: dict[str, str]) -> bool:
    space = sort.space
    if sort.namespaces:
        return bool(space.of_pods.selector(box).matches(labels))
    of_namespace, of_pod = space.split(box)
    in_namespace = space.of_namespaces.selector(of_namespace).matches(namespace_labels)
    return bool(in_namespace and space.of_pods.selector(of_pod).matches(labels))


@settings(max_examples=examples(60))
@given(clusters(most_policies=4), st.data())
def test_the_names_of_an_entry_fit_exactly_the_new_pods_that_it_is_about(
    objects: list[Object], data: st.DataObject
) -> None:
    before = snapshot(objects)
    assume(with_stand_ins(before).is_complete)
    namespaces = network_model(before).namespaces
    name, labels, namespace_labels, added = data.draw(newcomers(sorted(namespaces)))
    model = network_model(before.with_changes(put=snapshot(added)))
    newcomer = model.pod(name, "newcomer")
    assert newcomer is not None
    in_namespace = namespace_labels if name not in namespaces else None
    entries = list(exposure(before))
    for other in model.pods:
        if other is newcomer or not other.under_policy:
            continue
        for port in PORTS:
            allowed = decide(model, newcomer, other, "TCP", port).verdict is Verdict.ALLOW
            shown = any(
                any(_fits(text, name, in_namespace, labels) for text in entry.sources.ends)
                and any(_names_pod(text, other) for text in entry.destinations.ends)
                and any(_has_port(flow, port) for flow in entry.flows)
                for entry in entries
            )
            assert shown is allowed, (str(other), port)


def _has_port(flow: ConnectionFlow, port: int) -> bool:
    return flow.verdict is Verdict.ALLOW and any(
        ports.protocol == "TCP" and ports.first <= port <= ports.last for ports in flow.ranges
    )


def _names_pod(text: str, endpoint: Endpoint) -> bool:
    return text in (str(endpoint), f"{endpoint.namespace}/*")


def _fits(text: str, name: str, new: dict[str, str] | None, labels: dict[str, str]) -> bool:
    """Whether a name such as `any pod with app=x in a or b` fits a pod; `new` are the labels of a new namespace."""
    read = re.fullmatch(r"any pod(?: with (?P<pod>.*?))?(?: in (?P<where>[^(].*))?", text)
    if read is None or (read["pod"] and not _selects(read["pod"], labels)):
        return False
    where = read["where"]
    if where in (None, "any namespace"):
        return True
    if not where.endswith("other namespace") and " namespace with " not in where:
        return name in where.split(" or ")
    return new is not None and _selects(where.partition(" with ")[2], new)


def _selects(text: str, labels: dict[str, str]) -> bool:
    for part in re.findall(r"[^,(]+(?:\([^)]*\))?", text):
        if listed := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", part):
            key, operator, values = listed.groups()
            if (labels.get(key) in values.split(",")) is (operator == "notin"):
                return False
        elif part.startswith("!"):
            if part[1:] in labels:
                return False
        elif "=" in part:
            key, _, value = part.partition("=")
            if labels.get(key) != value:
                return False
        elif part not in labels:
            return False
    return True
