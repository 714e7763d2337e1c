"""The search for the objects that proxies refuse, against proxies that refuse by a rule.

Every object is part of some filters or route configurations. A proxy refuses those with an open object that is bad.
The reference is one sentence: in the end exactly the bad objects are closed, and everything else is as written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tierwall.engines.envoy.control.cache import EXTENSION, LISTENER, ROUTE, SECRET
from tierwall.engines.envoy.control.refusal import MAX_HALVINGS, ProxyAnswers, ProxyRefusal, RefusalSearch
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot

NETWORKING = "agentic.networking.x-k8s.io"
VERSIONS = {"XAccessPolicy": f"{NETWORKING}/v0alpha0", "HTTPRoute": "gateway.networking.k8s.io/v1"}


def made(kind: str, namespace: str, name: str, content: str) -> Resource:
    [resource] = load_objects(
        [
            {
                "apiVersion": VERSIONS.get(kind, "gateway.networking.k8s.io/v1"),
                "kind": kind,
                "metadata": {"namespace": namespace, "name": name},
                "spec": {"content": content},
            }
        ]
    )
    return resource


class FakeGateway:
    """A Gateway with a search, and proxies that answer what is published. `bad` says which objects they refuse."""

    def __init__(self, shards: int = 3, proxies: int = 1) -> None:
        self.search = RefusalSearch()
        self.shards, self.proxies = shards, proxies
        self.snapshot = Snapshot.of(())
        self.closed: dict[Identity, str] = {}
        self.published = 0
        self.is_bad: Callable[[Resource, int], bool] = lambda resource, proxy: resource.spec["content"] == "bad"
        # What each proxy has accepted, by resource.
        self.accepted: list[dict[tuple[str, str], dict[Identity, str]]] = [{} for _ in range(proxies)]

    def load(self, resources: Iterable[Resource]) -> None:
        self.snapshot = Snapshot.of(resources)
        self.publish()

    def publish(self) -> None:
        self.closed = self.search.closed(self.snapshot)
        self.search.publish(self.snapshot, self.closed)
        self.published += 1

    def contributors(self, type_url: str, name: str) -> Collection[Identity]:
        return {resource.identity for resource in self.snapshot if self.place(resource) == (type_url, name)} | (
            {resource.identity for resource in self.snapshot if resource.kind == "Gateway"}
            if type_url != EXTENSION
            else set()
        )

    def place(self, resource: Resource) -> tuple[str, str]:
        if resource.kind == "Gateway":
            return LISTENER, "port"
        if resource.kind == "HTTPRoute":
            return ROUTE, "routes"
        return EXTENSION, f"shard-{sum(map(ord, resource.namespace + resource.name)) % self.shards}"

    def answers(self) -> ProxyAnswers:
        refusals: dict[Any, tuple[ProxyRefusal, ...]] = {}
        for number in range(self.proxies):
            if number in self.search.at_fault:
                refusals[number] = (ProxyRefusal(LISTENER, "nothing", "no"),)
                continue
            is_open = [resource for resource in self.snapshot if resource.identity not in self.closed]
            places = {self.place(resource) for resource in self.snapshot}
            refused = {self.place(resource) for resource in is_open if self.is_bad(resource, number)}
            for place in places - refused:
                here = (resource for resource in is_open if self.place(resource) == place)
                self.accepted[number][place] = {resource.identity: resource.spec["content"] for resource in here}
            if refused:
                refusals[number] = tuple(ProxyRefusal(*place, f"{place} is bad") for place in sorted(refused))
        return ProxyAnswers(refusals, True, not refusals.keys() - self.search.at_fault)

    def step(self) -> bool:
        if not self.search.next_step(self.answers(), self.contributors):
            return False
        self.publish()
        return True

    def settle(self, most: int = 1000) -> int:
        """Take steps until the search has nothing more to do; return their number."""
        for number in range(most):
            if not self.step():
                return number
        raise AssertionError("the search does not end")

    @property
    def bad(self) -> set[Identity]:
        return {resource.identity for resource in self.snapshot if self.is_bad(resource, 0)}


def policies(namespace: str, *contents: str) -> list[Resource]:
    return [made("XAccessPolicy", namespace, f"p{number}", content) for number, content in enumerate(contents)]


def names(identities: Iterable[Identity]) -> list[str]:
    return sorted(f"{namespace}/{name}" for _, _, namespace, name in identities)


def test_a_single_change_that_is_refused_is_closed_at_once() -> None:
    fake = FakeGateway()
    fake.load(policies("a", *["good"] * 20))
    assert fake.settle() == 0
    fake.load([*policies("a", *["good"] * 20), made("XAccessPolicy", "b", "new", "bad")])
    assert fake.settle() == 1
    assert names(fake.closed) == ["b/new"]
    [refused] = fake.search.refused
    assert (str(refused.resource.reference), "is bad" in refused.words) == ("XAccessPolicy/b/new", True)


def test_at_a_start_the_bad_one_is_found_among_many_in_few_steps() -> None:
    fake = FakeGateway(shards=1)
    fake.load([*policies("a", *["good"] * 250), *policies("b", *["good"] * 100, "bad", *["good"] * 149)])
    assert fake.settle() < 50
    assert names(fake.closed) == ["b/p100"]


def test_bad_objects_of_different_resources_are_found_at_the_same_time() -> None:
    fake = FakeGateway()
    fake.place = lambda resource: (EXTENSION, f"shard-{int(resource.name[1:]) // 25}")  # type: ignore[method-assign]
    fake.load(policies("a", *(["good"] * 24 + ["bad"]) * 40))
    assert fake.settle() < 20
    assert fake.closed.keys() == fake.bad


def test_an_object_whose_text_the_message_repeats_is_tried_apart_from_the_others() -> None:
    fake = FakeGateway(shards=1)
    fake.is_bad = lambda resource, proxy: resource.spec["content"] == "[a-z{9"
    fake.load(policies("a", *(f"text {number}" for number in range(200)), "[a-z{9"))
    answers = fake.answers

    def told() -> ProxyAnswers:
        words = "missing terminating ] for character class: [a-z{9"
        refusals = {
            key: tuple(refusal._replace(words=words) for refusal in each) for key, each in answers().refusals.items()
        }
        return answers()._replace(refusals=refusals)

    fake.answers = told  # type: ignore[method-assign]
    assert fake.settle() < 6
    assert names(fake.closed) == ["a/p200"]


def test_everything_that_is_no_candidate_is_in_force_after_one_step() -> None:
    fake = FakeGateway(shards=1)
    before = policies("a", *["good"] * 20)
    fake.load(before)
    fake.settle()
    fake.load([*before[1:], *policies("b", "bad", "good", "bad"), made("HTTPRoute", "c", "r", "new")])
    fake.step()
    assert names(fake.closed) == ["b/p0", "b/p1", "b/p2"]
    fake.answers()
    assert names(fake.accepted[0][EXTENSION, "shard-0"]) == names(resource.identity for resource in before[1:])
    fake.settle()
    assert names(fake.closed) == ["b/p0", "b/p2"]


def test_a_verdict_is_about_the_content_of_an_object() -> None:
    fake = FakeGateway()
    good, other = policies("a", "good", "good"), made("XAccessPolicy", "c", "q", "good")
    fake.load([*good, made("XAccessPolicy", "b", "new", "bad")])
    fake.settle()
    fake.load([*good, other, made("XAccessPolicy", "b", "new", "bad")])
    assert fake.settle() == 0, "the search does not begin again because something else changed"
    assert names(fake.closed) == ["b/new"]
    fake.load([*good, other, made("XAccessPolicy", "b", "new", "good")])
    assert names(fake.closed) == ["b/new"], "it is tried alone, after everything else is in force"
    fake.settle()
    assert (fake.closed, fake.search.refused) == ({}, ())
    fake.load([*good, other, made("XAccessPolicy", "b", "new", "bad")])
    fake.settle()
    fake.load([*good, other])
    assert (fake.closed, fake.search.refused) == ({}, ())


def test_a_namespace_that_edits_refused_objects_without_a_pause_delays_nobody() -> None:
    fake = FakeGateway(shards=1)
    fake.load(policies("a", "good"))
    fake.settle()
    for number in range(30):
        bad = [made("XAccessPolicy", "b", f"bad-{number}-{index}", "bad") for index in range(3)]
        fake.load([made("XAccessPolicy", "a", "p0", f"good {number}"), *bad])
        # There is only time for a few steps between two loads.
        for _ in range(3):
            fake.step()
        in_force = fake.accepted[0][EXTENSION, "shard-0"]
        assert set(in_force.values()) <= {f"good {number}"}, "closed or as written, never as before"
    fake.settle()
    assert fake.closed.keys() == fake.bad
    assert fake.accepted[0][EXTENSION, "shard-0"] == {made("XAccessPolicy", "a", "p0", "").identity: "good 29"}


def test_a_namespace_with_many_refused_objects_delays_others_by_few_steps() -> None:
    fake = FakeGateway(shards=1)
    innocent = [resource for number in range(8) for resource in policies(f"tenant-{number}", *["good"] * 10)]
    fake.load([*innocent, *policies("swarm", *["bad"] * 500)])
    for _ in range(25):
        fake.step()
    assert all(resource.identity not in fake.closed for resource in innocent)
    assert fake.settle() < 4 * MAX_HALVINGS
    assert fake.closed.keys() == fake.bad


def test_objects_of_others_are_opened_however_often_new_bad_ones_come() -> None:
    """There is only time for one step between two loads."""
    fake = FakeGateway(shards=1)
    innocent = [resource for number in range(4) for resource in policies(f"tenant-{number}", "good", "good")]
    fake.load([*innocent, made("XAccessPolicy", "swarm", "bad", "bad")])
    bad: list[Resource] = []
    for number in range(30):
        bad.append(made("XAccessPolicy", "swarm", f"bad-{number}", "bad"))
        fake.load([*innocent, *bad])
        fake.step()
    assert {resource.identity for resource in innocent} <= fake.accepted[0][EXTENSION, "shard-0"].keys()


def test_an_object_is_acquitted_if_closing_it_does_not_help() -> None:
    fake = FakeGateway(shards=1)
    fake.load(policies("a", "good", "odd"))
    fake.settle()
    # From now on proxies refuse what they accepted before, and the only new object is suspected first.
    fake.is_bad = lambda resource, proxy: resource.spec["content"] == "odd"
    fake.load([*policies("a", "good", "odd"), made("XAccessPolicy", "b", "new", "good")])
    fake.step()
    assert names(fake.closed) == ["b/new"]
    fake.settle()
    assert names(fake.closed) == ["a/p1"]


def test_routes_are_blamed_before_the_gateway_and_the_gateway_if_nothing_else_helps() -> None:
    fake = FakeGateway()
    gateway = made("Gateway", "infra", "edge", "good")
    fake.load(
        [gateway, *policies("a", "good"), made("HTTPRoute", "a", "r", "good"), made("HTTPRoute", "b", "r", "bad")]
    )
    fake.settle()
    assert names(fake.closed) == ["b/r"]
    fake.load([made("Gateway", "infra", "edge", "bad"), *policies("a", "good")])
    fake.settle()
    assert names(fake.closed) == ["infra/edge"]


def test_a_refused_certificate_is_blamed_before_those_who_name_it() -> None:
    gateway, certificate, authority = (
        ("gateway.networking.k8s.io", "Gateway", "infra", "edge"),
        ("", "Secret", "infra", "tls"),
        ("", "ConfigMap", "infra", "ca"),
    )
    manifests = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "infra", "name": name}}
        for kind, name in (("Secret", "tls"), ("ConfigMap", "ca"))
    ]
    contributing = {gateway, certificate, authority}
    for kind, name, blamed in (
        (SECRET, "authority/gateway/infra/edge/443", authority),
        (SECRET, "certificate/gateway/infra/edge/443", certificate),
        (LISTENER, "gateway/infra/edge/443", gateway),
    ):
        fake = FakeGateway()
        fake.load([made("Gateway", "infra", "edge", "good"), *load_objects(manifests)])
        answers = ProxyAnswers({0: (ProxyRefusal(kind, name, "no"),)}, True, False)
        assert fake.search.next_step(answers, lambda type_url, name: contributing)
        assert fake.search.closed(fake.snapshot) == {blamed: "no"}


def test_an_object_that_one_proxy_refuses_is_closed_for_all() -> None:
    fake = FakeGateway(proxies=2)
    fake.is_bad = lambda resource, proxy: resource.spec["content"] == f"bad for {proxy}"
    fake.load(policies("a", "good", "bad for 0", "bad for 1"))
    fake.settle()
    assert names(fake.closed) == ["a/p1", "a/p2"]


def test_a_proxy_that_refuses_everything_closes_nothing_for_the_others() -> None:
    fake = FakeGateway(proxies=2)
    fake.is_bad = lambda resource, proxy: resource.spec["content"] == "bad"
    fake.load(policies("a", *["good"] * 5))
    fake.settle()
    answers = fake.answers
    fake.answers = lambda: answers()._replace(  # type: ignore[method-assign]
        refusals={**answers().refusals, 1: (ProxyRefusal(EXTENSION, "shard-1", "out of memory"),)},
        is_accepted=1 in fake.search.at_fault and answers().is_accepted,
    )
    fake.load(policies("a", *["good"] * 4, "new"))
    fake.settle()
    assert fake.search.at_fault == {1}
    assert (fake.closed, fake.search.refused, fake.search.number_waiting) == ({}, (), 0)


def test_a_port_that_a_proxy_cannot_open_is_no_fault_of_the_gateway() -> None:
    fake = FakeGateway()
    fake.load([made("Gateway", "infra", "edge", "good")])
    words = "Error adding/updating listener(s) port: cannot bind '0.0.0.0:80': Address already in use"
    answers = ProxyAnswers({0: (ProxyRefusal(LISTENER, "port", words),)}, True, False)
    fake.search.next_step(answers, fake.contributors)
    assert fake.search.closed(fake.snapshot) == {}
    assert fake.search.at_fault == {0}


_CONTENTS = st.sampled_from(["one", "two", "bad"])
_OBJECTS = st.dictionaries(
    st.tuples(st.sampled_from(["XAccessPolicy", "HTTPRoute"]), st.sampled_from("abc"), st.sampled_from("pqrst")),
    _CONTENTS,
    max_size=14,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(_OBJECTS, st.integers(0, 6)), min_size=1, max_size=6), st.integers(1, 4))
def test_after_every_storm_exactly_the_bad_objects_are_closed(
    loads: list[tuple[dict[tuple[str, str, str], str], int]], shards: int
) -> None:
    fake = FakeGateway(shards)
    for contents, steps in loads:
        fake.load(made(*key, content) for key, content in contents.items())
        for _ in range(steps):
            fake.step()
            assert not {
                identity
                for place in fake.accepted[0].values()
                for identity, content in place.items()
                if content == "bad"
            }
    fake.settle()
    assert fake.closed.keys() == fake.bad
    assert {str(refused.resource.identity) for refused in fake.search.refused} == set(map(str, fake.bad))
    accepted = {key: content for place in fake.accepted[0].values() for key, content in place.items()}
    assert {
        resource.identity: resource.spec["content"] for resource in fake.snapshot if resource.identity not in fake.bad
    }.items() <= (accepted.items())
