"""The public Python API: its names are those of its page, and every example on the page runs and is typed."""

from __future__ import annotations

import doctest
import gc
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

import tierwall
from tests import ROOT
from tests.labs.served_cluster import serving
from tierwall import NetworkQuestion, Verdict
from tierwall.cli.main import root
from tierwall.render.json import diagnostic_document

PAGE = (ROOT / "docs" / "python-api.md").read_text()
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE + README, re.DOTALL)


def test_the_examples_of_the_page_and_the_readme_run_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program = compile("\n".join(EXAMPLES), "docs/python-api.md", "exec")
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{app}-0", "namespace": "shop", "labels": {"app": app}},
        }
        for app in ("web", "api", "db")
    ]
    policies = (value for value in tierwall.load("examples/shop/manifests").objects("NetworkPolicy"))
    with serving([*pods, *(policy.value for policy in policies)], forbidden={"prod": {}}) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        exec(program, {"__name__": "page"})  # noqa: S102 - the page belongs to the repository
    assert len(EXAMPLES) > 8


@pytest.mark.parametrize("page", ["api", "cel", "cel-partial", "network", "path", "prove"])
def test_the_examples_of_other_pages_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    sessions = doctest.DocTestParser().get_doctest(
        "\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL)), {}, page, None, 0
    )
    assert doctest.DocTestRunner(verbose=False).run(sessions).failed == 0
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks or sessions.examples
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block, names)  # noqa: S102 - the page belongs to the repository
        for line in block.splitlines():
            expression, mark, value = line.partition("  # ")
            # A comment behind an expression says what it is; other comments begin with a small letter.
            if mark and not value[0].islower():
                assert str(eval(expression, names)) == value.strip("'"), line  # noqa: S307


def test_the_examples_of_the_page_are_typed(tmp_path: Path) -> None:
    file = tmp_path / "page.py"
    file.write_text("\n".join(EXAMPLES))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_public_names_are_those_of_the_page() -> None:
    table = PAGE.split("## Names")[1].split("## What it promises")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert named == set(tierwall.__all__)
    assert all(hasattr(tierwall, name) for name in tierwall.__all__)
    assert set(dir(tierwall)) == set(tierwall.__all__)


def test_a_name_that_is_not_public_is_missing() -> None:
    with pytest.raises(AttributeError, match="no attribute `Wrold`"):
        tierwall.Wrold  # noqa: B018


def test_importing_the_package_imports_no_plane() -> None:
    words = "import sys, tierwall; print(*sorted(name for name in sys.modules if name.startswith('tierwall')))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tierwall", "tierwall.version"]


@pytest.fixture(scope="module")
def shop() -> tierwall.World:
    return tierwall.load(ROOT / "examples" / "shop" / "manifests")


@pytest.mark.parametrize(("given", "namespace"), [(None, "shop"), ("dev", "dev")])
def test_names_without_a_namespace_are_in_that_of_the_context(given: str | None, namespace: str) -> None:
    change = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": {}}
    with serving([], namespace="shop") as cluster:
        world = tierwall.load(
            cluster=tierwall.Cluster(kubeconfig=str(cluster.kubeconfig)), objects=[change], namespace=given
        )
    assert world.namespace == namespace
    assert [str(policy.reference) for policy in world.objects("NetworkPolicy")] == [f"NetworkPolicy/{namespace}/p"]
    assert tierwall.load(objects=[change]).namespace == "default"


def test_a_verdict_has_no_truth_value(shop: tierwall.World) -> None:
    answer = shop.ask(NetworkQuestion(source="shop/web-0", to="shop/db-0", port=5432))
    with pytest.raises(TypeError, match="not a truth value"):
        bool(answer)


def test_unreadable_input_raises_with_every_problem_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [")
    (tmp_path / "b.yaml").write_text("kind: Pod")
    with pytest.raises(tierwall.InputError) as caught:
        tierwall.load(tmp_path, tmp_path / "missing")
    assert {diagnostic.code for diagnostic in caught.value.diagnostics} == {"TW001", "TW002", "TW006"}
    with pytest.raises(tierwall.InputError):
        tierwall.load(objects=[{"kind": "Pod"}])


def test_a_refused_object_is_reported_and_still_judged() -> None:
    world = tierwall.loads("apiVersion: v1\nkind: Pod\nmetadata: {name: BAD_NAME}\nspec: {}\n", "pod.yaml")
    assert {str(diagnostic.at) for diagnostic in world.diagnostics if diagnostic.severity == "error"} >= {
        "pod.yaml:3:18"
    }
    assert world.find("Pod/default/BAD_NAME").name == "BAD_NAME"


def test_objects_without_a_namespace_get_the_given_one() -> None:
    world = tierwall.loads("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", namespace="team")
    assert [str(resource.reference) for resource in world.objects("Pod")] == ["Pod/team/a"]
    over = world.overlay(objects=[{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}}])
    assert {str(resource.reference) for resource in over.objects()} == {"Pod/team/a", "Pod/team/b"}
    assert len(list(world.objects())) == 1


def test_a_world_does_not_change_when_its_inputs_or_results_are_changed() -> None:
    policy = {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayPolicy",
        "metadata": {"name": "p", "namespace": "infra"},
        "spec": {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}],
            "traffic": {"timeouts": {"request": "1s"}},
        },
    }
    gateway = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "gw", "namespace": "infra"},
        "spec": {"gatewayClassName": "c", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]},
    }
    world = tierwall.load(objects=[gateway, policy])
    policy["spec"]["traffic"]["timeouts"]["request"] = "2s"  # type: ignore[index]
    document = world.effective(gateway="infra/gw").to_dict()
    assert document["effective"]["traffic.timeouts"]["value"] == {"request": "1s"}
    document["effective"]["traffic.timeouts"]["value"]["request"] = "3s"
    again = world.effective(gateway="infra/gw")
    assert again.detail.effective["traffic.timeouts"].value == {"request": "1s"}
    again.detail.effective["traffic.timeouts"].value["request"] = "4s"
    for resource in (world.find("AgentgatewayPolicy/infra/p"), *world.objects("AgentgatewayPolicy")):
        resource.value["spec"]["traffic"].clear()
    (difference,) = tierwall.diff(world.without("AgentgatewayPolicy/infra/p"), world, planes=["gateway"])
    difference.after.value["request"] = "5s"  # type: ignore[union-attr]
    last = world.effective(gateway="infra/gw", listener="web")
    assert last.detail.effective["traffic.timeouts"].value == {"request": "1s"}
    with pytest.raises(AttributeError):
        world.snapshot = tierwall.load().snapshot  # type: ignore[misc]


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "Pod",
        [{"apiVersion": "v1", "kind": "Pod"}],
        {"apiVersion": 1, "kind": "Pod"},
        {"apiVersion": "v1", "kind": "List", "items": [5]},
        {"apiVersion": "v1", "kind": "List", "items": [{"kind": "NetworkPolicy"}]},
    ],
)
def test_a_document_that_is_not_an_object_is_an_error(value: Any) -> None:
    with pytest.raises(tierwall.InputError, match=r"`objects\[1\]`: expected a Kubernetes object"):
        tierwall.load(objects=[{"apiVersion": "v1", "kind": "Pod"}, value])
    with pytest.raises(tierwall.InputError):
        tierwall.load(objects=cast(Any, {"apiVersion": "v1", "kind": "Pod"}))


def test_objects_that_contain_themselves_are_an_error() -> None:
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod"}
    pod["spec"] = pod
    with pytest.raises(tierwall.InputError, match="expected JSON as"):
        tierwall.load(objects=[pod])


def test_a_single_string_counts_as_one_entry_of_a_list(shop: tierwall.World) -> None:
    manifests = ROOT / "examples" / "shop" / "manifests"
    assert len(list(tierwall.load(manifests, exclude="charts/*").objects())) == len(list(shop.objects()))
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "P"}}
    world = tierwall.load(objects=[policy])
    everything = world.check()
    assert everything
    code = everything[0].code
    assert world.check(select=code) == world.check(select=[code]) != []
    assert world.check(ignore=code) == [finding for finding in everything if finding.code != code]
    assert world.check(select="TZ") == []
    assert list(tierwall.diff(shop, shop, planes="network")) == []
    ports: Any = [5432]
    some = shop.connections(destinations="shop/db-0", ports=ports)
    assert list(map(str, some)) == list(map(str, shop.connections(destinations=["shop/db-0"], ports=["5432"])))


@pytest.mark.parametrize("value", [None, 5, b"Pod/shop/web-0", ["Pod/shop/web-0"], {}])
def test_nonsense_is_an_input_error(shop: tierwall.World, value: Any) -> None:
    for ask in (shop.ask, shop.find, shop.without, shop.status):
        with pytest.raises(tierwall.InputError):
            ask(value)
    with pytest.raises(tierwall.InputError):
        tierwall.run_tests(engine=value)
    with pytest.raises(tierwall.InputError):
        tierwall.diff(shop, shop, planes=[value])


@pytest.mark.parametrize("value", [None, 5, "shop/web-0", []])
def test_a_question_is_made_of_a_map(value: Any) -> None:
    with pytest.raises(tierwall.InputError, match="expected a map"):
        NetworkQuestion.from_dict(value)


def test_facts_and_objects_that_json_cannot_hold_are_input_errors(shop: tierwall.World) -> None:
    facts: dict[str, Any] = {}
    facts["request"] = facts
    with pytest.raises(tierwall.InputError, match="nested too deeply"):
        shop.ask(tierwall.GatewayQuestion(gateway="infra/edge", request=facts))
    objects: Any = 5
    with pytest.raises(tierwall.InputError, match="expected a list of objects"):
        shop.ask(tierwall.AdmitQuestion(objects=objects))


def test_objects_must_be_json() -> None:
    with pytest.raises(tierwall.InputError, match=r"expected JSON as .objects\[0\]"):
        tierwall.load(objects=[{"apiVersion": "v1", "kind": "Pod", "spec": object()}])


def test_a_program_finds_what_the_command_finds(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a, name: b}\nspec: {}\n")
    (tmp_path / "b.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: b, namespace: team}\nspec: {}\n")
    world = tierwall.load(tmp_path)
    for options, namespace in (([], None), (["--for-namespace", "team"], "team")):
        done = CliRunner().invoke(root, ["check", str(tmp_path), "-o", "json", *options])
        findings = world.check(namespace=namespace)
        assert json.loads(done.stdout)["diagnostics"] == [diagnostic_document(finding) for finding in findings]
    assert "TW004" in {finding.code for finding in world.check()}
    with pytest.raises(tierwall.UnknownName):
        world.check(namespace="taem")


def test_excluded_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "charts").mkdir()
    for name in ("a.yaml", "b.yaml", "charts/c.yaml"):
        text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {Path(name).stem}}}\n"
        (tmp_path / name).write_text(text)
    names = {resource.name for resource in tierwall.load(tmp_path, exclude=["b.yaml", "charts"]).objects()}
    assert names == {"a"}


def test_unknown_names_come_with_near_misses(shop: tierwall.World) -> None:
    with pytest.raises(tierwall.UnknownName) as caught:
        shop.without("NetworkPolicy/shop/db-from-ap", "Pod/nowhere/x")
    hints = [diagnostic.hint for diagnostic in caught.value.diagnostics]
    assert "did you mean `NetworkPolicy/shop/db-from-api`?" in hints
    with pytest.raises(tierwall.UnknownName):
        shop.find("Pod/shop/no")
    with pytest.raises(tierwall.InputError):
        shop.find("nonsense")


def test_a_plane_that_cannot_be_compared_is_an_error(shop: tierwall.World) -> None:
    with pytest.raises(tierwall.InputError):
        tierwall.diff(shop, shop, planes=["tools"])  # raises at once, before the iterator is used
    assert list(tierwall.diff(shop, shop)) == []


def test_progress_is_reported(shop: tierwall.World) -> None:
    steps: list[tuple[str, int, int]] = []
    work = (
        lambda: shop.check(progress=lambda *step: steps.append(step)),
        lambda: shop.connections(progress=lambda *step: steps.append(step)),
        lambda: tierwall.run_tests(ROOT / "examples" / "shop" / "tests", progress=lambda *step: steps.append(step)),
    )
    for run in work:
        steps.clear()
        run()
        assert [done for _, done, _ in steps] == list(range(1, steps[-1][2] + 1))


def test_the_library_does_not_touch_the_collector_threads_or_recursion_limit(tmp_path: Path) -> None:
    before = gc.isenabled(), gc.get_freeze_count(), threading.active_count(), sys.getrecursionlimit()
    world = tierwall.load(ROOT / "examples" / "shop" / "manifests")
    world.check()
    assert (gc.isenabled(), gc.get_freeze_count(), threading.active_count(), sys.getrecursionlimit()) == before


def test_tests_can_be_run_over_a_world(shop: tierwall.World, tmp_path: Path) -> None:
    file = tmp_path / "test.yaml"
    file.write_text(
        "apiVersion: tierwall.io/v1alpha1\nkind: PolicyTest\nmetadata: {name: t}\nspec:\n  cases:\n"
        "  - {name: c, network: {from: shop/web-0, to: shop/db-0, port: 5432}, expect: {verdict: Deny}}\n"
    )
    report = tierwall.run_tests(file, world=shop)
    assert (report.passed, report.failed, report.skipped) == (1, 0, 0)
    (case,) = report.cases
    assert case.answer is not None
    assert case.answer.verdict is Verdict.DENY


def test_a_misspelled_mode_of_grants_is_refused() -> None:
    with pytest.raises(
        tierwall.InputError, match="expected one of route, strict as `backend_ref_grants`, found `Strict`"
    ):
        tierwall.load(ROOT / "examples" / "shop" / "manifests", backend_ref_grants=cast(Any, "Strict"))
