"""A change of a network policy brings what the whole analysis finds with it and not without it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.varied import SHAPES, VariedCluster
from tests.randomness import examples
from tests.worlds.network_clusters import (
    NAMESPACES,
    admin_policies,
    baselines,
    clusters,
    namespace_selectors,
    network_policies,
    pod_selectors,
)
from tests.worlds.network_objects import admin, namespace, network_policy, pod, rule
from tests.worlds.network_snapshots import resource, snapshot
from tierwall.analyze import change_findings, network_change
from tierwall.analyze.change_findings import ChangeFindings, ChangeIndex, PolicyChange, facts
from tierwall.analyze.network_change import CODES
from tierwall.analyze.network_checks import network_findings
from tierwall.core.verdict import StepVerdict
from tierwall.network.decide import decide
from tierwall.network.model.endpoints import address_endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import NetworkRule, TierName
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import parse_address

Object = dict[str, Any]
Change = tuple[list[Object], Object | None, Object]
# What `tierwall check` does not find, because it is only said about a change.
OF_CHANGES = ("TW208", "TW216", "TW217")
OVERRIDDEN = ("TW202", "TW203", "TW212")
# So many policies are a crowd.
MANY = 500


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """A random cluster, and a policy before and after a change."""
    objects = draw(clusters())
    policy = draw(st.sampled_from((admin_policies("changed"), network_policies("changed"), baselines())))
    old, new = draw(policy), draw(policy)
    if old["kind"] != new["kind"]:
        old = new
    if "namespace" in new["metadata"]:
        old["metadata"]["namespace"] = new["metadata"]["namespace"]
    if new["metadata"]["name"] == "default":
        objects = [value for value in objects if value["kind"] != new["kind"]]
    return objects, draw(st.sampled_from((old, None))), new


@st.composite
def plain_admin_policies(draw: st.DrawFn, name: str) -> Object:
    """An AdminNetworkPolicy that admission takes, of few priorities, so that policies meet."""
    anybody = st.fixed_dictionaries({"namespaces": st.just({}) | namespace_selectors})
    ports: st.SearchStrategy[list[int]] = st.sampled_from(([], [80], [443]))
    rules = st.builds(
        lambda action, ports, peer: rule(action, *ports, **peer),
        st.sampled_from(("Allow", "Deny", "Pass")),
        ports,
        anybody,
    )
    listed = draw(st.lists(rules, min_size=1, max_size=2))
    return admin(name, *listed, priority=draw(st.integers(0, 1)), subject=draw(anybody))


@st.composite
def plain_network_policies(draw: st.DrawFn, name: str, namespace: str) -> Object:
    """A NetworkPolicy for ingress."""
    peers = st.fixed_dictionaries({"from": st.lists(st.fixed_dictionaries({"podSelector": pod_selectors}), max_size=1)})
    rules = st.lists(peers | st.sampled_from(({}, {"ports": [{"port": 80}]})), max_size=2)
    return network_policy(name, *draw(rules), namespace=namespace, podSelector=draw(st.just({}) | pod_selectors))


# Of the first priority, in the tier that comes last.
BELOW = {
    **admin("below", rule("Deny"), priority=0, tier="Baseline"),
    "apiVersion": "policy.networking.k8s.io/v1alpha2",
    "kind": "ClusterNetworkPolicy",
}


@st.composite
def meeting_changes(draw: st.DrawFn) -> Change:
    """A change in a cluster whose policies override and contradict each other more often than not."""
    objects: list[Object] = []
    for name in NAMESPACES:
        objects.append(namespace(name, **draw(st.sampled_from(({}, {"tenant": "x"}, {"tenant": "y"})))))
        objects.append(pod(name, "p", app=draw(st.sampled_from("xy"))))
        objects += draw(st.lists(plain_network_policies("n", name), max_size=1))
    objects += [draw(plain_admin_policies(f"q{number}")) for number in range(draw(st.integers(1, 3)))]
    objects += draw(st.sampled_from(([], [BELOW])))
    # By its name, the changed policy may come before or after the others.
    name = draw(st.sampled_from(("a", "z")))
    policy = draw(st.sampled_from((plain_admin_policies(name), plain_network_policies(name, NAMESPACES[0]))))
    return objects, draw(st.none() | policy), draw(policy)


def brought(objects: Sequence[Object], old: Object | None, new: Object | None) -> ChangeFindings:
    """Return what a change brings."""
    index = ChangeIndex()
    index.update(snapshot([*objects, *([old] if old else [])]))
    return index.findings(PolicyChange(resource(old) if old else None, resource(new) if new else None), inf)


@settings(max_examples=examples(60))
@given(changes() | meeting_changes())
def test_a_change_brings_what_the_whole_analysis_finds_with_it_only(change: Change) -> None:
    objects, old, new = change
    before = snapshot([*objects, *([old] if old else [])])
    after = before.with_changes(put=[resource(new)])
    about = str(resource(new).reference)

    def whole(of: Snapshot) -> set[Any]:
        findings = (finding for finding in network_findings(of) if finding.code in CODES)
        return {fact for finding in findings for fact in facts(finding, about)}

    result = brought(objects, old, new)
    assert result.is_complete
    known = whole(before)
    incremental = {fact for finding in result.findings for fact in facts(finding, about)}
    assert {fact for fact in incremental if fact[0] not in OF_CHANGES} - known == whole(after) - known


@settings(max_examples=examples(15))
@given(st.lists(clusters(), min_size=2, max_size=3), changes())
def test_an_index_that_follows_a_cluster_is_like_a_new_one(clusters: list[list[Object]], change: Change) -> None:
    _, old, new = change
    followed = ChangeIndex()
    for objects in clusters:
        followed.update(snapshot(objects))
    fresh = ChangeIndex()
    fresh.update(snapshot(clusters[-1]))
    changed = PolicyChange(resource(old) if old else None, resource(new))

    def said(index: ChangeIndex) -> set[Any]:
        about = str(changed.policy.reference)
        return {fact for finding in index.findings(changed, inf).findings for fact in facts(finding, about)}

    assert said(followed) == said(fresh)


def in_a_crowd(objects: Sequence[Object], new: Object) -> set[Any]:
    """Return what a new policy brings if any number of policies is a crowd."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_change, "CROWD", 0)
        result = brought(objects, None, new)
    about = str(resource(new).reference)
    return {fact for finding in result.findings for fact in facts(finding, about)}


@settings(max_examples=examples(60))
@given(changes())
def test_what_is_seen_in_a_crowd_is_true(change: Change) -> None:
    objects, _, new = change
    about = str(resource(new).reference)
    findings = list(network_findings(snapshot(objects).with_changes(put=[resource(new)])))
    whole = {fact for finding in findings for fact in facts(finding, about)}
    # In a crowd, less may be known about the extent.
    overridden = {fact[1:] for fact in whole if fact[0] in OVERRIDDEN}
    seen = {fact for fact in in_a_crowd(objects, new) if fact[0] in ("TW201", *OVERRIDDEN)}
    assert {fact for fact in seen if fact[0] != "TW203"} <= whole
    assert {fact[1:] for fact in seen if fact[0] == "TW203"} <= overridden


@settings(max_examples=examples(60))
@given(meeting_changes())
def test_policies_that_meet_are_seen_in_a_crowd(change: Change) -> None:
    objects, _, new = change
    about = str(resource(new).reference)
    result = {fact for finding in brought(objects, None, new).findings for fact in facts(finding, about)}
    seen = in_a_crowd(objects, new)

    def disagreements(of: set[Any]) -> set[Any]:
        return {fact for fact in of if fact[0] in ("TW201", "TW216")}

    def overrides(of: set[Any]) -> set[Any]:
        return {fact[1:] for fact in of if fact[0] in OVERRIDDEN}

    assert disagreements(seen) == disagreements(result)
    assert overrides(seen) == overrides(result)


def test_what_a_crowd_permits_is_not_opened() -> None:
    local = [network_policy(f"n{number}", {"from": [{"podSelector": {}}]}) for number in range(MANY)]
    everybody = admin("open", rule("Allow", namespaces={}), priority=20)
    here = {"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}
    within = admin("open", rule("Allow", **here), priority=20, subject=here)
    assert overridden_by(brought([*SHOP, *local], None, everybody)) == MANY
    assert overridden_by(brought([*SHOP, *local], None, within)) == 0


def overridden_by(result: ChangeFindings) -> int:
    """Return how many policies are overridden; it must be known of all."""
    assert result.is_complete
    assert "TW215" not in codes(result)
    named = {str(finding.reference) for finding in result.findings if finding.code in OVERRIDDEN}
    return len(named | result.counted)


def test_a_crowd_of_policies_is_counted_and_compared() -> None:
    local = [network_policy(f"n{number}", {"ports": [{"port": 1000 + number}]}) for number in range(MANY)]
    above = [admin(f"a{number}", rule("Allow", 1000 + number), priority=number) for number in range(10)]
    result = brought([*SHOP, *local, *above], None, admin("deny", rule("Deny"), priority=20))
    # Ten are allowed before.
    assert overridden_by(result) == MANY - 10
    above.append(admin("no", rule("Deny", 99), priority=11))
    findings = brought([*SHOP, *local, *above], None, network_policy("new", {"ports": [{"port": 99}]})).findings
    overridden = [(finding.code, finding.related_objects) for finding in findings if finding.code in OVERRIDDEN]
    assert overridden == [("TW203", ("AdminNetworkPolicy/no",))]


def test_what_is_seen_in_a_crowd_of_a_varied_cluster_is_decided_so() -> None:
    assert sum(map(decided_in, SHAPES)) > 10


def decided_in(name: str) -> int:
    """Check examples in clusters of one shape."""
    few = {"namespaces": 4, "values": 4, "ports": 20, "blocks": 20, "priorities": 5, "keys": 4}
    shape = replace(SHAPES[name], **{key: min(most, getattr(SHAPES[name], key)) for key, most in few.items()}, admin=20)
    checked = 0
    for seed in range(3):
        drawn = VariedCluster(shape, 40, seed, policies=80)
        objects = list(drawn.objects())
        for new in (drawn.admin("new"), drawn.local("new")):
            checked += decided_so(objects, new)
    return checked


def decided_so(objects: list[Object], new: Object) -> int:
    """Compare the examples of a new policy's findings with decisions, and count those with pods that exist.

    The policy that is named decides such an example, or one of its priority does.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_change, "CROWD", 0)
        findings = brought(objects, None, new).findings
    model = network_model(snapshot([*objects, new]))
    priorities = {str(policy.reference): policy.priority for policy in model.policies}
    checked = 0
    for finding in findings:
        example = re.fullmatch(r"(\S+)/(\S+) to (\S+)/(\S+) on (\w+) (\d+)", finding.example)
        if finding.code not in ("TW201", *OVERRIDDEN) or example is None:
            continue
        source, destination = (model.pod(*example.group(*names)) for names in ((1, 2), (3, 4)))
        if source is None or destination is None:
            continue
        answer = decide(model, source, destination, example[5], int(example[6]))
        outcomes = answer.egress.outcome, answer.ingress.outcome
        sides = [{by for by in outcome.by if isinstance(by, NetworkRule)} for outcome in outcomes]
        if finding.code == "TW201":
            # In one direction nobody comes before both.
            shared = priorities[str(finding.reference)]
            admin_rules = [{rule for rule in side if rule.tier is TierName.ADMIN} for side in sides]
            first = [min((priorities[str(rule.policy)] for rule in rules), default=shared) for rules in admin_rules]
            assert max(first) >= shared, finding
        else:
            named = {str(rule.policy) for side in sides for rule in side}
            assert {str(finding.reference), *finding.related_objects} & named, finding
        checked += 1
    return checked


SHOP = [namespace("shop"), pod("shop", "web", app="web"), pod("shop", "db", app="db")]
CLOSED = network_policy("closed")
EVERYWHERE = network_policy("open", {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 80}]})


def codes(result: ChangeFindings) -> list[str]:
    """Return the codes of findings, sorted."""
    return sorted(finding.code for finding in result.findings)


def test_a_rule_opens_isolated_pods_to_the_outside() -> None:
    (finding,) = brought([*SHOP, CLOSED], None, EVERYWHERE).findings
    assert finding.code == "TW217"
    assert finding.message == (
        "NetworkPolicy/shop/open opens shop/web and shop/db to IPv4 addresses outside the cluster on TCP 80"
    )


@st.composite
def outside_changes(draw: st.DrawFn) -> tuple[list[Object], Object | None, Object | None]:
    """NetworkPolicies about addresses outside, and a change of one of them."""
    objects = [value for value in draw(clusters(0)) if not value["kind"].endswith("Policy")]
    home = draw(st.sampled_from(NAMESPACES))

    def policy(name: str) -> Object:
        value = draw(network_policies(name))
        value["metadata"]["namespace"] = home
        for rule_of in value["spec"].get("ingress", ()):
            if draw(st.booleans()):
                rule_of["from"] = [{"ipBlock": {"cidr": draw(st.sampled_from(("0.0.0.0/0", "203.0.113.0/24")))}}]
        return value

    objects += [policy(f"other-{number}") for number in range(draw(st.integers(0, 3)))]
    old, new = draw(st.sampled_from((policy("changed"), None))), policy("changed")
    return objects, old, draw(st.sampled_from((new, None))) if old is not None else new


def reached(objects: Sequence[Object], namespace: str) -> set[str]:
    """The pods of a namespace with each address outside, protocol and port that reaches them; decided one by one."""
    model = network_model(snapshot(objects))
    addresses = map(parse_address, ("203.0.113.7", "198.51.100.9", "2001:db8:ffff::1"))
    outside = [address_endpoint(address) for address in addresses if address is not None]
    ports = [(protocol, port) for protocol in ("TCP", "UDP") for port in (1, 79, 80, 81, 443, 8080, 9000, 65535)]
    return {
        f"{pod} {source} {protocol} {port}"
        for pod in model.pods
        if pod.namespace == namespace and pod.under_policy
        for source in outside
        for protocol, port in ports
        if decide(model, source, pod, protocol, port).ingress.outcome.verdict is StepVerdict.ALLOW
    }


@settings(max_examples=examples(80))
@given(outside_changes())
def test_what_a_change_opens_is_what_decisions_say(change: tuple[list[Object], Object | None, Object | None]) -> None:
    objects, old, new = change
    changed = new or old
    assert changed is not None
    home = changed["metadata"]["namespace"]
    before, after = (reached([*objects, *([side] if side else [])], home) for side in (old, new))
    told = [finding for finding in brought(objects, old, new).findings if finding.code == "TW217"]
    if opened := {line.partition(" ")[0] for line in after - before}:
        (finding,) = told
        assert finding.message.partition(" opens ")[2].partition(" ")[0].rstrip(",") in opened


def test_what_is_opened_is_looked_for_no_longer_than_there_is_time() -> None:
    """In one namespace with a thousand policies that differ, thousands of sorts of pods are told apart."""
    pods = [
        pod("shop", f"p{number}", app=f"a{number % 40}", tier=f"t{number % 7}", v=f"{number % 31}")
        for number in range(3000)
    ]
    block = {"ipBlock": {"cidr": "203.0.113.0/24"}}
    others = [
        network_policy(
            f"n{number}",
            {"from": [block], "ports": [{"port": 1000 + number, "endPort": 3000 + 7 * number % 900 + number}]},
            podSelector={"matchLabels": {"tier": f"t{number % 7}"} if number % 2 else {"app": f"a{number % 40}"}},
        )
        for number in range(1000)
    ]
    index = ChangeIndex()
    index.update(snapshot([namespace("shop"), *pods, *others]))
    new = resource(network_policy("new", {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}, podSelector={}))
    begun = time.thread_time()
    brought_by_it = index.findings(PolicyChange(None, new), 0)
    assert time.thread_time() - begun < 10
    assert {finding.code for finding in brought_by_it.findings} & {"TW217", "TW215"}


def test_the_first_policy_of_pods_opens_nothing() -> None:
    assert codes(brought(SHOP, None, EVERYWHERE)) == []


def test_the_last_policy_that_goes_opens_its_pods() -> None:
    (finding,) = brought(SHOP, CLOSED, None).findings
    assert (
        finding.message
        == "NetworkPolicy/shop/closed opens shop/web and shop/db to addresses outside the cluster on all ports"
    )
    assert codes(brought([*SHOP, network_policy("other")], CLOSED, None)) == []


def test_a_policy_that_only_begins_to_watch_opens_its_pods() -> None:
    shadow = {**CLOSED, "metadata": {**CLOSED["metadata"], "annotations": {"tierwall.io/mode": "shadow"}}}
    assert codes(brought(SHOP, CLOSED, shadow)) == ["TW217"]


def test_policies_of_one_priority_that_do_not_meet_are_named() -> None:
    others = [
        namespace("other"),
        pod("other", "p"),
        admin("q", rule("Deny"), subject={"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}),
    ]
    mine = admin(
        "mine", rule("Allow"), subject={"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}
    )
    (finding,) = brought([*SHOP, *others], None, mine).findings
    assert finding.code == "TW216"
    assert finding.message == (
        "AdminNetworkPolicy/q has priority 5 of tier Admin, too; they contradict AdminNetworkPolicy/mine nowhere today"
    )
    assert codes(brought([*SHOP, *others], mine, mine)) == []


def test_overridden_policies_of_many_namespaces_are_counted_until_the_time_is_over() -> None:
    objects = [
        part
        for number in range(40)
        for part in (
            namespace(f"n{number:02}"),
            pod(f"n{number:02}", "p"),
            network_policy("all", {}, namespace=f"n{number:02}"),
        )
    ]
    index = ChangeIndex()
    index.update(snapshot(objects))
    change = PolicyChange(None, resource(admin("deny", rule("Deny"))))
    everything, hurried = index.findings(change, inf), index.findings(change, 0)
    shown = {str(finding.reference) for finding in everything.findings}
    assert len(shown | set(everything.counted)) == 40
    assert everything.is_complete
    assert not hurried.is_complete
    assert codes(hurried) == ["TW215"]


def test_a_policy_that_is_too_large_is_not_compared_and_says_so() -> None:
    ports = [{"port": number} for number in range(1, 502)]
    large = network_policy("large", {"ports": ports})
    deny = admin("deny", rule("Deny"))
    assert codes(brought([*SHOP, deny], None, large)) == ["TW215"]
    small = network_policy("large", {"ports": ports[:400]})
    assert "TW215" not in codes(brought([*SHOP, deny], None, small))


@pytest.mark.parametrize("is_proved", [True, False], ids=["time", "no-time"])
@pytest.mark.parametrize("was_there", [True, False], ids=["before", "not-before"])
def test_rules_that_never_count_are_proved_while_there_is_time(
    monkeypatch: pytest.MonkeyPatch, is_proved: bool, was_there: bool
) -> None:
    """Nothing is said of what cannot be proved in time, nor of what may have been there before."""
    objects = [namespace("shop"), pod("shop", "web"), admin("first", rule("Deny"), priority=1)]
    allow = admin("changed", rule("Allow"), priority=2)
    old = allow if was_there else admin("changed", rule("Allow"), priority=0)
    if not is_proved:
        monkeypatch.setattr(change_findings, "PROOFS_BEFORE" if was_there else "PROOFS", -1.0)
    index = ChangeIndex()
    index.update(snapshot([*objects, old]))
    result = index.findings(PolicyChange(resource(old), resource(allow)), 1000.0)
    codes = {finding.code for finding in result.findings}
    assert ("TW207" in codes) is (is_proved and not was_there)
    assert ("TW215" in codes) is (not is_proved and not was_there)
