"""Places of cluster objects in every command and format (docs/clusters.md#where-a-rule-stands)."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from click.testing import CliRunner, Result

import tierwall
from tests import ROOT
from tests.cli.test_forged_output import NASTY, check_text
from tests.cli.test_sarif import LOG
from tests.labs.served_cluster import ServedCluster, serving
from tierwall import ApiQuestion, NetworkQuestion
from tierwall.cli.main import root
from tierwall.cluster.cluster import Cluster
from tierwall.cluster.origin import ClusterOrigin
from tierwall.core.source import Position
from tierwall.core.unprintable import PrintableLine, printable_line
from tierwall.render.formats import FORMATS, no_line
from tierwall.render.text import diagnostics

EXTRA = """\
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: guard}
spec:
  priority: 10
  subject: {namespaces: {matchLabels: {team: shop}}}
  ingress:
  - {name: pass-web, action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]}
  - {name: deny-all, action: Deny, from: [{namespaces: {}}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: shop, kubernetes.io/metadata.name: shop}}
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: lockdown, namespace: shop}
spec: {endpointSelector: {}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody, namespace: shop}
spec: {podSelector: {matchLabels: {app: gone}}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: accepted, namespace: shop, annotations: {tierwall.io/ignore: TW204 wanted}}
spec: {podSelector: {matchLabels: {app: gone}}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: refused, namespace: shop}
spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/99}}]}]}
---
apiVersion: tierwall.io/v1alpha1
kind: ClusterAuthorizationPolicy
metadata: {name: claims}
spec:
  effect: Allow
  description: support may create dev claims
  expression: |
    request.resource == "persistentvolumeclaims" && "support" in request.userInfo.groups &&
    object.spec.storageClassName == "dev"
"""
TEST = """\
apiVersion: tierwall.io/v1alpha1
kind: PolicyTest
metadata: {name: smoke}
spec:
  cases:
  - name: wrong about the database
    network: {from: shop/web, to: shop/db, port: 5432}
    expect: {verdict: Deny}
  - name: right about support
    api: {user: ann, groups: [support], verb: list, resource: pods, namespace: shop}
    expect: {verdict: Allow}
"""
WAY = ("--gateway", "shop/agents", "--backend", "shop/orders", "--caller", "shop/assistant")
ANN = ("--as", "ann", "--as-group", "support", "-n", "shop")
# The entry in `FORMATS`, and the arguments.
QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("check", ("check",)),
    ("explain", ("explain", "network", "--from", "shop/web", "--to", "shop/db", "--port", "5432")),
    ("explain", ("explain", "network", "--from", "shop/db", "--to", "shop/db", "--port", "5432")),
    ("explain", ("explain", "network", "--from", "outside", "--to", "shop/db", "--port", "1")),
    ("explain", ("explain", "tool", *WAY, "--tool", "status")),
    ("explain", ("explain", "tool", *WAY, "--tool", "refund")),
    ("explain", ("explain", "gateway", "--gateway", "shop/agents")),
    ("explain", ("explain", "api", *ANN, "--verb", "list", "--resource", "pods")),
    ("explain", ("explain", "api", *ANN, "--verb", "create", "--resource", "persistentvolumeclaims")),
    ("explain", ("effective", "--gateway", "shop/agents")),
    ("effective --all", ("effective", "--all")),
    ("can-i", ("can-i", "list", "pods", *ANN)),
    ("can-i --list", ("can-i", "--list", *ANN)),
    ("tools", ("tools", "--all", "--caller", "shop/assistant")),
    ("status", ("status",)),
    ("list", ("list", "--explain")),
    ("list --exposure", ("list", "--exposure")),
    ("convert", ("convert", "--to", "ClusterNetworkPolicy")),
    ("compile envoy", ("compile", "envoy")),
    ("test", ("test", "test.yaml")),
)
CASES = [
    pytest.param(arguments, output, id=f"{' '.join(arguments)[:60]} -o {output}")
    for command, arguments in QUESTIONS
    for output in FORMATS[command]
    # Pictures have no place for reasons.
    if not (command == "list" and output in ("svg", "dot", "mermaid", "html"))
] + [pytest.param(("list",), output, id=f"list -o {output}") for output in ("svg", "dot", "mermaid", "html")]


def objects() -> list[dict[str, Any]]:
    old = (ROOT / "examples" / "compare" / "old" / "shop.yaml").read_text()
    return [value for text in (old, EXTRA) for value in yaml.safe_load_all(text)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ServedCluster]:
    with serving(objects()) as served:
        yield served


@pytest.fixture(autouse=True)
def folder(cluster: ServedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the objects of the cluster, as the server shows them, in `objects`."""
    (tmp_path / "objects").mkdir()
    values = [value for place in cluster.objects.kinds for value in cluster.objects.of(place, "")]
    (tmp_path / "objects" / "all.yaml").write_text(yaml.safe_dump_all(values, sort_keys=False))
    (tmp_path / "test.yaml").write_text(TEST)
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(root, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code not in (1, 2), result.output
    return result


def outputs(arguments: tuple[str, ...], output: str) -> tuple[str, str]:
    """Return what a command says about the cluster, and about the same objects in files."""
    live = run(*arguments, "--cluster", "-o", output)
    files = run(*arguments, "-f", "objects", "-o", output)
    assert live.exit_code == files.exit_code
    return live.stdout + live.stderr, files.stdout + files.stderr


@pytest.mark.parametrize(("arguments", "output"), CASES)
def test_every_format_has_places_of_the_cluster(arguments: tuple[str, ...], output: str, tmp_path: Path) -> None:
    live, files = outputs(arguments, output)
    for text in (live, files):
        for wrong in ("None", ":0:0", ":0:", "line=0", "col=0", "<Cluster", "Position(", str(tmp_path)):
            assert wrong not in text, text
    assert "objects/all.yaml" not in live
    assert "root: " not in files
    _assert_valid(run(*arguments, "--cluster", "-o", output).stdout, output)


def _assert_valid(text: str, output: str) -> None:
    match output:
        case "json":
            json.loads(text)
        case "sarif":
            jsonschema.validate(json.loads(text), LOG)
        case "junit" | "svg":
            ElementTree.fromstring(text)
        case "csv":
            assert len({len(row) for row in csv.reader(io.StringIO(text))}) == 1
        case "yaml":
            assert list(yaml.safe_load_all(text))
        case "github":
            assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in text.splitlines())
            assert "file=" not in text


def _sources(value: Any, holder: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every place of a document, with the object that it is in."""
    if isinstance(value, dict):
        holder = next((value[key] for key in ("policy", "object") if key in value), holder)
        holder = value["examples"][0] if "examples" in value else holder
        if "cluster" in value and "path" in value:
            yield holder, {key: value[key] for key in ("cluster", "path")}
        elif {"file", "line", "column"} <= set(value):
            yield holder, {key: value[key] for key in ("file", "line", "column")}
        for item in value.values():
            yield from _sources(item, holder)
    elif isinstance(value, list):
        for item in value:
            yield from _sources(item, holder)


def _parts(path: str) -> tuple[str | int, ...]:
    words = re.findall(r"\[([^\]]+)\]|([^.\[\]]+)", path)
    return tuple(int(inside) if inside.isdecimal() else inside or word for inside, word in words)


@pytest.mark.parametrize("arguments", [arguments for command, arguments in QUESTIONS if "json" in FORMATS[command]])
def test_a_path_in_a_cluster_is_the_place_that_a_file_has(arguments: tuple[str, ...]) -> None:
    live, files = (
        json.loads(run(*arguments, *source, "-o", "json").stdout) for source in (["--cluster"], ["-f", "objects"])
    )
    world = tierwall.load("objects")
    in_cluster, in_files = list(_sources(live)), list(_sources(files))
    assert len(in_cluster) == len(in_files)
    for (holder, source), (of, expected) in zip(in_cluster, in_files, strict=True):
        assert (holder, source["cluster"]) == (of, "root")
        resource, path = world.find(holder), _parts(source["path"])
        positions = {resource.position(path), resource.position(path, key=True)}
        assert Position(**expected) in positions, source


def _quoted(text: str, reference: str, rule: str, indent: str = "    ") -> Any:
    """Return the YAML below the line that names a rule."""
    lines = iter(text.splitlines())
    assert any(f"{reference} {rule}" in line and "root" in line for line in lines), text
    quoted = []
    for line in lines:
        if not line.startswith(indent):
            break
        quoted.append(line.removeprefix(indent))
    return yaml.safe_load("\n".join(quoted))


def test_the_rule_is_printed_as_yaml() -> None:
    text = run("explain", "network", "--from", "shop/web", "--to", "shop/db", "--port", "5432", "--cluster").stdout
    by_name = {(value["kind"], value["metadata"]["name"]): value for value in objects()}
    admin, database = by_name["AdminNetworkPolicy", "guard"], by_name["NetworkPolicy", "db"]
    assert _quoted(text, "AdminNetworkPolicy/guard", "ingress[0]") == admin["spec"]["ingress"][0]
    assert _quoted(text, "NetworkPolicy/shop/db", "ingress[0]") == database["spec"]["ingress"][0]
    text = run("explain", "api", *ANN, "--verb", "list", "--resource", "pods", "--cluster").stdout
    assert _quoted(text, "Role/shop/viewer", "rules[0]") == by_name["Role", "viewer"]["rules"][0]


def test_an_annotation_in_a_cluster_accepts_a_finding() -> None:
    document = json.loads(run("check", "--cluster", "-o", "json").stdout)
    assert document["accepted"] == 1
    assert "NetworkPolicy/shop/accepted" not in [entry.get("object") for entry in document["diagnostics"]]


def test_a_baseline_names_objects_and_no_places() -> None:
    run("check", "--cluster", "--write-baseline", "baseline.txt")
    text = Path("baseline.txt").read_text()
    assert "TW204 NetworkPolicy/shop/nobody " in text
    assert "root" not in text
    # It accepts the same findings in files, and the other way round.
    for source in (["--cluster"], ["-f", "objects"]):
        document = json.loads(run("check", *source, "--baseline", "baseline.txt", "-o", "json").stdout)
        # A cluster has admitted what an API server would refuse in a file.
        others = [entry["code"] for entry in document["diagnostics"]]
        assert (others, document["accepted"]) == (([], 4) if source == ["--cluster"] else (["TW031", "TW105"], 3))


@pytest.mark.parametrize("output", FORMATS["diff"])
def test_differences_are_those_of_files(output: str) -> None:
    Path("change.yaml").write_text(yaml.safe_dump({**objects()[2], "spec": {"podSelector": {}}}))
    planes = () if output in ("text", "json", "md", "html") else ("--plane", "network")
    result = run("diff", "--cluster", "-f", "change.yaml", "-o", output, *planes)
    for wrong in ("None", ":0:", "<Cluster", "Position("):
        assert wrong not in result.output
    _assert_valid(result.stdout, output)


def test_a_policy_test_shows_the_places_of_a_failure() -> None:
    line = "NetworkPolicy/shop/db ingress[0] allowed  root: spec.ingress[0]"
    for output in ("text", "junit"):
        assert line in run("test", "test.yaml", "--cluster", "-o", output).stdout
    failed, passed = json.loads(run("test", "test.yaml", "--cluster", "-o", "json").stdout)["cases"]
    assert failed["got"]["trace"][-1]["source"] == {"cluster": "root", "path": "spec.ingress[0]"}
    assert passed["got"]["trace"][-1]["source"] == {"cluster": "root", "path": "rules[0]"}


def test_python_programs_get_the_places(cluster: ServedCluster) -> None:
    world = tierwall.load(cluster=Cluster(kubeconfig=cluster.kubeconfig))
    answer = world.ask(NetworkQuestion(source="shop/web", to="shop/db", port=5432))
    at = answer.steps[-1].at
    assert at is not None
    assert (at.file, at.path, at.is_in_cluster) == ("root", "spec.ingress[0]", True)
    assert answer.to_dict()["trace"][-1]["source"] == {"cluster": "root", "path": "spec.ingress[0]"}
    answer = world.ask(ApiQuestion(user="ann", groups=["support"], verb="list", resource="pods", namespace="shop"))
    assert answer.to_dict()["trace"][-1]["source"] == {"cluster": "root", "path": "rules[0]"}
    places = {str(finding.at) for finding in world.check()}
    assert "root: NetworkPolicy/shop/nobody spec.podSelector" in places
    places = {str(diagnostic.at) for diagnostic in world.diagnostics}
    assert places == {"root: NetworkPolicy/shop/refused spec.ingress[0].from[0].ipBlock.cidr"}


def policy(**spec: Any) -> dict[str, Any]:
    value = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": spec}
    return {**value, "metadata": {"name": "open", "namespace": "shop"}}


def explained(*rules: dict[str, Any]) -> str:
    pods = [value for value in objects() if value["kind"] == "Pod"]
    with serving([*pods, policy(podSelector={}, ingress=list(rules))]) as served:
        question = ("--from", "shop/web", "--to", "shop/db", "--port", "80")
        return run("explain", "network", *question, "--cluster", "--kubeconfig", served.kubeconfig).stdout


def _printed(line: str) -> str:
    return line if isinstance(line, PrintableLine) else printable_line(line)


def test_a_long_rule_is_cut() -> None:
    text = explained({"from": [{"podSelector": {"matchLabels": {"app": f"app-{number}"}}} for number in range(50_000)]})
    assert ("app-0" in text, "app-50" in text, text.splitlines()[-1]) == (True, False, "    …")
    text = explained({"ports": [{"port": 80 + number} for number in range(50_000)]})
    quoted = text.rpartition("ingress[0] allowed\n")[2]
    assert quoted.splitlines()[:3] == ["    ports:", "    - port: 80", "    - port: 81"]
    assert quoted.splitlines()[-1] == "    …"
    assert len(quoted.splitlines()) < 20
    text = explained({"from": [{}, {"podSelector": {"matchLabels": {"app": "web" * 1_000}}}], "x": "y" * 100_000})
    assert max(map(len, text.splitlines())) < 200


def test_hostile_values_do_not_reach_the_terminal() -> None:
    hostile = {"ports": [{"port": 80}], f"x{NASTY}": f"a{NASTY}", "several": "lines\n::error file=x::FORGED\n::error::"}
    text = explained(hostile)
    check_text(text, "stdout")
    assert r"\x1b[2J" in text or r"\e[2J" in text
    value = policy(ingress=[hostile])
    value["metadata"]["name"] = NASTY
    finding = tierwall.Diagnostic("TW204", NASTY, ClusterOrigin(NASTY, value).position(("spec", "ingress", 0)))
    lines = [_printed(line) for line in diagnostics([finding], no_line, terminal=True, colour=True)]
    assert len(lines) > 3
    check_text("\n".join([re.sub(r"\x1b\[(?:1;33|0)m", "", lines[0], count=2), *lines[1:]]), "terminal")


def test_a_secret_is_never_quoted() -> None:
    value = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "data": {"tls.key": "aGVsbG8="}}
    for path in ((), ("data",), ("data", "tls.key"), ("stringData",)):
        finding = tierwall.Diagnostic("TW204", "x", ClusterOrigin("prod", value).position(path))
        assert "aGVsbG8" not in "".join(diagnostics([finding], no_line, terminal=True, colour=False))


def test_the_page_shows_what_is_printed(cluster: ServedCluster) -> None:
    page = (ROOT / "docs" / "clusters.md").read_text().partition("## Where a rule stands")[2]
    match = re.search(r"```text\n\$ tierwall ([^\n]*)\n(.*?)```", page, re.DOTALL)
    assert match is not None
    with serving(ROOT / "examples" / "compare" / "old") as served:
        config = Path(served.kubeconfig).read_text().replace('"root"', '"prod"')
        Path("kubeconfig").write_text(config)
        assert run(*match[1].split(), "--kubeconfig", "kubeconfig").stdout == match[2]
