"""`tierwall explain network`: the sentence, the walk, the source lines, and an exit code for each verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tierwall
from tierwall import NetworkQuestion
from tierwall.cli.main import root
from tierwall.core.words import with_hint

CLUSTER = """\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: c, image: i}]}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: pay, labels: {app: db}}
spec: {containers: [{name: c, image: i}]}
status: {podIP: 10.0.0.2}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: deny-all}
spec:
  priority: 1
  subject: {namespaces: {}}
  ingress:
  - action: Pass
    from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}]
  egress:
  - {action: Allow, to: [{domainNames: [example.org]}]}
  - {action: Deny, to: [{networks: [203.0.113.0/24]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: pay}
spec:
  podSelector: {}
  ingress:
  - ports: [{port: 5432}]
"""

# Its rule about a domain makes every egress conditional.
BARE = ("--without", "AdminNetworkPolicy/deny-all")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return str(path)


def explain(file: str, source: str, destination: str, port: int, *more: str) -> Result:
    arguments = ["explain", "network", "--from", source, "--to", destination, "--port", str(port), "-f", file, *more]
    return CliRunner().invoke(root, arguments)


def test_an_allowed_connection_is_explained_by_a_sentence_a_walk_and_source_lines(file: str) -> None:
    done = explain(file, "shop/web", "pay/db", 5432)
    assert done.exit_code == 0
    first, *rest = done.output.splitlines()
    assert first.startswith("shop/web can reach pay/db on TCP port 5432: ")
    walk = (
        "ingress  Allow          admin: AdminNetworkPolicy/deny-all ingress[0] passed → "
        "namespace: NetworkPolicy/pay/db ingress[0] allowed"
    )
    assert walk in rest
    assert f"{file}:32:5: NetworkPolicy/pay/db ingress[0] allowed" in rest
    assert "    - ports: [{port: 5432}]" in rest


def test_a_denied_connection_exits_with_3(file: str) -> None:
    done = explain(file, "shop/web", "pay/db", 80)
    assert done.exit_code == 3
    assert done.output.startswith(
        "shop/web cannot reach pay/db on TCP port 80: "
        "NetworkPolicy/pay/db isolates the destination for ingress and no rule allows it\n"
    )


def test_policies_that_isolate_both_ends_share_a_reason(file: str, tmp_path: Path) -> None:
    path = tmp_path / "more.yaml"
    policy = {"podSelector": {}, "policyTypes": ["Egress"]}
    about = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    path.write_text(json.dumps({**about, "metadata": {"name": "out", "namespace": "shop"}, "spec": policy}))
    start = "shop/web cannot reach pay/db on TCP port 80: NetworkPolicy/shop/out isolates the source for egress"
    both = explain(file, "shop/web", "pay/db", 80, "-f", str(path), *BARE).output.splitlines()[0]
    assert both == f"{start}, NetworkPolicy/pay/db isolates the destination for ingress, and no rule allows it"
    source_alone = explain(file, "shop/web", "pay/db", 5432, "-f", str(path), *BARE).output.splitlines()[0]
    assert source_alone == f"{start.replace('80', '5432')} and no rule allows it"


def test_a_rule_that_denies_and_an_isolation_are_two_reasons(file: str, tmp_path: Path) -> None:
    path = tmp_path / "more.yaml"
    spec = {"podSelector": {}, "policyTypes": ["Egress"]}
    about = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "out"}}
    deny = {"name": "no", "action": "Deny", "from": [{"namespaces": {}}]}
    guard = {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "guard"},
        "spec": {"priority": 0, "subject": {"namespaces": {}}, "ingress": [deny]},
    }
    path.write_text(f"{json.dumps({**about, 'spec': spec})}\n{json.dumps(guard)}")
    sentence = explain(file, "shop/web", "pay/db", 80, "-f", str(path), "-n", "shop", *BARE).output.splitlines()[0]
    assert sentence.endswith(
        "NetworkPolicy/shop/out isolates the source for egress and no rule allows it, "
        "and AdminNetworkPolicy/guard ingress[0] (no) denies its ingress"
    )


def test_a_conditional_connection_exits_with_5(file: str) -> None:
    done = explain(file, "shop/web", "203.0.113.9", 80)
    assert done.exit_code == 5
    assert done.output.startswith(
        "shop/web can reach 203.0.113.9 on TCP port 80 only if its address belongs to the domain `example.org` ("
    )


def test_json_is_the_decision_document(file: str) -> None:
    done = explain(file, "shop/web", "pay/db", 53, "--protocol", "udp", "-o", "json")
    assert done.exit_code == 3
    got = json.loads(done.output)
    assert got["verdict"] == "Deny"
    assert got["connection"] == {"from": "shop/web", "to": "pay/db", "protocol": "UDP", "port": 53}
    assert got["trace"][-1] == {
        "direction": "ingress",
        "tier": "Namespace",
        "verdict": "Deny",
        "reason": "Isolated",
        "policy": "NetworkPolicy/pay/db",
        "rule": "spec",
        "source": {"file": file, "line": 30, "column": 3},
    }


def test_a_question_about_an_unknown_pod_exits_with_1_and_a_hint(file: str) -> None:
    done = explain(file, "shop/wep", "node:n1", 0)
    assert done.exit_code == 1
    assert "there is no pod `wep` in namespace `shop` (did you mean `web`?)" in done.output
    assert "there is no node `n1`" in done.output
    assert "expected a number from 1 to 65535 as `port`, found `0`" in done.output
    assert explain(file + "x", "shop/web", "pay/db", 80).exit_code == 1


def test_a_node_that_yaml_does_not_read_as_a_string_is_an_error() -> None:
    with pytest.raises(tierwall.InputError) as raised:
        tierwall.load().ask(NetworkQuestion.from_dict({"from": "a/b", "to": {"node": False}, "port": 1}))
    assert "expected the name of a node in `to`, found `false` (put it in quotes)" in map(
        str, (with_hint(problem.message, problem.hint) for problem in raised.value.diagnostics)
    )
