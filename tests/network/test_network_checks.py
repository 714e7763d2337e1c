"""The mitigations of KEP-2091 in `tierwall check`: conflicts with a witness, overridden and shadowed rules."""

from __future__ import annotations

from typing import Any

from tests.worlds.network_objects import admin, namespace, network_policy, pod, rule
from tests.worlds.network_snapshots import snapshot
from tierwall.analyze.network import network_findings
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


def test_isolation_that_an_admin_policy_opens_is_a_note() -> None:
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
    shadowed = findings(*many, code="TW201")
    assert 1 <= len(shadowed) <= 50


def test_without_policies_there_are_no_findings() -> None:
    assert findings() == []
