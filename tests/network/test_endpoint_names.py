"""The name of a set of endpoints is true of all of it and of nothing else. A short reference reads names back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.network_clusters import CIDRS
from tests.worlds.network_snapshots import snapshot
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel
from tierwall.network.reach import naming
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.naming import EndpointNames, NamedEndpoints
from tierwall.network.reach.spaces import mask_of
from tierwall.values.addresses import Block, parse_address, parse_cidr

Object = dict[str, Any]
KEYS = ("app", "tier", "example.org/part")
VALUES = ("a", "b", "c", "d", "e", "f")


def namespace(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def pod(place: str, name: str, labels: dict[str, str], **spec: Any) -> Object:
    metadata = {"name": name, "namespace": place, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [], **spec}}


def policy(place: str, **selectors: str) -> Object:
    """A policy that tells pods apart by these labels, and its namespace from all others."""
    spec = {"podSelector": {"matchLabels": selectors}, "ingress": [{"from": [{"podSelector": {}}]}]}
    metadata = {"name": "-".join(("p", *selectors.values())), "namespace": place}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def by_labels_of_namespaces(*values: str) -> Object:
    """A policy that tells namespaces apart by `team`."""
    peers = [{"namespaces": {"matchLabels": {"team": value}}} for value in values]
    spec = {"priority": 1, "subject": {"namespaces": {}}, "ingress": [{"action": "Allow", "from": peers}]}
    group = "policy.networking.k8s.io/v1alpha1"
    return {"apiVersion": group, "kind": "AdminNetworkPolicy", "metadata": {"name": "teams"}, "spec": spec}


# The reference: what a name means, by the labels of all pods.


def meant(named: NamedEndpoints, pods: tuple[Endpoint, ...]) -> set[str]:
    """Return the pods that a name means."""
    sets, excepts, ends = ({p for name in part for p in _members(name, pods)} for part in _parts(named))
    return sets - excepts | ends


def _parts(named: NamedEndpoints) -> tuple[tuple[str, ...], ...]:
    return named.all, named.excepts, named.ends


def _members(name: str, pods: tuple[Endpoint, ...]) -> Iterator[str]:
    where, slash, what = _divide(name)
    numbered = re.fullmatch(r"(.*-)\[(\d+)-(\d+)\]", what)
    numbers = range(int(numbered[2]), int(numbered[3]) + 1) if numbered else ()
    run = {f"{numbered[1]}{number}" for number in numbers} if numbered else set()
    for each in pods:
        workload = each.workload is not None and what == f"{each.workload.name}[{each.workload.kind}]"
        is_inside = slash and _selects(where, each.namespace, each.namespace_labels)
        selected = what == "*" or (what.startswith("[") and _selects(what, each.name, each.labels))
        if (
            name == "*"
            or (is_inside and (workload or selected or each.name in {what, *run}))
            or (name == "host-network pods" and not each.under_policy)
        ):
            yield str(each)


def _divide(name: str) -> tuple[str, str, str]:
    if name.startswith("["):
        where, bracket, what = name.partition("]/")
        return where + bracket[:1], "/", what
    return name.partition("/")


def _selects(text: str, name: str, labels: Any) -> bool:
    if not text.startswith("["):
        return text in ("*", name)
    return all(_holds(part, labels) for part in re.split(r",(?![^(]*\))", text[1:-1]))


def _holds(text: str, labels: Any) -> bool:
    if match := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", text):
        return (labels.get(match[1]) in match[3].split(",")) is (match[2] == "in")
    if "=" in text:
        key, _, value = text.partition("=")
        return bool(labels.get(key) == value)
    return text.removeprefix("!") in labels if not text.startswith("!") else text[1:] not in labels


@st.composite
def worlds(draw: st.DrawFn) -> list[Object]:
    """Pods with labels that policies look at, and values that they do not mention."""
    places = [f"n{number}" for number in range(draw(st.integers(1, 8)))]
    objects: list[Object] = [by_labels_of_namespaces(*draw(st.lists(st.sampled_from(VALUES), max_size=4)))]
    labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3)
    for place in places:
        team = draw(st.sampled_from((*VALUES, "")))
        objects.append(namespace(place, **({"team": team} if team else {})))
        if draw(st.booleans()):
            objects.append(policy(place, **draw(labels)))
        for number in range(draw(st.integers(0, 6))):
            on_host = {"hostNetwork": True} if draw(st.integers(0, 9)) == 0 else {}
            objects.append(pod(place, draw(st.sampled_from((f"p-{number}", f"q{number}"))), draw(labels), **on_host))
    if draw(st.booleans()):
        template = {"metadata": {"labels": draw(labels)}, "spec": {"containers": []}}
        spec = {"replicas": 2, "template": template}
        metadata = {"name": "w", "namespace": places[0]}
        objects.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    return objects


@settings(max_examples=examples(400))
@given(worlds(), st.data())
def test_a_name_means_exactly_the_set_that_it_names(objects: list[Object], data: st.DataObject) -> None:
    refine = data.draw(st.sampled_from((None, id)))  # by `id`, each pod is a class
    classes = EndpointClasses(NetworkModel(snapshot(objects)), refine)
    subsets = st.integers(0, classes.everybody)
    pods = EndpointNames(classes).pods
    mask = data.draw(subsets) & data.draw(subsets) if data.draw(st.booleans()) else pods & ~data.draw(subsets)
    possible = data.draw(st.sampled_from((-1, classes.under_policy)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(naming, "FEW", data.draw(st.integers(0, 4)))
        patch.setattr(naming, "MANY", 4)
        names = EndpointNames(classes)
        near = names.unit(1 << data.draw(st.integers(0, len(classes.all) - 1)))
        named = names.describe(mask & possible, possible, near & pods)
    members = {str(each) for pod_class in classes.members(mask & possible & pods) for each in pod_class.members}
    could_be = {str(each) for pod_class in classes.members(possible & pods) for each in pod_class.members}
    if not any("…" in name for name in named.all):
        assert meant(named, classes.model.pods) & could_be == members
    sets, excepts, ends = (
        {member for name in part for member in names.members(name) or (name,)} for part in _parts(named)
    )
    listed = {member for member in sets - excepts | ends if "/" in member}
    assert listed & could_be == members
    for name in named.parts:
        assert set(_leaves(names, name)) == set(names.members(name) or [name])


def _leaves(names: EndpointNames, name: str) -> Iterator[str]:
    """Yield the endpoints of a name, by the parts of a table of groups."""
    parts = names.parts(name)
    if parts is None:
        yield name
    for part in parts or ():
        yield from _leaves(names, part)


FAMILIES = {
    "outside": ("0.0.0.0-255.255.255.255", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    "outside IPv4": ("0.0.0.0-255.255.255.255",),
    "outside IPv6": ("::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",),
}


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from(CIDRS), max_size=4), st.data())
def test_the_name_of_outside_addresses_means_exactly_those(cidrs: list[str], data: st.DataObject) -> None:
    blocks = [Block(span) for cidr in cidrs if (span := parse_cidr(cidr)) is not None]
    classes = EndpointClasses(NetworkModel(snapshot([pod("n", "p", {})])), None, blocks)
    outside = [each for each in classes.all if each.spans]
    chosen = data.draw(st.lists(st.sampled_from(outside), unique_by=id))
    named = EndpointNames(classes).describe(mask_of(each.bit for each in chosen))
    sets, excepts, ends = ([span for name in part for span in _spans(name)] for part in _parts(named))
    for each in outside:
        for address in (address for span in each.spans for address in span):
            in_sets, in_excepts, in_ends = (
                any(low <= address <= high for low, high in spans) for spans in (sets, excepts, ends)
            )
            assert ((in_sets and not in_excepts) or in_ends) is (each in chosen)


def _spans(name: str) -> Iterator[tuple[int, int]]:
    for text in FAMILIES.get(name, (name,)):
        low, _, high = text.partition("-")
        assert low != high, "a single address is written once"
        first, last = parse_address(low), parse_address(high or low)
        assert first is not None
        assert last is not None
        yield first, last


def big_world(places: int) -> list[Object]:
    """Namespaces of three teams in two environments with ten pods each, as policies tell them apart."""
    objects = [by_labels_of_namespaces("red", "blue")]
    for number in range(places):
        place = f"n{number:03}"
        objects.append(namespace(place, team=("red", "blue", "green")[number % 3]))
        objects.append(policy(place, app="web"))
        objects += [pod(place, f"web-{each}", {"app": "web"}) for each in range(4)]
        objects += [pod(place, f"db-{each}", {"app": "db"}) for each in range(6)]
    return objects


def name_of(objects: list[Object], wanted: Any) -> str:
    """Return the name of the pods that a function picks."""
    classes = EndpointClasses(NetworkModel(snapshot(objects)), wanted)
    return str(EndpointNames(classes).describe(mask_of(each.bit for each in classes.all if wanted(each.members[0]))))


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (lambda each: str(each) == "n001/db-1", "n001/db-1"),
        (lambda each: str(each) in ("n001/db-1", "n002/web-3"), "n001/db-1, n002/web-3"),
        (lambda each: str(each) in ("n001/db-1", "n001/db-2", "n001/db-3"), "n001/db-[1-3]"),
        (lambda each: each.namespace == "n001", "n001/*"),
        (lambda each: each.kind == "pod", "every pod"),
        (lambda each: True, "everyone"),
        (lambda each: each.kind == "pod" and str(each) not in ("n001/db-1", "n002/db-1"),
         "every pod except n001/db-1, n002/db-1"),
        (lambda each: each.namespace_labels.get("team") == "red", "[team=red]/*"),
        (lambda each: each.namespace_labels.get("team") == "green", "[team notin (blue,red)]/*"),
        (lambda each: each.labels.get("app") == "web", "*/[app=web]"),
        (lambda each: each.labels.get("app") == "web" and each.namespace == "n001", "n001/web-[0-3]"),
        (lambda each: each.labels.get("app") == "db" and each.namespace_labels["team"] == "red",
         "[team=red]/[app notin (web)]"),
        (lambda each: each.labels.get("app") == "web" and each.namespace != "n001",
         "*/[app=web] except n001/web-[0-3]"),
        (lambda each: each.kind == "pod" and each.name == "web-2", "30 pods (n000/web-2, n029/web-2, …)"),
        (lambda each: each.kind == "address", "outside"),
    ],
)  # fmt: skip
def test_each_kind_of_set_has_its_name(wanted: Any, name: str) -> None:
    assert name_of(big_world(30), wanted) == name


def test_a_set_that_no_selector_names_is_counted_and_has_a_name_of_its_own() -> None:
    classes = EndpointClasses(NetworkModel(snapshot(big_world(30))), lambda each: each.name)
    named = [each for each in classes.all if each.representative.name in ("web-0", "web-3", "db-1")]
    ends = named[0].bit, named[-1].bit
    first, second = (
        mask_of((*ends, *(each.bit for each in named if each.representative.name == name)))
        for name in ("web-3", "db-1")
    )
    names = EndpointNames(classes)
    texts = [str(names.describe(mask)) for mask in (first, second, first)]
    assert texts[0] == texts[2] != texts[1]
    members = names.members(texts[0])
    assert members is not None
    assert texts[0].startswith(f"{len(members)} pods (")
    assert len(texts[0]) < 80


def test_with_all_names_every_member_is_named() -> None:
    classes = EndpointClasses(NetworkModel(snapshot(big_world(30))))
    named = EndpointNames(classes, spell_out=True).describe(classes.everybody)
    assert len(named.ends) == 30 * 10 + 1
    assert (named.ends[0], named.ends[-1]) == ("n000/db-0", "outside")
