"""Every page, as HTML and as JSON: the same facts, from the same function."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests import ROOT
from tests.explore.conftest import EXAMPLES, explored_of
from tests.labs.explorer_server import ExplorerLab
from tests.labs.waiting import eventually
from tierwall.analyze.diff import compare
from tierwall.cli.main import root
from tierwall.explore.ask import parse_query
from tierwall.explore.change import comparison_body
from tierwall.explore.page import ExploredWorld
from tierwall.explore.site import PAGES, page_at

SOURCES = [part for path in EXAMPLES for part in ("-f", str(path))]


def command(*words: str) -> Any:
    result = CliRunner().invoke(root, [*words, *SOURCES, "-o", "json"])
    assert result.exit_code in (0, 3, 4, 5), result.output
    return json.loads(result.stdout)


def document(explored: ExploredWorld, path: str, **query: str) -> Any:
    page, as_json = page_at(explored, path, {name.rstrip("_"): (value,) for name, value in query.items()})
    assert as_json
    return json.loads(page.json())


def test_documents_are_those_of_the_command_line(examples: ExploredWorld) -> None:
    asked = document(examples, "/ask.json", q="shop/web -> shop/db:5432")
    assert asked == command("explain", "network", "--from", "shop/web", "--to", "shop/db", "--port", "5432")
    assert document(examples, "/network.json") == command("list")
    assert document(examples, "/network.json", focus="shop") == command("list", "--focus", "shop")
    narrowed = document(examples, "/network.json", from_="shop/web", port="9090")
    assert narrowed == command("list", "--from", "shop/web", "--port", "9090")
    granted = document(examples, "/tools.json", caller="agents/shopper")
    assert granted == command("tools", "--caller", "agents/shopper", "--all")
    assert document(examples, "/settings.json") == command("effective", "--all")
    place = document(examples, "/settings.json", gateway="infra/edge")
    assert place == command("effective", "--gateway", "infra/edge")
    may = document(examples, "/permissions.json", user="alice", namespace="dev")
    assert may == command("can-i", "--list", "--as", "alice", "-n", "dev")
    assert document(examples, "/findings.json") == command("check")


def test_the_first_page_says_when_the_objects_were_read(lab: ExplorerLab) -> None:
    as_of = lab.client.get("/index.json").json()["asOf"]
    assert f'datetime="{as_of}"' in lab.client.get("/").text


def test_the_change_is_that_of_diff(lab: ExplorerLab, tmp_path: Path) -> None:
    policy = (EXAMPLES[0] / "policies.yaml").read_text().replace("app: api", "app: web")
    sent = lab.client.post("/change", headers={"Content-Type": "application/yaml"}, content=policy)
    answered = sent.json()
    assert sent.status_code == 200
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    for number, path in enumerate(EXAMPLES):
        for file in path.glob("*.yaml"):
            (tmp_path / "old" / f"{number}-{file.name}").write_text(file.read_text())
            new = policy if (number, file.name) == (0, "policies.yaml") else file.read_text()
            (tmp_path / "new" / f"{number}-{file.name}").write_text(new)
    done = CliRunner().invoke(root, ["diff", str(tmp_path / "old"), str(tmp_path / "new"), "-o", "json"])
    assert answered["differences"] == json.loads(done.stdout)["differences"] != []
    page = lab.client.post("/change", data={"manifests": policy})
    assert all(difference["change"] in page.text for difference in answered["differences"])
    assert "shop/web" in page.text


def test_a_change_that_cannot_be_read_names_every_error(lab: ExplorerLab) -> None:
    broken = "apiVersion: v1\nkind: Pod\n---\na: [\n"
    answer = lab.client.post("/change", headers={"Content-Type": "application/yaml"}, content=broken)
    assert answer.status_code == 422
    assert {problem["file"] for problem in answer.json()["diagnostics"]} == {"change.yaml"}


def test_a_change_that_no_server_would_start_with_names_what_is_wrong(lab: ExplorerLab) -> None:
    config = (EXAMPLES[3] / "chain.yaml").read_text().replace("type: CEL", "type: Other")
    answer = lab.client.post("/change?format=html", headers={"Content-Type": "application/yaml"}, content=config)
    assert answer.status_code == 422
    assert 'id="result"' in answer.text
    assert "expected one of" in answer.text


def test_many_changes_unfold_so_that_findings_are_near(lab: ExplorerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierwall.explore.change.OPEN", 1)
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: n{}}}\nspec: {{containers: []}}\n---\n"
    useless = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody, namespace: shop}
spec: {podSelector: {matchLabels: {app: not-there}}}
"""
    pods = "".join(map(pod.format, range(20)))
    page = lab.client.post("/change?format=html", data={"manifests": pods + useless}).text
    changes, _, findings = page.partition("Findings that it brings")
    first, _, rest = changes.partition("<details>")
    assert first.partition('class="changes"')[2].count("<li>") == 1
    assert rest.count("<li>") > 0
    assert f"Show {rest.count('<li>')} more</summary>" in rest
    assert "TW204" in findings


def test_a_change_brings_its_findings(lab: ExplorerLab) -> None:
    useless = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody, namespace: shop}
spec: {podSelector: {matchLabels: {app: not-there}}}
"""
    answer = lab.client.post("/change", headers={"Content-Type": "application/yaml"}, content=useless).json()
    brought = [(finding["code"], finding["object"]) for finding in answer["findings"]]
    assert brought == [("TW203", "NetworkPolicy/shop/nobody"), ("TW204", "NetworkPolicy/shop/nobody")]
    assert answer["differences"] == []


PATHS = (
    "/",
    "/ask?q=shop/web -> shop/db:5432",
    "/ask?q=web -> db",
    "/ask?q=alice create pods in dev",
    "/ask?q=shopper pay",
    "/ask?q=settings infra/edge",
    "/network",
    "/network?focus=shop",
    "/network?from=shop/web&to=shop/db",
    "/tools",
    "/tools?caller=agents/shopper",
    "/settings",
    "/permissions",
    "/permissions?user=alice",
    "/findings",
    "/findings?by=policy",
    "/change",
    "/change?object=NetworkPolicy/shop/db-from-api",
    "/policy/NetworkPolicy/shop/db-from-api",
    "/policy/AdminNetworkPolicy/allow-monitoring",
    "/policy/XAccessPolicy.agentic.networking.x-k8s.io/prod/fraud-desk",
    "/policy/AgentgatewayPolicy/team/limits",
)


@pytest.mark.parametrize("path", PATHS)
def test_every_page_is_whole_and_answers_json(lab: ExplorerLab, path: str) -> None:
    page = lab.client.get(path)
    if path.startswith("/policy/Agentgateway"):
        assert page.status_code in (200, 404)
        return
    assert page.status_code == 200, page.text
    assert page.text.count("<main") == page.text.count("<h1") == 1
    separator = "&" if "?" in path else "?"
    answer = lab.client.get(f"{path}{separator}format=json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nowhere", 404),
        ("/policy/NetworkPolicy/shop/none", 404),
        ("/policy/x", 404),
        ("/ask?plane=network&from=a/b&to=c/d&port=1", 404),
        ("/ask?plane=network&from=shop/web&to=shop/db&port=no", 400),
        ("/ask?plane=nothing", 400),
        (f"/ask?plane=tool&gateway=prod/prod-gateway&caller=a/b&tool=x&arguments={'[' * 5_000}", 400),
        ("/ask?plane=network&colour=red", 400),
        ("/network?focus=nowhere", 404),
        ("/network?port=99999999", 400),
        ("/network?page=99999999999999", 200),
        ("/tools?gateway=a/b", 404),
    ],
)
def test_bad_addresses_say_what_is_wrong(lab: ExplorerLab, path: str, status: int) -> None:
    assert lab.client.get(path).status_code == status
    separator = "&" if "?" in path else "?"
    answer = lab.client.get(f"{path}{separator}format=json")
    assert answer.status_code == status
    assert status == 200 or answer.json()["diagnostics"]


@pytest.mark.parametrize(
    ("name", "decided"),
    [
        ("NetworkPolicy/shop/db-from-api", ["selects 1 of 7 pods: shop/db-0", "shop/api[Deployment]", "TCP 5432"]),
        ("AdminNetworkPolicy/allow-monitoring", ["monitoring/prometheus-0 → shop/db[StatefulSet]: TCP 9090"]),
        ("XAccessPolicy/prod/fraud-desk", ["agents/shopper calls pay of XBackend/prod/payment-service"]),
        ("ClusterAuthorizationPolicy/alice-dev-claims", ["Allow: alice create persistentvolumeclaims, if object.spec"]),
        ("AuthorizationPolicy/shop/small-deployments", ["Allow: a member of shop-developers create, update deploy"]),
        ("ClusterRole/claim-user", ["is given by ClusterRoleBinding/developers-use-claims"]),
        ("ClusterRoleBinding/developers-use-claims", ["grants its role to Group shop-developers"]),
        ("AgentgatewayPolicy/infra/defaults", ["sets traffic.retry at Gateway/infra/edge#web, HTTPRoute/team/chat"]),
    ],
)
def test_an_object_says_what_it_decides(lab: ExplorerLab, name: str, decided: list[str]) -> None:
    document = lab.client.get(f"/policy/{name}?format=json").json()
    for words in decided:
        assert any(words in line for line in document["decides"]), document["decides"]
    assert "What it decides" in lab.client.get(f"/policy/{name}").text


def test_every_line_of_the_network_says_why(lab: ExplorerLab) -> None:
    for path in ("/network", "/network?focus=monitoring", "/network?to=monitoring/prometheus-0"):
        page = lab.client.get(path).text
        table = page.partition('aria-label="Connections"')[2].partition("</table>")[0]
        rows = table.count("<tr") - 1
        links = [unescape(href) for href in re.findall(r'href="(/ask[^"]*)"', table)]
        assert rows == len(links) > 0
        for href in links:
            answer = lab.client.get(f"{href}&format=json").json()
            assert answer["verdict"] == "Allow", href


def test_backends_without_tools_share_a_table(lab: ExplorerLab) -> None:
    page = lab.client.get("/tools").text
    first, last = (
        page.index("Callers by tools of XBackend/prod/payment-service"),
        page.index("Backends of which no tool"),
    )
    assert first < last < page.index("Service/team/pages")
    assert "Every caller gets the same answer for any tool." in page
    assert "Callers by tools of Service/team/pages" not in page
    assert "This caller gets the same answer" in lab.client.get("/tools?caller=agents/shopper").text


def test_findings_that_are_not_there_do_not_hide_others(lab: ExplorerLab) -> None:
    page = lab.client.get("/findings?code=TW999").text
    assert "No finding matches." in page
    assert 'href="/findings">Show all' in page


def test_what_is_written_anew_says_where_it_stands(tmp_path: Path) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": []}
    (tmp_path / "role.json").write_text(f"\n{json.dumps(role)}")
    lab = ExplorerLab(tmp_path)
    try:
        page = lab.client.get("/policy/ClusterRole/r").text
        assert "role.json:2, written as YAML" in page
        # Its own text begins with the first line, as that of an object of a cluster does.
        assert re.search(r'<li id="L1"[^>]*><span[^>]*>1</span><code>apiVersion', page)
    finally:
        lab.close()


def test_a_wrong_name_stays_in_its_form(lab: ExplorerLab) -> None:
    page = lab.client.get("/network?focus=shp&port=80").text
    assert '<input name="focus" value="shp"' in page
    assert '<input name="port" value="80"' in page


SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: token, namespace: shop}\nstringData: {key: very-secret}\n"


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop}\nspec: {containers: []}\n"
    listed = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n"
    listed += "- apiVersion: v1\n  kind: Secret\n  metadata: {name: two}\n  stringData: {key: very-secret}\n"
    (tmp_path / "all.yaml").write_text(f"{pod}---\n{SECRET}---\n{listed}")
    explored = explored_of(tmp_path)
    for path in ("/", "/policy/Secret/shop/token", "/policy/ConfigMap/default/c", "/policy/Pod/shop/p", "/findings"):
        for form in ("html", "json"):
            page, _ = page_at(explored, path, {"format": (form,)})
            assert "very-secret" not in page.body + page.json()
    page, _ = page_at(explored, "/change", {"object": ("Secret/shop/token",)})
    assert "very-secret" not in page.body


def test_a_changed_file_changes_the_page_and_the_stream_says_so(tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: a}\nspec: {containers: []}\n"
    file.write_text(pod % "one")
    lab = ExplorerLab(tmp_path)
    try:
        with lab.client.stream("GET", "/follow") as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data:"))
            first = json.loads(next(lines).removeprefix("data:"))
            assert first["problem"] == ""
            file.write_text(pod % "two")
            second = json.loads(next(lines).removeprefix("data:"))
            assert second["version"] > first["version"]
        assert lab.client.get("/policy/Pod/a/two").status_code == 200
        assert lab.client.get("/policy/Pod/a/one").status_code == 404
        # What cannot be read keeps the last state, and the page says that it is old.
        (tmp_path / "pods.yaml").write_text("a: [")
        eventually(lambda: "may be old" in lab.client.get("/").text or lab.follower.newest, "a badge")
        assert lab.client.get("/policy/Pod/a/two").status_code == 200
    finally:
        lab.close()


def test_a_world_without_objects_says_what_is_missing(tmp_path: Path) -> None:
    nothing = explored_of(tmp_path)
    said = {path: page_at(nothing, path, {})[0].body for path in PAGES}
    assert "no objects were found" in said["/"]
    assert "No pods or workloads are loaded" in said["/network"]
    assert "<svg" not in said["/network"]
    assert "Nothing is wrong" in said["/findings"]


def test_one_pod_has_no_connection_with_itself(tmp_path: Path) -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: shop}\nspec: {containers: []}\n"
    (tmp_path / "a.yaml").write_text(pod)
    body = page_at(explored_of(tmp_path), "/network", {})[0].body
    assert "between 1 namespace." in body
    assert "↻" not in body
    (tmp_path / "b.yaml").write_text(pod.replace("name: a", "name: b"))
    assert "↻ all" in page_at(explored_of(tmp_path), "/network", {})[0].body


def test_long_names_in_drawings_keep_both_ends(tmp_path: Path) -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: shop}\nspec: {containers: []}\n"
    name = "a-very-long-name-of-a-pod-that-ends-in-"
    (tmp_path / "a.yaml").write_text(pod % f"{name}one" + "---\n" + pod % f"{name}two")
    body = page_at(explored_of(tmp_path), "/network", {"focus": (f"shop/{name}one",)})[0].body
    assert "ends-in-one</text>" in body.replace("</tspan>", "</text>")


def test_three_questions_are_worth_asking_in_a_world_of_one_plane() -> None:
    place = "Which settings are in force at Gateway/"
    expected = (
        ("May shop/web reach shop/db on TCP port 5432?", "Who reaches shop/db?", "What can be reached from outside?"),
        (
            "May agents/shopper call status of",
            f"{place}prod/prod-gateway#agents",
            "Which tools may agents/shopper call?",
        ),
        (
            f"{place}infra/edge#web, HTTPRoute/team/chat",
            f"{place}infra/edge#web",
            "Which settings are in force at every",
        ),
        ("What may alice do?", "May alice delete secrets?", "May alice create pods?"),
    )
    for path, words in zip(EXAMPLES, expected, strict=True):
        explored = explored_of(path)
        page, _ = page_at(explored, "/", {})
        asked = [question["words"] for question in page.document["questions"]]
        assert len(asked) == 3
        assert all(each.startswith(start) for each, start in zip(asked, words, strict=True)), asked
        for question in page.document["questions"]:
            path_of, _, query = question["href"].partition("?")
            assert page_at(explored, path_of, parse_query(f"?{query}"))[0].status == 200, question


def test_users_that_are_not_offered_are_counted(tmp_path: Path) -> None:
    users = "".join(f"- {{kind: User, name: user-{number:03}}}\n" for number in range(250))
    binding = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: all}\n"
    (tmp_path / "binding.yaml").write_text(f"{binding}roleRef: {{kind: ClusterRole, name: view}}\nsubjects:\n{users}")
    page, _ = page_at(explored_of(tmp_path), "/permissions", {})
    assert len(page.document["users"]) == 250
    assert "and 50 more" in page.body


def test_a_field_of_the_form_may_hold_several_names(examples: ExploredWorld) -> None:
    named = document(examples, "/network.json", from_="shop/web, shop/api", port="9090,8080")
    assert named == command("list", "--from", "shop/web", "--from", "shop/api", "--port", "9090", "--port", "8080")
    page, _ = page_at(examples, "/network", {"from": ("shop/web", "shop/api")})
    assert 'name="from" value="shop/web, shop/api"' in page.body


def test_an_effect_with_a_condition_says_so(examples: ExploredWorld) -> None:
    page, _ = page_at(examples, "/permissions", {"user": ("alice",)})
    assert "Denied, if</span>" in page.body
    assert "Allowed, if</span>" in page.body


def test_changes_beyond_the_size_of_a_file_are_counted() -> None:
    old, new = (explored_of(ROOT / "examples/compare" / side).world.snapshot for side in ("old", "new"))
    compared = compare(old, new, grouped=True)
    whole = comparison_body(compared, size=1 << 20)
    number = whole.count("<li>")
    assert number > 3
    assert "more" not in whole.partition('class="changes"')[2]
    cut = comparison_body(compared, size=600)
    assert 0 < cut.count("<li>") < number
    assert f"and {number - cut.count('<li>')} more" in cut
