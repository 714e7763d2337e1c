"""Proofs about the network plane: what is proved holds for everything, and what is refuted is confirmed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples, seeds
from tests.worlds.network_clusters import NAMESPACES, POD_ADDRESSES, PORTS, PROTOCOLS, VALUES, clusters, selectors
from tests.worlds.network_snapshots import snapshot
from tierwall.core.diagnostics import InputError
from tierwall.core.verdict import Verdict
from tierwall.logic.conflict_driven import ConflictDrivenSolver
from tierwall.network.decide import decide
from tierwall.network.model.model import network_model
from tierwall.proofs.network import plane
from tierwall.proofs.proof import Claim, Proof
from tierwall.proofs.proving import prove
from tierwall.proofs.result import Counterexample, ProofResult
from tierwall.resources.plain_objects import objects_over
from tierwall.resources.snapshot import Snapshot

Object = dict[str, Any]


def result(objects: list[Object] | Snapshot, claim: Object, region: Object, **assume: Any) -> ProofResult:
    """Prove a claim about a region."""
    world = objects if isinstance(objects, Snapshot) else snapshot(objects)
    proved = prove(world, Proof.from_dict({"network": region, **claim, "assume": assume}))
    assert not proved.is_defect, proved.why
    assert proved.proof != "Unknown"
    return proved


def example(objects: list[Object], region: Object, claim: Object | None = None, **assume: Any) -> Counterexample:
    """Return the counterexample of a claim that does not hold."""
    proved = result(objects, claim or {"never": "Allow"}, region, **assume)
    assert proved.counterexample is not None, proved.sentence
    return proved.counterexample


def is_proved(objects: list[Object], region: Object, claim: Object | None = None, **assume: Any) -> bool:
    """Whether a claim holds; `never: Allow` unless told."""
    return result(objects, claim or {"never": "Allow"}, region, **assume).proof == "Proved"


def policy(name: str, namespace: str, **spec: Any) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"podSelector": {}, **spec},
    }


def admin(name: str, priority: int, **spec: Any) -> Object:
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": name},
        "spec": {"priority": priority, "subject": {"namespaces": {}}, **spec},
    }


def baseline(**spec: Any) -> Object:
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "BaselineAdminNetworkPolicy",
        "metadata": {"name": "default"},
        "spec": {"subject": {"namespaces": {}}, **spec},
    }


def namespace(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def pod(name: str, address: str = "", **labels: str) -> Object:
    space, _, short = name.partition("/")
    status = {"podIP": address} if address else {}
    metadata = {"name": short, "namespace": space, "labels": labels}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def selected(**labels: str) -> Object:
    return {
        "matchLabels": {key.replace("name_", "kubernetes.io/metadata.name"): value for key, value in labels.items()}
    }


IN_SHOP = {"namespaces": selected(name_="shop")}
LOCKED = policy("locked", "shop", policyTypes=["Ingress"])


def kinds(refuting: Counterexample) -> list[str]:
    return [str(manifest["kind"]) for manifest in refuting.objects]


# What may come


def test_isolation_is_proved_for_every_pod_that_may_come() -> None:
    assert is_proved([LOCKED], {"to": IN_SHOP})
    assert not is_proved([LOCKED], {"to": {"namespaces": selected(name_="other")}})


def test_a_namespace_that_no_object_declares_may_come_with_any_labels() -> None:
    rule = {"from": [{"namespaceSelector": selected(team="finance")}]}
    objects = [policy("in", "shop", ingress=[rule])]
    region = {"from": {"namespaces": selected(name_="shop")}, "to": IN_SHOP}
    refuting = example(objects, region)
    assert kinds(refuting) == ["Namespace", "Pod", "Pod"]
    # Once an object declares the namespace, it has the labels that it declares.
    assert is_proved([*objects, namespace("shop")], region)
    assert not is_proved([*objects, namespace("shop", team="finance")], region)


def test_two_ends_in_one_namespace_see_the_same_labels() -> None:
    """The fault: `same` without equal labels."""
    rule = {"from": [{"namespaceSelector": selected(team="finance")}]}
    objects = [policy("in", "shop", ingress=[rule])]
    not_finance = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["finance"]}]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": "shop"}, **not_finance}
    assert is_proved(objects, {"from": IN_SHOP, "to": {"namespaces": here}})


def same_labels(action: str, relation: str, *keys: str) -> Object:
    peer = {"namespaces": {relation: list(keys)}}
    return {"action": action, "from": [peer]}


def test_values_that_nothing_names_may_be_equal_or_not() -> None:
    """The fault: `other` equal to `other` always, or never."""
    objects = [
        admin(
            "a",
            1,
            ingress=[same_labels("Allow", "sameLabels", "tenant"), {"action": "Deny", "from": [{"namespaces": {}}]}],
        )
    ]
    both = {"namespaces": {"matchExpressions": [{"key": "tenant", "operator": "Exists"}]}}
    region = {"from": both, "to": both}
    equal, differ = example(objects, region), example(objects, region, {"never": "Deny"})
    labels = [
        manifest["metadata"]["labels"]["tenant"] for manifest in differ.objects if manifest["kind"] == "Namespace"
    ]
    assert len(set(labels)) == 2
    assert str(equal.answer.verdict) == "Allow"
    # In one namespace they are always equal.
    assert is_proved(
        objects, {"from": both, "to": both | {"pods": {}}, "port": 80}, {"never": "Deny"}, existingOnly=True
    )


@pytest.mark.parametrize("relation", ["sameLabels", "notSameLabels"])
def test_an_empty_list_of_keys_relates_nothing(relation: str) -> None:
    closing = {"action": "Deny", "from": [{"namespaces": {}}]}
    objects = [admin("a", 1, ingress=[same_labels("Allow", relation), closing])]
    assert is_proved(objects, {"from": {}, "to": {}})


def test_not_same_labels_needs_every_key_on_both() -> None:
    closing = {"action": "Deny", "from": [{"namespaces": {}}]}
    objects = [admin("a", 1, ingress=[same_labels("Allow", "notSameLabels", "tenant"), closing])]
    absent = {"namespaces": {"matchExpressions": [{"key": "tenant", "operator": "DoesNotExist"}]}}
    assert is_proved(objects, {"from": {}, "to": absent})
    assert not is_proved(objects, {"from": {}, "to": {}})


def test_not_in_selects_what_lacks_the_label() -> None:
    """The fault: NotIn that demands presence."""
    not_test = {"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["test"]}]}
    without = {"matchExpressions": [{"key": "env", "operator": "DoesNotExist"}]}
    closed = [policy("in", "shop", podSelector=not_test, policyTypes=["Ingress"])]
    opened = [policy("in", "shop", ingress=[{"from": [{"namespaceSelector": not_test}]}])]
    # In what a policy selects, whom it lets in, and what a region has; of pods, and of namespaces.
    assert is_proved(closed, {"to": IN_SHOP | {"pods": without}})
    assert is_proved(opened, {"from": {"namespaces": without}, "to": IN_SHOP}, {"always": "Allow"})
    bare = [admin("a", 1, ingress=[{"action": "Allow", "from": [{"pods": {"podSelector": without}}]}]), LOCKED]
    assert not is_proved(bare, {"from": {"pods": not_test}, "to": IN_SHOP})
    assert is_proved(bare, {"from": {"pods": not_test | selected(env="x")}, "to": IN_SHOP})


def test_a_pod_has_one_address_of_a_family_at_most() -> None:
    """With any number of addresses this has a counterexample that cannot exist."""
    egress = [{"action": "Pass", "to": [{"networks": ["10.0.0.0/8"]}]}, {"action": "Allow", "to": [{"namespaces": {}}]}]
    below = baseline(egress=[{"action": "Deny", "to": [{"networks": ["192.168.0.0/16"]}]}])
    objects = [admin("a", 1, egress=egress), below]
    assert is_proved(objects, {"from": {}, "to": {}}, {"never": "Deny"})
    assert not is_proved(objects, {"from": {}, "to": {"ip": "192.168.0.0/16"}}, {"never": "Deny"})


def test_a_pod_without_an_address_is_matched_by_no_block_and_the_result_says_so() -> None:
    objects = [admin("a", 1, egress=[{"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}]}])]
    proved = result(objects, {"never": "Allow"}, {"from": {}, "to": {}})
    assert "without an address" in proved.sentence
    assert is_proved(objects, {"from": {}, "to": {"ip": "0.0.0.0/0"}})


def test_an_address_belongs_to_one_end() -> None:
    allowed = {"action": "Allow", "to": [{"networks": ["10.0.0.7/32"]}]}
    closing = {"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}, {"namespaces": {}}]}
    objects = [admin("a", 1, egress=[allowed, closing])]
    both = {"from": {"ip": "10.0.0.7"}, "to": {"ip": "10.0.0.7"}}
    assert is_proved(objects, both)
    assert not is_proved(objects, {"from": {}, "to": {"ip": "10.0.0.7"}})
    # A pod that exists has the address, so no other may come with it.
    held = [*objects, pod("shop/old", "10.0.0.7", app="old")]
    assert is_proved(held, {"from": {}, "to": {"pods": selected(app="new")}})
    assert not is_proved(held, {"from": {}, "to": {"pods": selected(app="old")}})


def test_pod_addresses_narrow_which_pods_hold_an_address() -> None:
    objects = [admin("a", 1, egress=[{"action": "Deny", "to": [{"networks": ["10.0.0.0/8"]}]}])]
    region = {"from": {}, "to": {"ip": ["203.0.113.0/24"]}}
    refuting = example(objects, region)
    assert refuting.question.to_dict()["to"] == {"ip": "203.0.113.1"}
    held = {"from": {"ip": "203.0.113.0/24"}, "to": {"ip": "10.0.0.0/8"}}
    closed = [*objects, admin("b", 2, ingress=[{"action": "Deny", "from": [{"namespaces": {}}]}])]
    assert kinds(example(closed, held, {"never": "Deny"})) == ["Pod"]
    assert is_proved([policy("in", "shop", policyTypes=["Ingress"])], {"from": held["from"], "to": IN_SHOP})


def test_any_set_of_names_may_stand_for_a_port() -> None:
    rule = {"ports": [{"port": "web", "protocol": "TCP"}]}
    objects = [policy("in", "shop", ingress=[rule])]
    refuting = example(objects, {"to": IN_SHOP, "port": 8443})
    assert refuting.objects[-1]["spec"]["containers"][0]["ports"] == [
        {"name": "web", "containerPort": 8443, "protocol": "TCP"}
    ]
    assert is_proved(objects, {"to": IN_SHOP, "protocol": "UDP"})
    # A pod that exists has the names that it has.
    assert is_proved([*objects, pod("shop/web")], {"to": {"pod": "shop/web"}})


def test_pods_on_the_host_network_may_come_only_if_assumed() -> None:
    objects = [policy("out", "shop", policyTypes=["Egress"])]
    assert is_proved(objects, {"from": IN_SHOP})
    refuting = example(objects, {"from": IN_SHOP, "to": {"namespaces": {}}}, hostNetwork=True)
    assert refuting.objects[0]["spec"]["hostNetwork"] is True
    assert "host network included" in result([], {"never": "Deny"}, {}, hostNetwork=True).sentence


def test_domain_names_may_have_any_address() -> None:
    rules = [
        {"action": "Allow", "to": [{"domainNames": ["*.example.org"]}]},
        {"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}]},
    ]
    objects = [admin("a", 1, egress=rules)]
    region = {"from": {}, "to": {"ip": "203.0.113.0/24"}}
    assert str(example(objects, region).answer.verdict) == "Conditional"
    assert str(example(objects, region, {"always": "Allow"}).answer.verdict) == "Conditional"
    # An address of `www.example.org` is one of `*.example.org`, so the second rule never decides.
    covered = [*rules[:1], {"action": "Deny", "to": [{"domainNames": ["www.example.org"]}]}]
    assert is_proved([admin("a", 1, egress=covered)], region, {"never": "Deny"})


def test_assumptions_about_namespaces_hold_for_those_that_may_come() -> None:
    rule = {"from": [{"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}}]}
    objects = [policy("in", "shop", ingress=[rule])]
    team = {"match": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}
    assert not is_proved(objects, {"to": IN_SHOP})
    assert is_proved(objects, {"to": IN_SHOP}, namespaces=[team])
    assert not is_proved([*objects, namespace("old")], {"to": IN_SHOP}, namespaces=[team])


def test_existing_only_asks_about_what_is_there() -> None:
    objects = [LOCKED, pod("shop/db"), pod("web/front", app="web"), policy("out", "web", policyTypes=["Egress"])]
    assert not is_proved(objects, {"from": {}, "to": {"namespaces": selected(name_="web")}})
    assert is_proved(objects, {"from": {}, "to": {"pod": "web/front"}}, existingOnly=True) is False
    assert is_proved(
        [*objects, policy("in", "web", policyTypes=["Ingress"])], {"from": {}, "to": {}}, existingOnly=True
    )


@pytest.mark.parametrize(
    "assume",
    [
        {"existingOnly": True},
        {"namespaces": [{"match": selected(team="a")}, {"match": selected(team="b")}]},
    ],
)
def test_what_is_assumed_of_pods_and_namespaces_leaves_addresses_outside(assume: Object) -> None:
    outside = {"from": {"ip": "192.0.2.0/24"}, "to": {"ip": "203.0.113.0/24"}}
    assert not is_proved([LOCKED], outside, **assume)


def test_labels_that_no_api_server_accepts_do_not_come() -> None:
    rule = {"from": [{"podSelector": selected(app="not a label"), "namespaceSelector": {}}]}
    objects = [policy("in", "shop", ingress=[rule])]
    assert is_proved(objects, {"to": IN_SHOP})
    assert not is_proved([*objects, pod("shop/odd", app="not a label")], {"to": IN_SHOP})


def test_both_ends_are_two_pods_unless_told_otherwise() -> None:
    assert is_proved([LOCKED], {"from": IN_SHOP, "to": IN_SHOP})
    refuting = example([LOCKED], {"from": IN_SHOP, "to": IN_SHOP, "other": False})
    question = refuting.question.to_dict()
    assert question["from"] == question["to"]
    # One pod that exists is not both ends.
    objects = [pod("shop/db"), policy("out", "shop", policyTypes=["Egress"])]
    assert is_proved(objects, {"from": {"pod": "shop/db"}, "to": {"pod": "shop/db"}})


def test_a_pod_of_a_file_may_get_any_address() -> None:
    rule = {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
    objects = [policy("in", "shop", ingress=[rule]), pod("web/front")]
    refuting = example(objects, {"from": {"pod": "web/front"}, "to": IN_SHOP})
    assert [manifest["metadata"]["name"] for manifest in refuting.objects] == ["front", "server"]
    assert is_proved([*objects[:1], pod("web/front", "203.0.113.9")], {"from": {"pod": "web/front"}, "to": IN_SHOP})


def test_names_that_are_not_there_are_errors_with_near_misses() -> None:
    with pytest.raises(InputError) as raised:
        result([pod("web/front")], {"never": "Allow"}, {"from": {"pod": "web/frnt"}, "to": {"workload": "web/x"}})
    assert [problem.hint for problem in raised.value.diagnostics] == ["did you mean `front`?", ""]


def test_the_smallest_counterexample_uses_what_exists() -> None:
    refuting = example([pod("shop/a"), pod("shop/b"), LOCKED, namespace("web")], {"from": IN_SHOP, "to": {}})
    assert kinds(refuting) == ["Pod"]
    assert refuting.question.to_dict() == {"from": "shop/a", "to": "web/server", "port": 80}


# Against everything


@st.composite
def regions(draw: st.DrawFn) -> Object:
    """A region of the few names, labels, ports and addresses of random clusters."""
    region: Object = {}
    for key in ("from", "to"):
        kind = draw(st.sampled_from(("labels", "labels", "ip", "anything")))
        if kind == "labels":
            spaces = draw(selectors(("tenant", "kubernetes.io/metadata.name")))
            region[key] = {"namespaces": spaces, "pods": draw(selectors(("app",)))}
        elif kind == "ip":
            region[key] = {"ip": draw(st.sampled_from(("10.0.0.0/24", "10.0.1.1", "203.0.113.0/24", "172.18.0.0/16")))}
    if draw(st.booleans()):
        region["protocol"] = draw(st.sampled_from(PROTOCOLS))
    if draw(st.booleans()):
        region["port"] = draw(st.sampled_from(PORTS))
    return region


claims = st.builds(
    lambda word, verdict: {word: verdict}, st.sampled_from(("never", "always")), st.sampled_from(("Allow", "Deny"))
)
assumptions = st.fixed_dictionaries(
    {}, optional={"existingOnly": st.booleans(), "hostNetwork": st.booleans(), "podAddresses": st.just(["10.0.0.0/8"])}
)


@given(clusters(), regions(), claims, assumptions)
@settings(max_examples=examples(60))
def test_counterexamples_are_confirmed_and_proofs_hold_for_samples(
    objects: list[Any], region: Object, claim: Object, assume: Object
) -> None:
    proved = result(objects, claim, region, **assume)
    world = snapshot(objects)
    if proved.proof == "Proved" and not assume:
        samples = _more_pods(Random(len(objects)), 12, {value["metadata"]["name"] for value in objects})
        wider = objects_over(world, samples, "default")
        assert _first_sample(wider, region, claim) is None


def _more_pods(random: Random, number: int, declared: set[str]) -> list[Object]:
    """Return pods that may come: in namespaces that are there and in others, with any labels and addresses."""
    named, values = (*NAMESPACES, "delta", "epsilon"), (*VALUES, *NAMESPACES, "z")
    # A namespace that no object declares may come with any labels.
    pods = [
        namespace(name, tenant=random.choice(values))
        for name in named
        if name not in declared and random.random() < 0.7
    ]
    addresses = random.sample([*POD_ADDRESSES, "10.0.0.9", "10.0.1.9", "192.168.0.9", "fd00::9"], 8)
    for place in range(number):
        labels = {key: random.choice(values) for key in ("app",) if random.random() < 0.7}
        address = addresses.pop() if addresses and random.random() < 0.6 else ""
        made = pod(f"{random.choice(named)}/new{place}", address, **labels)
        ports = [{"name": "web", "containerPort": random.choice(PORTS)}] if random.random() < 0.5 else []
        made["spec"]["containers"][0]["ports"] = ports
        pods.append(made)
    return pods


def _first_sample(world: Snapshot, region: Object, claim: Object) -> Any:
    """Return a connection between what is there that refutes a claim, refuting by trying all of them."""
    proof = Proof.from_dict({"network": region, **claim})
    assert isinstance(proof.claim, Claim)
    model = network_model(world)
    ports = proof.region.ports
    taken: dict[int, int] = {}
    for pod_ in model.pods:
        for address in pod_.addresses:
            taken[address] = taken.get(address, 0) + 1
    pods = [pod_ for pod_ in model.pods if all(taken[address] == 1 for address in pod_.addresses)]
    for source, to in product((*pods, *model.nodes), repeat=2):
        if source is to or not (_inside(source, proof.region.source) and _inside(to, proof.region.to)):
            continue
        for protocol, port in product(PROTOCOLS, PORTS):
            if not any(known.protocol == protocol and known.first <= port <= known.last for known in ports):
                continue
            verdict = Verdict(decide(model, source, to, protocol, port).verdict)
            possible = {Verdict.ALLOW, Verdict.DENY} if verdict is Verdict.CONDITIONAL else {verdict}
            if proof.claim.refuted_by(frozenset(possible)):
                return source, to, protocol, port
    return None


def _inside(end: Any, region: Any) -> bool:
    if region.labels is not None:
        spaces, pods = region.labels
        return bool(end.under_policy and spaces.matches(end.namespace_labels) and pods.matches(end.labels))
    if region.spans is not None:
        return any(low <= address <= high for low, high in region.spans for address in end.addresses)
    return True


@given(clusters(), regions(), claims)
@settings(max_examples=examples(15))
def test_both_solvers_find_the_same_counterexample(objects: list[Any], region: Object, claim: Object) -> None:
    proof = Proof.from_dict({"network": region, **claim})
    assert isinstance(proof.claim, Claim)
    terms = snapshot(objects), proof.region, proof.claim, proof.assume, 10.0
    assert plane.prove(*terms, engine=ConflictDrivenSolver()) == plane.prove(*terms)


# Changes


def changed(old: list[Object], new: list[Object], word: str = "noNew", **assume: Any) -> ProofResult:
    """Prove that a change opens or closes nothing."""
    proof = Proof.from_dict({word: {"against": "old", "planes": ["network"]}, "assume": assume})
    proved = prove(snapshot(new), proof, against=snapshot(old))
    assert not proved.is_defect, proved.why
    return proved


class _CountingSolver(ConflictDrivenSolver):
    """Counts questions, and clauses that come after the first of them."""

    questions = late = 0

    def solve(self, assumptions: Sequence[int] = (), conflicts: int | None = None) -> bool | None:
        self.questions += 1
        return super().solve(assumptions, conflicts)

    def add(self, clause: Iterable[int]) -> None:
        self.late += self.questions > 1
        super().add(clause)


def test_a_smallest_counterexample_takes_few_questions() -> None:
    labels = [{"app": f"a{number}", "tier": f"t{number % 7}"} for number in range(60)]
    objects = [pod(f"shop/p{number}", **of_pod) for number, of_pod in enumerate(labels)]
    objects += [
        policy(f"of-{number}", "shop", podSelector={"matchLabels": of_pod}, ingress=[{"from": [{"podSelector": {}}]}])
        for number, of_pod in enumerate(labels)
    ]
    engine = _CountingSolver()
    read = Proof.from_dict({"network": {"to": {"pods": {"matchLabels": {"app": "a41"}}}}, "never": "Allow"})
    assert isinstance(read.claim, Claim)
    plane.prove(snapshot(objects), read.region, read.claim, read.assume, 10.0, engine=engine)
    assert 3 < engine.questions < 60
    # A clause that comes later makes a solver forget what follows from the choices before.
    assert not engine.late


def test_a_change_opens_nothing_or_shows_the_first_thing() -> None:
    wider = policy("locked", "shop", ingress=[{"ports": [{"port": 443}]}])
    assert changed([LOCKED], [LOCKED]).proof == "Proved"
    assert changed([wider], [LOCKED]).proof == "Proved"
    opened = changed([LOCKED], [wider])
    assert opened.counterexample is not None
    assert opened.counterexample.before is not None
    assert opened.counterexample.question.to_dict()["port"] == 443
    assert changed([wider], [LOCKED], "noLoss").proof == "Refuted"
    assert changed([LOCKED], [wider], "noLoss").proof == "Proved"


def test_a_label_that_changes_may_open_something() -> None:
    rule = {"from": [{"namespaceSelector": selected(team="finance")}]}
    objects = [policy("in", "shop", ingress=[rule])]
    old, new = [*objects, namespace("web")], [*objects, namespace("web", team="finance")]
    refuting = changed(old, new).counterexample
    assert refuting is not None
    assert str(refuting.question.to_dict()["from"]).startswith("web/")
    labelled = policy("in", "shop", ingress=[{"from": [{"podSelector": selected(app="web"), "namespaceSelector": {}}]}])
    assert changed([labelled, pod("web/a")], [labelled, pod("web/a", app="web")]).proof == "Refuted"


def test_what_exists_on_one_side_may_come_on_the_other() -> None:
    assert changed([LOCKED], [LOCKED, pod("shop/new"), namespace("fresh", team="x")]).proof == "Proved"
    assert changed([LOCKED, pod("shop/old"), namespace("gone", team="x")], [LOCKED]).proof == "Proved"


@given(clusters(3), clusters(3), st.sampled_from(("noNew", "noLoss")))
@settings(max_examples=examples(40))
def test_changes_are_confirmed_and_proofs_hold_for_what_exists(old: list[Any], new: list[Any], word: str) -> None:
    ends = [value for value in old if value["kind"] in ("Pod", "Node", "Namespace")]
    new = [*ends, *(value for value in new if value["kind"] not in ("Pod", "Node", "Namespace"))]
    proved = changed(old, new, word)
    before, after = network_model(snapshot(old)), network_model(snapshot(new))
    if proved.proof != "Proved":
        return
    for (source, here), (to, there) in product(zip(before.pods, after.pods, strict=True), repeat=2):
        for port in PORTS:
            verdicts = [
                decide(before, source, to, "TCP", port).verdict,
                decide(after, here, there, "TCP", port).verdict,
            ]
            denied, allowed = verdicts if word == "noNew" else reversed(verdicts)
            assert (str(denied), str(allowed)) != ("Deny", "Allow")


# Every small world


@pytest.mark.parametrize("seed", seeds(6))
def test_small_worlds_are_searched_completely(seed: int) -> None:
    """Two pods, one label of each and of their namespaces: every world there is, against the prover."""
    random = Random(seed)
    atoms = ("a", "b", "other", None)

    def chosen(key: str) -> Object:
        operator = random.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        values = {"values": random.sample(["a", "b"], random.choice((1, 2)))} if operator in ("In", "NotIn") else {}
        return {"matchExpressions": [{"key": key, "operator": operator, **values}]} if random.random() < 0.8 else {}

    def peer() -> Object:
        if random.random() < 0.3:
            return {"namespaces": {random.choice(("sameLabels", "notSameLabels")): ["team"]}}
        return {"pods": {"namespaceSelector": chosen("team"), "podSelector": chosen("app")}}

    def rules(direction: str) -> list[Object]:
        return [
            {"action": random.choice(("Allow", "Deny", "Pass")), direction: [peer()]}
            for _ in range(random.choice((0, 1, 2)))
        ]

    policies = [
        admin(f"p{number}", number, ingress=rules("from"), egress=rules("to"))
        | {
            "spec": {
                "priority": number,
                "subject": {"pods": {"namespaceSelector": chosen("team"), "podSelector": chosen("app")}},
                "ingress": rules("from"),
                "egress": rules("to"),
            }
        }
        for number in range(3)
    ]
    policies.append(baseline(ingress=[{"action": "Deny", "from": [{"namespaces": {}}]}]))
    teams, apps = atoms, atoms
    spaces: list[Object] = []
    pods: list[Object] = []
    for place, team in enumerate(teams):
        for twin in ("", "-2"):
            spaces.append(namespace(f"n{place}{twin}", **({"team": team} if team else {})))
            pods += [
                pod(f"n{place}{twin}/p{number}{copy}", **({"app": app} if app else {}))
                for number, app in enumerate(apps)
                for copy in ("", "-2")
            ]
    # Another value that nothing names, so that two of them can differ.
    spaces.append(namespace("n9", team="another"))
    pods += [pod(f"n9/p{number}", **({"app": app} if app else {})) for number, app in enumerate(apps)]
    world = network_model(snapshot([*policies, *spaces, *pods]))
    table = {
        (source, to): str(decide(world, source, to, "TCP", 80).verdict)
        for source, to in product(world.pods, repeat=2)
        if source is not to
    }
    proofs = 0
    for _ in range(12):
        region = {
            "from": {"namespaces": chosen("team"), "pods": chosen("app")},
            "to": {"namespaces": chosen("team"), "pods": chosen("app")},
            "port": 80,
            "protocol": "TCP",
        }
        read = Proof.from_dict({"network": region, "never": "Allow"}).region
        inside = [
            verdict for (source, to), verdict in table.items() if _inside(source, read.source) and _inside(to, read.to)
        ]
        for verdict in ("Allow", "Deny"):
            expected = verdict not in inside
            proofs += expected
            assert is_proved(policies, region, {"never": verdict}) is expected, (region, verdict)
    assert proofs
