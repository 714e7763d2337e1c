from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tierwall.analyze.review import ReviewResult
from tierwall.cli.main import root
from tierwall.core.diagnostics import Diagnostic, Diagnostics
from tierwall.core.source import Position
from tierwall.render import findings, junit, text
from tierwall.render.formats import View
from tierwall.resources.load import load

BROKEN = """\
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: a}
spec:
  priority: 5
  priority: 1001
  subject:
    pods:
      namespaceSeletor: {}
      podSelector: {}
"""


def check(*args: str, text: str | None = None) -> Result:
    return CliRunner().invoke(root, ["check", *args], input=text)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(BROKEN)
    return tmp_path


def test_every_problem_is_reported_at_once_sorted_by_place_with_hints(broken: Path) -> None:
    result = check("a.yaml")
    assert result.exit_code == 4
    assert result.stdout.splitlines() == [
        "a.yaml:6:3: error[TW004]: key `priority` is repeated; only the last one counts (remove one of them)",
        "a.yaml:6:13: error[TW105]: spec.priority: Invalid value: 1001: "
        "spec.priority in body should be less than or equal to 1000",
        'a.yaml:9:7: error[TW101]: unknown field "spec.subject.pods.namespaceSeletor" '
        "(did you mean `namespaceSelector`?)",
        "a.yaml:9:7: error[TW102]: spec.subject.pods.namespaceSelector: Required value",
        "not considered: 1 AdminNetworkPolicy (refused by an API server; here what cannot be read fails closed: "
        "an Allow matches nothing, any other rule denies), first a.yaml:1",
    ]
    assert result.stderr == "4 errors in 1 object of 1 file\n"


def test_json_has_the_same_findings_and_the_counts(broken: Path) -> None:
    document = json.loads(check("a.yaml", "-o", "json").stdout)
    assert (document["errors"], document["warnings"], document["objects"]) == (4, 0, 1)
    findings = document["diagnostics"]
    assert [(finding["code"], finding["line"], finding["column"]) for finding in findings] == [
        ("TW004", 6, 3), ("TW105", 6, 13), ("TW101", 9, 7), ("TW102", 9, 7),
    ]  # fmt: skip


def test_sarif_names_the_rule_the_file_and_the_place(broken: Path) -> None:
    run = json.loads(check("a.yaml", "-o", "sarif").stdout)["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "a.yaml"}, "region": {"startLine": 6, "startColumn": 3}}


def test_junit_fails_the_file_that_has_problems(broken: Path) -> None:
    (broken / "good.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n")
    tree = ElementTree.fromstring(check(".", "-o", "junit").stdout)
    failures = {case.get("name"): len(case.findall("failure")) for case in tree.iter("testcase")}
    assert failures == {"./a.yaml": 4, "./good.yaml": 0}


def test_junit_replaces_characters_that_xml_cannot_represent() -> None:
    finding = Diagnostic("TW105", "bad \x01 \ud800 text", Position("a\x00.yaml", 1, 1))
    ElementTree.fromstring(junit.findings(findings.CheckResult(ReviewResult(Diagnostics([finding])), load([])), View()))


def test_github_annotations_are_escaped(broken: Path) -> None:
    finding = Diagnostic("TW105", "50%\nmore", Position("a,b:c.yaml", 2, 3), hint="x")
    checked = findings.CheckResult(ReviewResult(Diagnostics([finding])), load([]))
    assert list(findings.github(checked, View())) == [
        "::error file=a%2Cb%3Ac.yaml,line=2,col=3,title=TW105::50%25%0Amore (x)"
    ]


def test_a_terminal_shows_a_caret_under_the_offending_text() -> None:
    finding = Diagnostic("TW101", "unknown field", Position("a.yaml", 9, 7), hint="did you mean `x`?")
    lines = list(text.diagnostics([finding], lambda file, number: "      namespaceSeletor: {}", True, False))
    assert lines[1:] == [
        "    9 |       namespaceSeletor: {}",
        "      |       ^^^^^^^^^^^^^^^^",
        "      = hint: did you mean `x`?",
    ]


def test_a_caret_in_a_long_line_shows_its_neighbourhood() -> None:
    finding = Diagnostic("TW101", "unknown field", Position("a.json", 1, 5001))
    lines = list(text.diagnostics([finding], lambda file, number: "x" * 5000 + "HERE " + "y" * 5000, True, False))
    assert lines[1].index("HERE") == lines[2].index("^^^^")
    assert len(lines[1]) < 200


def test_kinds_that_tierwall_does_not_judge_are_counted() -> None:
    result = check("-", text="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
    assert result.exit_code == 0
    assert "not judged: 1 ConfigMap" in result.stderr
    workload = "apiVersion: apps/v1beta2\nkind: Deployment\nmetadata: {name: a}\nspec: {template: {}}\n"
    assert "not judged" not in check("-", text=workload).stderr


def test_a_list_is_judged_item_by_item_at_the_place_of_the_item() -> None:
    items = (
        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Namespace\n"
        "  metadata: {name: good}\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: BAD}\n"
    )
    result = check("-", text=items)
    assert result.exit_code == 4
    assert result.stdout.startswith('stdin:9:20: error[TW105]: metadata.name: Invalid value: "BAD"')


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("a: [", "TW002"),
        ("\x00\x01", "TW005"),
        ("[" * 5000 + "]" * 5000, "TW003"),
        ("- 1\n", "TW006"),
        ("x: 1\n", "TW006"),
    ],
)
def test_unusable_input_is_reported(content: str, code: str) -> None:
    result = check("-", text=content)
    assert result.exit_code == (4 if code == "TW006" else 1)
    assert f"[{code}]" in result.stdout


def test_a_missing_file_is_reported_with_the_nearest_name(broken: Path) -> None:
    result = check("b.yaml")
    assert result.exit_code == 1
    assert result.stdout == "b.yaml:1:1: error[TW001]: there is no such file or folder (did you mean `a.yaml`?)\n"


def test_an_object_defined_twice_is_a_warning_that_names_both_places() -> None:
    once = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n"
    result = check("-", "-o", "json", text=f"{once}---\n{once}")
    (finding,) = json.loads(result.stdout)["diagnostics"]
    assert (finding["code"], finding["line"], finding["related"][0]["line"]) == ("TW007", 5, 1)
    assert result.exit_code == 4


def test_an_unknown_command_suggests_the_nearest_one() -> None:
    result = CliRunner().invoke(root, ["chekc"])
    assert result.exit_code == 2
    assert "did you mean `check`?" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(root, ["completion", shell])
    assert result.exit_code == 0
    assert "_TIERWALL_COMPLETE" in result.stdout


def test_every_command_has_help_with_an_example() -> None:
    from tierwall.cli.groups import QUESTIONS
    from tierwall.cli.main import COMMANDS

    for path in [*([name] for name in COMMANDS), *(["explain", name] for name in QUESTIONS)]:
        result = CliRunner().invoke(root, [*path, "--help"])
        assert result.exit_code == 0, path
        assert "Example" in result.stdout, f"{' '.join(path)} --help shows no example"


TEAMS = """\
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: fence}
spec:
  priority: 5
  subject: {namespaces: {}}
  ingress:
  - {action: Deny, from: [{namespaces: {matchLabels: {team: other}}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: np, namespace: shop}
spec:
  podSelector: {}
  ingress: [{from: [{namespaceSelector: {matchLabels: {team: other}}}]}]
---
apiVersion: v1
kind: Namespace
metadata: {name: secret, labels: {team: other}}
---
apiVersion: v1
kind: Pod
metadata: {name: hidden, namespace: secret}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: other, namespace: secret}
spec: {podSelektor: {}}
"""


def test_a_developer_sees_who_overrides_a_rule_but_nothing_of_other_namespaces() -> None:
    result = check("-", "--for-namespace", "shop", "-o", "json", text=TEAMS)
    findings = json.loads(result.stdout)["diagnostics"]
    no_pods, overridden = findings
    assert no_pods["code"] == "TW211"
    assert (overridden["code"], overridden["object"]) == ("TW202", "NetworkPolicy/shop/np")
    assert "AdminNetworkPolicy/fence ingress[0] denies everything" in overridden["message"]
    assert "secret" not in result.stdout


def test_an_empty_namespace_is_reported_with_the_nearest_name() -> None:
    result = check("-", "--for-namespace", "shopp", text=TEAMS)
    assert result.exit_code == 1
    assert "nothing is in namespace `shopp` (did you mean `shop`?)" in result.stderr


def test_a_folder_of_policies_alone_is_one_note_and_no_failure(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.yaml").write_text(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"
            f"metadata: {{name: np{number}, namespace: shop}}\n"
            "spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}]}]}\n"
        )
    for view in ((), ("--for-namespace", "shop")):
        result = check(str(tmp_path), *view)
        assert result.exit_code == 0
        assert result.stdout == (
            "note[TW211]: no pods were given, so it was not checked whether policies select any "
            "(add the workloads to the input)\n"
        )
    assert check(str(tmp_path), "-o", "junit").stdout.count("<testcase") == 3
