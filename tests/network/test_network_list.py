"""Lists do not depend on the order of objects, and hostile names do not break any format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tierwall
from bench.listing import cluster
from tests.randomness import examples
from tests.worlds.network_clusters import clusters
from tests.worlds.network_objects import pod
from tests.worlds.network_snapshots import snapshot
from tierwall.cli.main import root
from tierwall.explore.one_file import ListedConnections, list_page
from tierwall.network.model.model import NetworkModel
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.connections import connections
from tierwall.network.reach.listing import TooManyBlocks, connection_entries, pair_entries, picture
from tierwall.network.reach.matrix import reach_matrix
from tierwall.network.reach.naming import NamedEndpoints
from tierwall.render import connections as lists
from tierwall.render import pictures
from tierwall.render.formats import View

Object = dict[str, Any]


@settings(max_examples=examples(60))
@given(clusters(), st.randoms(use_true_random=False))
def test_a_list_does_not_depend_on_the_order_of_objects(objects: list[Object], chance: Any) -> None:
    shuffled = list(objects)
    chance.shuffle(shuffled)
    first, second = (connections(snapshot(some), explain=True, denied=True).matrix for some in (objects, shuffled))
    assert list(lists.text(connection_entries(first, True), View())) == list(
        lists.text(connection_entries(second, True), View())
    )


CLUSTER = """
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {tenant: red}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: pay}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: i, ports: [{name: pg, containerPort: 5432}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: pay}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{namespaceSelector: {matchLabels: {tenant: red}}}]
    ports: [{port: pg}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: outside}
spec:
  priority: 1
  subject: {namespaces: {}}
  egress:
  - {action: Allow, to: [{domainNames: [api.example.org]}], ports: [{portNumber: {port: 443}}]}
  - {action: Deny, to: [{networks: [0.0.0.0/0, "::/0"]}]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return str(tmp_path)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(root, ["list", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_text_groups_by_workload_and_names_conditions(folder: str) -> None:
    assert run(folder).splitlines() == [
        "shop/web[Deployment] => pay/db[StatefulSet] : TCP 5432",
        "shop/web[Deployment], outside => shop/web[Deployment] : all",
        "every pod => outside : TCP 443 if api.example.org",
    ]


def test_deciders_and_denied_connections_are_shown_on_request(folder: str) -> None:
    assert run(folder, "--explain", "--denied", "--from", "shop/web", "--to", "pay").splitlines() == [
        "shop/web[Deployment] => pay/db[StatefulSet] : TCP 5432, denied TCP 1-5431,5433-65535; UDP all; SCTP all",
        "    denied TCP 1-5431,5433-65535; UDP all; SCTP all: egress Default; ingress NetworkPolicy/pay/db spec",
        "    TCP 5432: egress Default; ingress NetworkPolicy/pay/db ingress[0]",
    ]


def test_filters_select_endpoints_addresses_and_ports(folder: str) -> None:
    assert run(folder, "--from", "shop/web-0", "--to", "pay/*", "--port", "5432/tcp").splitlines() == [
        "shop/web-0 => pay/db[StatefulSet] : TCP 5432"
    ]
    assert run(folder, "--from", "203.0.113.7", "--to", "shop", "--port", "80-81/UDP").splitlines() == [
        "203.0.113.7 => shop/web[Deployment] : UDP 80-81"
    ]
    assert run(folder, "--to", "pay", "--port", "80") == ""


def test_the_outside_is_a_reserved_word(folder: str) -> None:
    assert run(folder, "--from", "outside").splitlines() == ["outside => shop/web[Deployment] : all"]
    assert run(folder, "--to", "outside", "--from", "pay").splitlines() == [
        "pay/db[StatefulSet] => outside : TCP 443 if api.example.org"
    ]


def test_a_focus_shows_both_directions(folder: str) -> None:
    assert run(folder, "--focus", "pay/db").splitlines() == [
        "shop/web[Deployment] => pay/db[StatefulSet] : TCP 5432",
        "pay/db[StatefulSet] => outside : TCP 443 if api.example.org",
    ]
    done = CliRunner().invoke(root, ["list", folder, "--focus", "shpo"])
    assert "there is no namespace, pod, workload or node `shpo` for `focus` (did you mean `shop`?)" in done.output


def test_an_endpoint_may_be_named_with_its_kind(folder: str) -> None:
    assert run(folder, "--focus", "StatefulSet/pay/db") == run(folder, "--focus", "pay/db")
    assert run(folder, "--from", "Pod/shop/web-*", "--to", "pay") == run(folder, "--from", "shop/web-*", "--to", "pay")
    done = CliRunner().invoke(root, ["list", folder, "--focus", "Deployment/pay/db"])
    assert "there is no namespace, pod, workload or node `Deployment/pay/db` for `focus`" in done.output


def test_a_pod_that_has_ended_is_said_to_have_ended() -> None:
    ended = {**pod("shop", "done"), "status": {"phase": "Succeeded"}}
    with pytest.raises(tierwall.InputError) as refused:
        tierwall.load(objects=[pod("shop", "web"), ended]).connections(focus=["shop/done"])
    assert refused.value.diagnostics[0].hint.startswith("it has ended")


def test_json_has_the_members_of_each_group_once(folder: str) -> None:
    document = json.loads(run(folder, "-o", "json"))
    assert document["groups"] == {
        "*/*": ["pay/db-0", "shop/web-0", "shop/web-1"],
        "pay/db[StatefulSet]": ["pay/db-0"],
        "shop/web[Deployment]": ["shop/web-0", "shop/web-1"],
    }
    assert document["connections"][2]["from"] == {"all": ["*/*"]}
    assert document["connections"][2]["to"] == {"ends": ["outside"]}


def test_all_names_are_given_on_request(folder: str) -> None:
    assert run(folder, "--names").splitlines()[1] == "shop/web-0, shop/web-1, outside => shop/web-0, shop/web-1 : all"
    assert json.loads(run(folder, "--names", "-o", "json"))["groups"] == {}
    assert 'label="shop/web-0, shop/web-1"' in run(folder, "--names", "-o", "dot")


def test_pairs_have_the_whole_outside_as_one_end(folder: str) -> None:
    assert run(folder, "--pairs", "--from", "outside").splitlines() == [
        "outside => shop/web-0 : all",
        "outside => shop/web-1 : all",
    ]


def test_unknown_endpoints_and_ports_are_reported_with_hints(folder: str) -> None:
    done = CliRunner().invoke(root, ["list", folder, "--from", "shp", "--to", "pay/dd", "--port", "99999"])
    assert done.exit_code == 1
    assert "there is no namespace, pod, workload or node `shp` for `from` (did you mean `shop`?)" in done.output
    assert "there is no namespace, pod, workload or node `pay/dd` for `to` (did you mean `pay/db`?)" in done.output
    assert "found `99999`" in done.output


def test_json_csv_and_markdown_say_the_same(folder: str) -> None:
    connections = json.loads(run(folder, "-o", "json", "--explain"))["connections"]
    assert connections[0] == {
        "from": {"ends": ["shop/web[Deployment]"]},
        "to": {"ends": ["pay/db[StatefulSet]"]},
        "flows": [
            {
                "verdict": "Allow",
                "ports": [{"protocol": "TCP", "first": 5432, "last": 5432}],
                "egress": [{"policy": "Default"}],
                "ingress": [{"policy": "NetworkPolicy/pay/db", "rule": "ingress[0]"}],
            }
        ],
    }
    rows = list(csv.DictReader(io.StringIO(run(folder, "-o", "csv"))))
    assert [row["verdict"] for row in rows] == ["Allow", "Allow", "Conditional"]
    assert rows[2]["domains"] == "api.example.org"
    table = run(folder, "-o", "md").splitlines()
    assert table[0] == "| from | to | ports |"
    assert len(table) == 2 + len(rows) == 2 + len(json.loads(run(folder, "-o", "json"))["connections"])


def test_pairs_expand_groups_and_leave_out_an_endpoint_with_itself(folder: str) -> None:
    lines = run(folder, "--pairs", "--from", "shop", "--to", "shop").splitlines()
    assert lines == ["shop/web-1 => shop/web-0 : all", "shop/web-0 => shop/web-1 : all"]


def test_an_empty_cluster_lists_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    assert run(str(tmp_path)) == ""
    assert json.loads(run(str(tmp_path), "-o", "json")) == {
        "connections": [],
        "groups": {},
        "waysIn": [],
        "unprotected": {},
        "notConsidered": [],
    }
    assert run(str(tmp_path), "-o", "md") == "No connections.\n"


def test_graphs_draw_blocks_and_mark_conditions(folder: str) -> None:
    dot = run(folder, "-o", "dot")
    assert 'n1 -> n0 [label="TCP 5432"];' in dot
    assert 'label="TCP 443 if api.example.org", style=dashed' in dot
    mermaid = run(folder, "-o", "mermaid")
    assert '-.->|"TCP 443 if api.example.org"|' in mermaid


def hostile() -> list[Object]:
    name = '<!--<script></script><b a="1">|&\n-x'
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod_name, "namespace": "=1+1"},
            "spec": {"containers": []},
        }
        for pod_name in (name, "y")
    ]
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "=1+1"},
        "spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]},
    }
    rule = {"name": name, "action": "Allow", "to": [{"namespaces": {}}]}
    admin = {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "a"},
        "spec": {"priority": 1, "subject": {"namespaces": {}}, "egress": [rule]},
    }
    return [*pods, policy, admin]


def test_hostile_names_do_not_break_out_of_any_format() -> None:
    reached = connections(snapshot(hostile()), explain=True, denied=True)
    matrix = reached.matrix
    page = "\n".join(list_page(ListedConnections(snapshot(hostile()), reached, (), {}), View()))
    assert page.count("<script") == page.count("</script>") == 1
    assert "&lt;/script&gt;" in page
    for row in csv.reader(io.StringIO("\r\n".join(lists.comma_separated(pair_entries(matrix), View())))):
        assert len(row) == len(lists.CSV_HEADING)
        assert all(cell[:1] not in ("=", "+", "-", "@") for cell in row)
    assert all(line.count('"') % 2 == 0 for line in pictures.mermaid(picture(matrix), View()))
    assert "\\n" not in "".join(pictures.dot(picture(matrix), View()))
    assert json.loads("\n".join(lists.json(connection_entries(matrix), View())))


def test_a_picture_of_too_many_groups_is_refused_and_a_page_is_not(tmp_path: Path) -> None:
    objects: list[Object] = []
    for number in range(410):
        pod = {"name": "p", "namespace": f"n{number}"}
        objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": {"containers": []}})
        spec: Object = {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}
        policy = {"name": "own", "namespace": f"n{number}"}
        objects.append(
            {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": policy, "spec": spec}
        )
    (tmp_path / "many.yaml").write_text("\n---\n".join(map(json.dumps, objects)))
    with pytest.raises(TooManyBlocks):
        picture(reach_matrix(EndpointClasses(NetworkModel(snapshot(objects)))))
    done = CliRunner().invoke(root, ["list", str(tmp_path), "-o", "svg"])
    assert done.exit_code == 1
    assert "too large for a picture" in done.output
    done = CliRunner().invoke(root, ["list", str(tmp_path), "-o", "html"])
    assert done.exit_code == 0
    assert done.output.count("Unfold n") == 400


def test_the_words_for_sets() -> None:
    assert str(NamedEndpoints(("*",))) == "everyone"
    assert str(NamedEndpoints(("*/*",), ("a/*", "b/x"))) == "every pod except a/*, b/x"
    assert str(NamedEndpoints(("[t=1]/*",), ("a/*",), ("c/y",))) == "[t=1]/* except a/*; also c/y"
    assert str(NamedEndpoints((), (), ())) == "nobody"


def test_rules_that_fail_closed_are_reported_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("{networks: [0.0.0.0/0", "{nets: [0.0.0.0/0"))
    done = CliRunner().invoke(root, ["list", str(tmp_path)])
    assert done.exit_code == 0
    assert "warning[TW208]: AdminNetworkPolicy/outside egress[1] fails closed: expected one of " in done.stderr
    assert "found `nets`" in done.stderr
    assert "TW208" not in done.stdout


def test_lines_stay_short_in_a_cluster_without_pattern() -> None:
    listed = connections(snapshot(list(cluster(40))))
    lines = list(lists.text(listed, View()))
    assert len(lines) > 100
    assert max(map(len, lines)) < 600
    table = lists.GroupTable(listed.parts)
    for entry in listed:
        table.add(entry.sources)
        table.add(entry.destinations)
    groups = json.loads("{" + ",".join(table) + "}")
    counted = [name for entry in listed for name in entry.sources.parts if "…" in name]
    assert counted
    for name in counted:
        assert len(_pods(groups, name)) == int(name.split()[0].replace(",", ""))


def _pods(groups: dict[str, list[str]], name: str) -> set[str]:
    """Return the pods of a name by the table of groups in a document."""
    return {pod for part in groups[name] for pod in _pods(groups, part)} if name in groups else {name}
