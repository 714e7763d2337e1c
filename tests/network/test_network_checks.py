"""The mitigations of KEP-2091 in `tierwall check`: conflicts with a witness, overridden and shadowed rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.network_objects import admin, namespace, network_policy, pod, rule
from tests.worlds.network_snapshots import snapshot
from tierwall.analyze import network_cells, network_shadowed
from tierwall.analyze.network_checks import network_findings
from tierwall.core.diagnostics import Diagnostic

Object = dict[str, Any]
ALL: Object = {"namespaces": {}}


PODS = [namespace("shop", team="a"), pod("shop", "web", app="web"), pod("shop", "db", app="db")]


def findings(*objects: Object, code: str = "") -> list[Diagnostic]:
    all_findings = list(network_findings(snapshot([*PODS, *objects])))
    return [finding for finding in all_findings if finding.code.startswith(code)]


def in_team(team: str) -> Object:
    return {"namespaces": {"matchLabels": {"team": team}}}


def labelled(key: str, operator: str) -> Object:
    return {"namespaces": {"matchExpressions": [{"key": key, "operator": operator}]}}


def test_conflicting_rules_of_equal_priority_are_reported_with_a_connection() -> None:
    (finding,) = findings(admin("a", rule("Allow")), admin("b", rule("Deny", 80)), code="TW201")
    assert str(finding.reference) == "AdminNetworkPolicy/b"
    assert "AdminNetworkPolicy/a ingress[0]" in finding.message
    assert "on TCP 80" in finding.message


def cluster_policy(name: str, action: str, tier: str, priority: int = 5) -> Object:
    policy = admin(name, rule(action), priority=priority, tier=tier)
    return policy | {"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy"}


def test_policies_of_equal_priority_disagree_in_the_baseline_tier_too() -> None:
    both = cluster_policy("a", "Accept", "Baseline"), cluster_policy("b", "Deny", "Baseline")
    (finding,) = findings(*both, code="TW201")
    assert str(finding.reference) == "ClusterNetworkPolicy/b"
    assert findings(*both, admin("first", rule("Deny"), priority=1), code="TW201") == []
    assert len(findings(*both, admin("first", rule("Pass"), priority=1), code="TW201")) == 1
    assert findings(*both, network_policy("np", {}), network_policy("n", {}, namespace="x"), code="TW201") != []
    assert findings(both[0], cluster_policy("b", "Deny", "Admin"), code="TW201") == []
    # The only BaselineAdminNetworkPolicy comes after all others.
    assert findings(cluster_policy("a", "Accept", "Baseline", 0), admin("default", rule("Deny")), code="TW201") == []


def test_equal_priorities_with_disjoint_subjects_do_not_conflict() -> None:
    first = admin("a", rule("Allow"), subject=in_team("a"))
    second = admin("b", rule("Deny"), subject={"namespaces": {"matchLabels": {"team": "b"}}})
    assert findings(first, second, code="TW201") == []


def test_equal_priorities_with_disjoint_ports_or_equal_actions_do_not_conflict() -> None:
    assert findings(admin("a", rule("Allow", 80)), admin("b", rule("Deny", 81)), code="TW201") == []
    assert findings(admin("a", rule("Deny")), admin("b", rule("Deny", 81)), code="TW201") == []


def test_a_conflict_that_a_policy_of_higher_precedence_decides_is_not_reported() -> None:
    above = admin("top", rule("Deny"), priority=1)
    assert findings(above, admin("a", rule("Allow")), admin("b", rule("Deny", 80)), code="TW201") == []


def test_a_conflict_that_only_future_pods_would_have_is_reported_by_label() -> None:
    first = admin("a", rule("Allow", namespaces={"matchLabels": {"team": "z"}}))
    second = admin("b", rule("Deny"))
    (finding,) = findings(first, second, code="TW201")
    assert "a namespace with team=z" in finding.message


def test_a_network_policy_rule_that_admins_deny_completely_is_overridden() -> None:
    (finding,) = findings(admin("a", rule("Deny")), network_policy("np", {"from": [{"podSelector": {}}]}), code="TW202")
    assert str(finding.reference) == "NetworkPolicy/shop/np"
    assert (
        "AdminNetworkPolicy/a ingress[0] denies everything NetworkPolicy/shop/np ingress[0] allows" in finding.message
    )


def test_a_partly_denied_rule_is_a_note_and_pass_overrides_nothing() -> None:
    (finding,) = findings(admin("a", rule("Deny", 81)), network_policy("np", {}))
    assert finding.code == "TW203"
    assert findings(admin("a", rule("Pass")), network_policy("np", {})) == []


def test_a_developer_who_sees_one_namespace_learns_which_admin_policy_overrides_a_rule() -> None:
    peer = {"from": [{"namespaceSelector": {"matchLabels": {"team": "other"}}}]}
    deny = admin("fence", rule("Deny", namespaces={"matchLabels": {"team": "other"}}))
    conflicts = findings(deny, network_policy("np", peer), code="TW202")
    assert len(conflicts) == 1
    assert "AdminNetworkPolicy/fence" in conflicts[0].message
    assert "a namespace with team=other" in conflicts[0].message


def test_isolation_that_an_admin_policy_opens_in_part_is_a_note() -> None:
    (allowing,) = [
        finding for finding in findings(admin("a", rule("Allow", 80)), network_policy("np")) if finding.code == "TW203"
    ]
    assert "AdminNetworkPolicy/a ingress[0] allows what NetworkPolicy/shop/np would drop" in allowing.message


def test_a_rule_after_one_that_matches_everything_can_never_count() -> None:
    (finding,) = findings(admin("a", rule("Deny"), rule("Allow", 80)), code="TW207")
    assert "AdminNetworkPolicy/a ingress[1] can never count" in finding.message
    assert "AdminNetworkPolicy/a ingress[0]" in finding.message.split("before by")[1]


def test_a_rule_counts_if_only_future_pods_would_match_it_by_port_name_or_tenant() -> None:
    named = {"action": "Allow", "from": [ALL], "ports": [{"namedPort": "metrics"}]}
    assert findings(admin("a", rule("Deny", 80), named), code="TW207") == []
    tenants = rule("Deny", namespaces={"notSameLabels": ["team"]})
    assert findings(admin("a", rule("Deny", **in_team("a")), tenants), code="TW207") == []


def test_a_rule_that_several_rules_cover_together_can_never_count() -> None:
    shadowed = findings(
        admin("a", rule("Allow", namespaces={"matchExpressions": [{"key": "team", "operator": "Exists"}]}), priority=1),
        admin(
            "b",
            rule("Allow", namespaces={"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}),
            priority=2,
        ),
        admin("c", rule("Deny"), priority=3),
        code="TW207",
    )
    (finding,) = shadowed
    assert {"AdminNetworkPolicy/a ingress[0]", "AdminNetworkPolicy/b ingress[0]"} <= set(
        finding.message.split("before by ")[1].split(" and ")
    )


def test_a_rule_counts_if_only_a_pod_with_three_labels_would_match_it() -> None:
    # Only namespaces with all three labels get to the last rule, and no two selectors together require all three.
    shadowed = findings(
        admin("a", *(rule("Allow", **labelled(key, "DoesNotExist")) for key in ("team", "env", "region")), priority=1),
        admin("b", rule("Deny"), priority=2),
        code="TW207",
    )
    assert shadowed == []


def test_a_rule_about_a_port_name_counts_on_another_protocol() -> None:
    everything = {"portRange": {"start": 1, "end": 65535}}
    named = {"action": "Deny", "from": [ALL], "ports": [{"namedPort": "dns"}]}
    tcp = {"action": "Allow", "from": [ALL], "ports": [everything]}
    assert findings(admin("a", tcp, named, priority=1), code="TW207") == []
    others = [{"portRange": everything["portRange"] | {"protocol": protocol}} for protocol in ("UDP", "SCTP")]
    assert len(findings(admin("a", {**tcp, "ports": [everything, *others]}, named, priority=1), code="TW207")) == 1


def test_a_network_policy_rule_is_overridden_only_if_no_future_pod_escapes() -> None:
    fences = [rule("Deny", **labelled(key, "DoesNotExist")) for key in ("team", "env", "region")]
    anywhere: Object = {"from": [{"namespaceSelector": {}}]}
    assert findings(admin("a", *fences, priority=1), network_policy("np", anywhere), code="TW202") == []
    assert len(findings(admin("a", *fences, priority=1), network_policy("np", anywhere), code="TW203")) == 1
    assert (
        len(findings(admin("a", *fences, rule("Deny"), priority=1), network_policy("np", anywhere), code="TW202")) == 1
    )


def test_one_question_is_about_all_network_policies_that_admins_deny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_shadowed, "MAX_QUESTIONS", 1)
    many = [network_policy(f"np{number}", {"from": [{"podSelector": {}}]}) for number in range(20)]
    denied = findings(admin("a", rule("Deny"), priority=1), *many, code="TW202")
    assert {str(finding.reference) for finding in denied} == {f"NetworkPolicy/shop/np{n}" for n in range(20)}


def test_of_network_policies_that_admins_deny_those_are_named_that_nothing_gets_through_to() -> None:
    fence = rule("Deny", namespaces={"matchLabels": {"team": "x"}})
    teams = ("x", "y", "x", "x", "y", "y", "x")
    many = [
        network_policy(f"np{number}", {"from": [{"namespaceSelector": {"matchLabels": {"team": team}}}]})
        for number, team in enumerate(teams)
    ]
    denied = findings(admin("a", fence, priority=1), *many, code="TW202")
    names = {f"NetworkPolicy/shop/np{number}" for number, team in enumerate(teams) if team == "x"}
    assert {str(finding.reference) for finding in denied} == names


def test_the_search_for_rules_after_thousands_of_others_is_bounded() -> None:
    many = [
        admin(
            f"p{number:03}",
            rule("Deny", namespaces={"matchLabels": {f"k{number}": "x"}}),
            rule("Allow", 80),
            priority=number,
        )
        for number in range(300)
    ]
    shadowed = findings(*many, code="TW207")
    assert {str(finding.reference) for finding in shadowed} <= {
        f"AdminNetworkPolicy/p{number:03}" for number in range(1, 300)
    }


def test_a_pass_lets_a_baseline_rule_count_and_a_deny_does_not() -> None:
    baseline = admin("default", rule("Deny", 80))
    assert findings(admin("a", rule("Pass"), priority=1), baseline, code="TW207") == []
    (finding,) = findings(admin("a", rule("Deny"), priority=1), baseline, code="TW207")
    assert str(finding.reference) == "BaselineAdminNetworkPolicy/default"


def test_subjects_and_peers_that_select_nothing_are_reported() -> None:
    codes = [finding.code for finding in findings(admin("a", rule("Deny"), priority=1, subject=in_team("nobody")))]
    assert codes == ["TW204"]
    codes = [
        finding.code
        for finding in findings(admin("a", rule("Deny", namespaces={"matchLabels": {"team": "x"}}), priority=1))
    ]
    assert codes == ["TW205"]


def test_namespaces_without_the_tenancy_label_are_reported() -> None:
    peer = {"namespaces": {"notSameLabels": ["team"]}}
    (finding,) = findings(
        admin("a", rule("Deny", **peer), priority=1), namespace("loose"), pod("loose", "p"), code="TW206"
    )
    assert "loose" in finding.message
    assert "shop" not in finding.message


def test_the_other_reading_of_not_same_labels_is_reported_where_it_differs() -> None:
    policy = admin("a", rule("Deny", namespaces={"notSameLabels": ["team", "env"]}), priority=1)
    (finding,) = findings(policy, namespace("bare"), pod("bare", "p"), code="TW206")
    assert "bare and shop" in finding.message
    assert finding.hint.endswith("it would select bare")


def test_a_thousand_policies_of_one_priority_give_few_findings() -> None:
    many = [admin(f"p{number:04}", rule("Allow" if number % 2 else "Deny", 80), priority=7) for number in range(1000)]
    *shown, others = findings(*many, code="TW201")
    assert len(shown) == 49
    assert sum(finding.count for finding in (*shown, others)) == 999
    assert len(others.related_objects) == others.count
    assert "(5 policies of this priority disagree with it)" in shown[8].message


def test_a_hundred_admin_policies_are_reported_once_for_each_network_policy_with_the_widest_example() -> None:
    admins = [
        admin(f"a{number:03}", rule("Allow", 1000 + number, **in_team("a")), priority=number) for number in range(99)
    ]
    wide = admin("wide", {**rule("Allow"), "ports": [{"portRange": {"start": 2000, "end": 3000}}]}, priority=99)
    policies = [network_policy(f"np{number}", podSelector={"matchLabels": {"app": "web"}}) for number in range(20)]
    listed = findings(*admins, wide, *policies, code="TW20")
    assert [finding.code for finding in listed] == ["TW203"] * 20
    assert listed[0].message.startswith("AdminNetworkPolicy/wide ingress[0] and 99 more allow what")
    assert len(listed[0].related_objects) == 100
    assert len(listed[0].related) == 5


def test_rules_of_a_network_policy_that_fare_alike_share_a_finding() -> None:
    peers = [{"from": [{"podSelector": {"matchLabels": {"app": app}}}]} for app in ("web", "db")]
    (finding,) = findings(admin("a", rule("Deny")), network_policy("np", *peers), code="TW202")
    assert finding.places == ("ingress[0]", "ingress[1]")
    assert "denies everything 2 rules of NetworkPolicy/shop/np (ingress[0] and ingress[1]) allow" in finding.message


def test_an_allow_that_opens_a_whole_network_policy_is_a_warning() -> None:
    (finding,) = findings(admin("a", rule("Allow")), network_policy("np"))
    assert finding.code == "TW212"
    assert "allows everything from pods that NetworkPolicy/shop/np would drop" in finding.message
    # A policy with rules is opened too, and several rules may do so together.
    halves = [rule("Allow", **labelled("team", operator)) for operator in ("Exists", "DoesNotExist")]
    some = {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}
    assert [finding.code for finding in findings(admin("a", *halves), network_policy("np", some), code="TW21")] == [
        "TW212"
    ]


def test_an_allow_that_leaves_something_to_drop_is_a_note() -> None:
    for part in (rule("Allow", 80), rule("Allow", **in_team("a"))):
        assert [finding.code for finding in findings(admin("a", part), network_policy("np"))] == ["TW203"]
    denied = admin("z", rule("Deny", 80), priority=1)
    codes = {finding.code for finding in findings(denied, admin("a", rule("Allow")), network_policy("np"))}
    assert codes == {"TW203"}


def test_an_egress_policy_is_opened_by_an_egress_rule_alone() -> None:
    closed = network_policy("np", policyTypes=["Egress"], ingress=[])
    everywhere: Object = {"action": "Allow", "to": [ALL]}
    (finding,) = findings(admin("a", egress=[everywhere]), closed)
    assert (finding.code, finding.places) == ("TW212", ("egress",))
    assert "everything to pods that" in finding.message
    assert findings(admin("a", rule("Allow")), closed) == []


def with_ports(namespace: str, name: str, *ports: Object, **labels: str) -> Object:
    made = pod(namespace, name, **labels)
    made["spec"]["containers"][0]["ports"] = list(ports)
    return made


METRICS = {"name": "metrics", "containerPort": 9090}
NAMED = {"ports": [{"namedPort": "metrics"}]}


def test_a_named_port_that_no_pod_of_the_subject_has_matches_nothing() -> None:
    deny = {"action": "Deny", "from": [ALL], **NAMED}
    for policy in (admin("a", deny), admin("default", deny)):
        (finding,) = findings(policy)
        assert (finding.code, finding.places) == ("TW213", ("ingress[0].ports[0]",))
        assert (
            "ingress[0] matches nothing on `metrics`: no pod of its subject has a port of this name" in finding.message
        )
        assert findings(policy, with_ports("shop", "m", METRICS)) == []
    near = with_ports("shop", "m", {"name": "metric", "containerPort": 1})
    assert findings(admin("a", deny), near)[0].hint == "did you mean `metric`?"


def test_a_named_port_of_a_cluster_network_policy_is_found_at_its_entry() -> None:
    policy = admin("c", tier="Admin", ingress=[
        {"action": "Deny", "from": [ALL], "protocols": [{"destinationNamedPort": "metrics"}]},
    ])  # fmt: skip
    policy |= {"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy"}
    (finding,) = findings(policy)
    assert (finding.code, finding.places) == ("TW213", ("ingress[0].protocols[0]",))


def test_a_named_port_of_a_network_policy_needs_the_protocol_too() -> None:
    policy = network_policy("np", {"ports": [{"port": "dns", "protocol": "UDP"}]})
    tcp, udp = ({"name": "dns", "containerPort": 53, "protocol": protocol} for protocol in ("TCP", "UDP"))
    (finding,) = findings(policy, with_ports("shop", "dns", tcp))
    assert (finding.code, "no pod of its subject has a UDP port" in finding.message) == ("TW213", True)
    assert findings(policy, with_ports("shop", "dns", udp)) == []


def test_a_named_port_of_egress_is_that_of_the_peers() -> None:
    rule_out = {"to": [{"podSelector": {"matchLabels": {"app": "db"}}}], "ports": [{"port": "metrics"}]}
    policy = network_policy("np", policyTypes=["Egress"], ingress=[], egress=[rule_out])
    (finding,) = findings(policy, with_ports("shop", "m", METRICS))
    assert (finding.code, "no pod of its peers" in finding.message) == ("TW213", True)
    assert findings(policy, with_ports("shop", "m", METRICS, app="db")) == []
    everybody = network_policy("np", policyTypes=["Egress"], ingress=[], egress=[{"ports": [{"port": "metrics"}]}])
    assert findings(everybody, with_ports("shop", "m", METRICS)) == []


def test_rules_of_one_policy_that_share_a_name_are_reported() -> None:
    first, second = {**rule("Deny", 80), "name": "x"}, {**rule("Allow", 81), "name": "x"}
    (finding,) = findings(admin("a", first, second))
    assert (finding.code, finding.places) == ("TW214", ("ingress[1].name",))
    out = {"action": "Deny", "to": [ALL], "name": "x", "ports": [{"portNumber": {"port": 80}}]}
    (finding,) = findings(admin("a", first, egress=[out]))
    assert (finding.code, finding.places) == ("TW214", ("ingress[0].name",))
    assert findings(admin("a", first, priority=1), admin("b", {**second, "action": "Deny"}, priority=2)) == []


def without_pods(*objects: Object, alone: str | None = None) -> list[Diagnostic]:
    return list(network_findings(snapshot(objects), alone))


ELSEWHERE = {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]}


def test_policies_alone_are_one_note() -> None:
    many = [
        network_policy(f"np{number}", {"from": [{"podSelector": {}}], "ports": [{"port": "x"}]}) for number in range(9)
    ]
    (finding,) = without_pods(*many, admin("a", rule("Deny", 80)), namespace("shop"))
    assert (finding.code, str(finding.severity)) == ("TW211", "note")
    assert finding.message == "no pods were given, so it was not checked whether policies select any"


def test_a_policy_in_a_namespace_without_given_pods_is_not_judged_by_the_pods_of_others() -> None:
    other = network_policy("np", {"from": [{"podSelector": {}}]}, namespace="bank")
    (finding,) = findings(other)
    assert (finding.code, finding.related_objects) == ("TW211", ("pods of bank",))
    assert "pods of bank were not given" in finding.message
    # An admin policy about a namespace that is declared, of which no pods were given.
    subject = {"namespaces": {"matchLabels": {"team": "b"}}}
    (finding,) = findings(namespace("bank", team="b"), admin("a", rule("Deny", 80), subject=subject))
    assert finding.code == "TW211"
    (finding,) = findings(admin("a", rule("Deny", 80), subject=subject))
    assert finding.code == "TW204"


def test_a_peer_in_a_namespace_that_was_not_given_is_noted_and_a_misspelled_one_is_a_warning() -> None:
    (finding,) = findings(network_policy("np", ELSEWHERE))
    assert (finding.code, finding.related_objects) == ("TW211", ("pods of monitoring",))
    (finding,) = findings(network_policy("np", ELSEWHERE), namespace("monitorin"), pod("monitorin", "prometheus"))
    assert (finding.code, finding.hint) == ("TW205", "did you mean `monitorin`?")
    (finding,) = findings(network_policy("np", ELSEWHERE), namespace("monitoring"))
    assert finding.code == "TW211"
    wrong = {"from": [{**ELSEWHERE["from"][0], "podSelector": {"matchLabels": {"app": "nobody"}}}]}
    (finding,) = findings(network_policy("np", wrong), namespace("monitoring"), pod("monitoring", "prometheus"))
    assert finding.code == "TW205"


def test_labels_of_namespaces_are_judged_only_if_namespaces_were_given() -> None:
    peer = {"from": [{"namespaceSelector": {"matchLabels": {"team": "nobody"}}}]}
    pods = [pod("shop", "web", app="web")]
    (finding,) = without_pods(*pods, network_policy("np", peer))
    assert (finding.code, finding.related_objects) == ("TW211", ("namespaces with team=nobody",))
    (finding,) = without_pods(*pods, namespace("shop"), network_policy("np", peer))
    assert finding.code == "TW205"


def test_nodes_are_judged_only_if_nodes_were_given() -> None:
    to_nodes = {"action": "Deny", "to": [{"nodes": {"matchLabels": {"pool": "x"}}}]}
    policy = admin("a", egress=[to_nodes])
    (finding,) = findings(policy)
    assert (finding.code, finding.related_objects) == ("TW211", ("nodes",))
    node: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {}}}
    (finding,) = findings(policy, node)
    assert finding.code == "TW205"


def test_the_owner_of_a_namespace_is_not_told_about_pods_that_are_hidden() -> None:
    nobody = {"from": [{"podSelector": {"matchLabels": {"app": "nobody"}}}]}
    anywhere = {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "agent"}}}]}
    to_agents = network_policy(
        "out", policyTypes=["Egress"], ingress=[], egress=[{"to": anywhere["from"], "ports": [{"port": "metrics"}]}]
    )
    elsewhere = admin("a", rule("Deny", 80, **in_team("nobody")), subject=in_team("nobody"))
    objects = [*PODS, network_policy("np", ELSEWHERE, anywhere, nobody), to_agents, elsewhere]
    assert [finding.places for finding in without_pods(*objects, alone="shop")] == [("ingress[2].from[0]",)]
    (finding,) = without_pods(network_policy("np", nobody), alone="shop")
    assert finding.code == "TW211"


def test_without_policies_there_are_no_findings() -> None:
    assert findings() == []


def test_policies_with_too_many_pairs_of_rules_and_ports_are_named_and_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = [admin("a", rule("Allow")), network_policy("np", *({"ports": [{"port": port}]} for port in range(1, 50)))]
    monkeypatch.setattr(network_cells, "MAX_PAIRS", 40)
    (finding,) = findings(*objects)
    assert (finding.code, str(finding.severity)) == ("TW215", "note")
    assert finding.related_objects == ("AdminNetworkPolicy/a", "NetworkPolicy/shop/np")
    monkeypatch.undo()
    assert [finding.code for finding in findings(*objects)] == ["TW212"]


def test_thousands_of_rules_on_all_ports_beside_thousands_on_single_ports_end_at_once() -> None:
    everywhere = [
        {"from": [{"ipBlock": {"cidr": f"10.0.{number // 250}.{number % 250}/32"}}]} for number in range(3000)
    ]
    single = [{"ports": [{"port": number}]} for number in range(1, 3000)]
    codes = [
        finding.code for finding in findings(admin("a", rule("Allow")), network_policy("np", *everywhere, *single))
    ]
    assert codes == ["TW215"]
