"""`explain api`, `can-i` and policy tests from the command line: sentences, exit codes, documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import ROOT
from tests.worlds.api_fakes import document
from tierwall.cli.main import root

POLICIES = """
apiVersion: tierwall.io/v1alpha1
kind: ClusterAuthorizationPolicy
metadata: {name: alice-dev-claims}
spec:
  effect: Allow
  description: alice may create dev claims
  expression: |
    request.apiGroup == "" && request.resource == "persistentvolumeclaims" &&
    request.verb == "create" && request.userInfo.username == "alice" &&
    object.spec.storageClassName == "dev"
---
apiVersion: tierwall.io/v1alpha1
kind: ClusterAuthorizationPolicy
metadata: {name: no-eve}
spec: {effect: Deny, expression: 'request.userInfo.username == "eve"'}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list]}
- {nonResourceURLs: [/healthz], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: readers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: User, name: alice, apiGroup: rbac.authorization.k8s.io}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "all.yaml").write_text(POLICIES)
    for name in ("dev", "prod"):
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"storageClassName": name}}
        (tmp_path / f"{name}.json").write_text(json.dumps(claim))
    return tmp_path


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(root, [*words, "-f", str(folder / "policies")], catch_exceptions=False)


CREATE = ("explain", "api", "--user", "alice", "--verb", "create", "--resource", "persistentvolumeclaims", "-n", "dev")


def test_a_conditional_answer_shows_its_condition_and_where_it_was_written(folder: Path) -> None:
    result = run(folder, *CREATE)
    lines = result.stdout.splitlines()
    assert (result.exit_code, lines[0]) == (
        5,
        "`alice` may create persistentvolumeclaims in namespace `dev`, but only under conditions",
    )
    assert '  allows if object.spec.storageClassName == "dev"' in lines
    assert any("ClusterAuthorizationPolicy/alice-dev-claims at " in line and "all.yaml:8:" in line for line in lines)


@pytest.mark.parametrize(("claim", "code", "final"), [("dev", 0, "Allow"), ("prod", 3, "NoOpinion")])
def test_an_object_gives_the_final_decision(folder: Path, claim: str, code: int, final: str) -> None:
    result = run(folder, *CREATE, "--object", str(folder / f"{claim}.json"), "-o", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["verdict"], document["final"]) == (code, "Conditional", final)
    assert document["conditions"][0]["source"]["line"] == 8


@pytest.mark.parametrize(
    ("words", "code", "start"),
    [
        (
            ("--user", "alice", "--verb", "get", "--resource", "pods"),
            0,
            "`alice` may get pods: authorizer `rbac` allows it",
        ),
        (
            ("--user", "eve", "--verb", "get", "--resource", "pods"),
            3,
            "`eve` may not get pods: authorizer `policies` denies",
        ),
        (
            ("--user", "bob", "--verb", "get", "--resource", "pods"),
            3,
            "`bob` may not get pods: no authorizer allows it",
        ),
        (("--user", "alice", "--verb", "get", "--path", "/healthz"), 0, "`alice` may get /healthz: authorizer `rbac`"),
    ],
)
def test_the_first_line_is_a_sentence(folder: Path, words: tuple[str, ...], code: int, start: str) -> None:
    result = run(folder, "explain", "api", *words)
    assert result.exit_code == code
    assert result.stdout.startswith(start)


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("get", "pods", "--as", "alice"), 0, "yes"),
        (("get", "pods/x", "--as", "alice", "-n", "dev"), 0, "yes"),
        (("get", "/healthz", "--as", "alice"), 0, "yes"),
        (("delete", "pods", "--as", "alice"), 3, "no - no authorizer has an opinion"),
        (("get", "pods", "--as", "eve"), 3, "no - denied by ClusterAuthorizationPolicy/no-eve"),
        (("create", "persistentvolumeclaims", "--as", "alice"), 5, "yes, if the conditions hold"),
    ],
)
def test_can_i(folder: Path, words: tuple[str, ...], code: int, line: str) -> None:
    result = run(folder, "can-i", *words)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (code, line)
    assert run(folder, "can-i", *words, "-q").stdout == ""


@pytest.mark.parametrize("words", [("get", "pods", "--as", "alice"), ("list", "pods", "--as", "alice", "--widest")])
def test_strict_answers_may_be_incomplete_without_a_word(folder: Path, words: tuple[str, ...]) -> None:
    other = {"apiVersion": "cedar.k8s.aws/v1alpha1", "kind": "Policy", "metadata": {"name": "other"}}
    (folder / "policies" / "other.json").write_text(json.dumps(other))
    for strict, code in (((), 0), (("--strict",), 6)):
        quiet = run(folder, "can-i", *words, "-q", *strict)
        assert (quiet.exit_code, quiet.output) == (code, "")
        assert run(folder, "can-i", *words, *strict).exit_code == code


def test_a_conditional_answer_that_cannot_become_allowed_is_a_no(folder: Path) -> None:
    spec = {"effect": "Deny", "expression": "request.userInfo.username == 'carol' && object.spec.huge"}
    value = {"apiVersion": "tierwall.io/v1alpha1", "kind": "ClusterAuthorizationPolicy", "metadata": {"name": "huge"}}
    (folder / "policies" / "huge.json").write_text(json.dumps(value | {"spec": spec}))
    result = run(folder, "can-i", "create", "pods", "--as", "carol")
    assert (result.exit_code, result.stdout) == (3, "no\n")
    result = run(folder, "explain", "api", "--user", "carol", "--verb", "create", "--resource", "pods")
    assert result.exit_code == 5
    assert result.stdout.startswith("`carol` may not create pods: whatever the object is, nothing allows it\n")


def test_can_i_lists_denials_that_fail_and_no_contradictions(folder: Path) -> None:
    kind = "{apiVersion: tierwall.io/v1alpha1, kind: ClusterAuthorizationPolicy, metadata: {name: %s}, spec: {%s}}"
    texts = {
        "never": 'effect: Allow, expression: \'request.verb == "get" && request.verb == "list"\'',
        "fails": "effect: Deny, expression: '1 / 0 == 1'",
        "broken": "effect: Deny, expression: 'true &&'",
        "useless": "effect: Allow, expression: '1 / 0 == 1'",
    }
    documents = [kind % (name, text) for name, text in texts.items()]
    (folder / "policies" / "more.yaml").write_text("\n---\n".join(documents))
    result = run(folder, "can-i", "--list", "--as", "alice", "-o", "json")
    failing = [
        (permission["policy"].partition("/")[2], permission["effect"])
        for permission in json.loads(result.stdout)["permissions"]
    ]
    assert ("fails", "Deny") in failing
    assert ("broken", "Deny") in failing
    assert not {"never", "useless"} & {name for name, _ in failing}
    assert "fails: division by zero" in run(folder, "can-i", "--list", "--as", "alice").stdout


MORE = """
apiVersion: tierwall.io/v1alpha1
kind: ClusterAuthorizationPolicy
metadata: {name: served}
spec:
  effect: Allow
  expression: |
    [request.resource, request.apiGroup, request.apiVersion] in
      [["deployments", "apps", "v1"], ["widgets", "example.org", "v2"]]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: widgets, singular: widget, shortNames: [wd], kind: Widget}
  versions: [{name: v1, served: true, storage: false}, {name: v2, served: true, storage: true}]
"""


@pytest.mark.parametrize("name", ["deployments", "deployment", "deploy", "deploy.apps", "deployments.v1.apps", "wd"])
def test_can_i_knows_resources_by_the_names_that_kubectl_takes(folder: Path, name: str) -> None:
    (folder / "policies" / "more.yaml").write_text(MORE)
    result = run(folder, "can-i", "create", name, "--as", "bob")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "yes\n", "")


@pytest.mark.parametrize("name", ["deployments.extensions", "deployments.v1beta1.apps"])
def test_can_i_asks_for_the_group_and_version_that_are_given(folder: Path, name: str) -> None:
    (folder / "policies" / "more.yaml").write_text(MORE)
    assert run(folder, "can-i", "create", name, "--as", "bob").exit_code == 3


@pytest.mark.parametrize("name", ["deployments", "deployment", "deploy", "deploy.apps", "deployments.v1.apps", "wd"])
@pytest.mark.parametrize("subresource", ["", "/status"])
def test_explain_takes_the_same_names(folder: Path, name: str, subresource: str) -> None:
    (folder / "policies" / "more.yaml").write_text(MORE)
    result = run(folder, "explain", "api", "--verb", "create", "--resource", name + subresource, "--user", "bob")
    assert (result.exit_code, result.stderr) == (0, "")
    plural = "widgets" if name == "wd" else "deployments"
    assert result.stdout.startswith(f"`bob` may create {plural}")
    assert ("status" in result.stdout.splitlines()[0]) is bool(subresource)


@pytest.mark.parametrize(
    "words",
    [
        ("deployments", "--group", ""),
        ("deployments.apps", "--group", ""),
        ("deployments", "--version", ""),
        ("deployments", "--group", "extensions"),
        ("deploy", "--version", "v1beta1"),
        ("deployments.extensions",),
    ],
)
def test_explain_asks_for_the_group_and_version_that_are_given(folder: Path, words: tuple[str, ...]) -> None:
    (folder / "policies" / "more.yaml").write_text(MORE)
    assert run(folder, "explain", "api", "--verb", "create", "--user", "bob", "--resource", *words).exit_code == 3


def test_explain_asks_about_an_unknown_resource_as_written_and_warns(folder: Path) -> None:
    result = run(folder, "explain", "api", "--user", "alice", "--verb", "get", "--resource", "deploymentz.apps")
    assert result.exit_code == 3
    assert result.stdout.startswith("`alice` may not get deploymentz.apps")
    warning = "unknown resource type `deploymentz.apps` (did you mean `deployments.apps`?)"
    assert result.stderr == f"warning: {warning}\n"


def test_a_policy_test_is_asked_literally(folder: Path) -> None:
    from tierwall.resources.load import load

    (folder / "policies" / "more.yaml").write_text(MORE)
    snapshot = load([str(folder / "policies")]).snapshot
    question = {"user": "bob", "verb": "create", "resource": "deployments"}
    assert document(snapshot, question)["verdict"] == "NoOpinion"
    assert document(snapshot, question | {"group": "apps", "version": "v1"})["verdict"] == "Allow"


@pytest.mark.parametrize("name", ["deploy", "deployment", "deployments.apps", "deployments.v1.apps"])
def test_a_policy_test_takes_short_and_whole_names_as_kubectl_does(folder: Path, name: str) -> None:
    from tierwall.resources.load import load

    (folder / "policies" / "more.yaml").write_text(MORE)
    snapshot = load([str(folder / "policies")]).snapshot
    question = {"user": "bob", "verb": "create", "resource": name}
    assert document(snapshot, question)["verdict"] == "Allow"
    assert document(snapshot, question | {"group": ""})["verdict"] == "NoOpinion"


def test_can_i_warns_about_unknown_verbs_and_resources(folder: Path) -> None:
    result = run(folder, "can-i", "creat", "podz", "--as", "alice")
    assert (result.exit_code, result.stdout) == (3, "no - no authorizer has an opinion\n")
    assert result.stderr.splitlines() == [
        "warning: unknown verb `creat` (did you mean `create`?)",
        "warning: unknown resource type `podz` (did you mean `pods`?)",
    ]


def test_what_impersonation_is_about_is_known(folder: Path) -> None:
    for verb in ("impersonate", "impersonate:user-info"):
        for resource in ("users", "groups", "userextras.authentication.k8s.io/scopes", "uids", "serviceaccounts"):
            assert run(folder, "can-i", verb, resource, "--as", "alice").stderr == ""
    assert "unknown resource type `users`" in run(folder, "can-i", "get", "users", "--as", "alice").stderr


def test_can_i_lists_what_a_user_may_do_with_conditions(folder: Path) -> None:
    result = run(folder, "can-i", "--list", "--as", "alice", "-n", "dev", "-o", "json")
    permissions = json.loads(result.stdout)["permissions"]
    assert [permission.get("condition", "") for permission in permissions] == [
        'object.spec.storageClassName == "dev"',
        "",
        "",
    ]
    assert "no-eve" not in result.stdout
    assert "pods" in run(folder, "can-i", "--list", "--as", "alice").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("can-i",),
        ("can-i", "get"),
        ("can-i", "get", "pods", "--list"),
        ("can-i", "get", "/x", "-n", "a"),
        ("explain", "api", "--user", "alice", "--verb", "create"),
        ("explain", "api", "--verb", "get", "--resource", "pods", "--path", "/x"),
    ],
)
def test_usage_errors_exit_with_2(folder: Path, words: tuple[str, ...]) -> None:
    assert run(folder, *words).exit_code == 2


CASES: list[dict[str, Any]] = [
    {
        "name": "alice may create dev claims",
        "api": {
            "user": "alice",
            "verb": "create",
            "version": "v1",
            "resource": "persistentvolumeclaims",
            "object": {"spec": {"storageClassName": "dev"}},
        },
        "expect": {
            "verdict": "Conditional",
            "final": "Allow",
            "decidedBy": "policies",
            "called": ["policies"],
            "conditionSets": [{"authorizer": "policies", "effects": {"Allow": 1}}],
        },
    },
    {
        "name": "rbac grants reading",
        "api": {"user": "alice", "verb": "get", "resource": "pods", "namespace": "dev"},
        "expect": {
            "verdict": "Allow",
            "final": "Allow",
            "decidedBy": "rbac",
            "called": ["policies", "rbac"],
            "error": False,
        },
    },
    {
        "name": "wrong on purpose",
        "api": {"user": "alice", "verb": "get", "resource": "pods"},
        "expect": {
            "verdict": "Deny",
            "final": "Deny",
            "decidedBy": "nobody",
            "called": [],
            "error": True,
            "conditionSets": [{"authorizer": "x", "allowed": True}],
        },
    },
]


def test_policy_tests_ask_api_questions(folder: Path) -> None:
    spec = {"resources": ["policies/"], "cases": CASES}
    test = {"apiVersion": "tierwall.io/v1alpha1", "kind": "PolicyTest", "metadata": {"name": "t"}, "spec": spec}
    (folder / "test.json").write_text(json.dumps(test))
    result = CliRunner().invoke(root, ["test", str(folder / "test.json"), "-o", "json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert [case["ok"] for case in document["cases"]] == [True, True, False]
    assert (result.exit_code, document["passed"], document["failed"]) == (4, 2, 1)
    assert document["cases"][1]["got"]["decidedBy"] == [{"policy": "rbac"}]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"usr": "alice"}, "did you mean `user`?"),
        ({"user": 7}, "expected a string as `user`, found `7`"),
        ({"groups": "a"}, "expected a list of strings as `groups`, found `a`"),
        ({"groups": [7]}, "expected a list of strings as `groups`, found `[7]`"),
        ({"extra": {"a": "b"}}, "expected a map from strings to lists of strings as `extra`"),
        ({"conditions": "Maybe"}, 'expected `HumanReadable`, `Optimized` or `""` as `conditions`, found `Maybe`'),
        ({"conditions": None}, "as `conditions`, found nothing"),
        (
            {"labelSelector": [{}]},
            "`key`, `operator` and `values` as `labelSelector`",
        ),
        ({"path": "/x", "resource": "pods"}, "expected no `resource` beside `path`"),
        ({"operation": 7}, "expected a string as `operation`, found `7`"),
    ],
)
def test_malformed_questions_are_refused_with_every_problem(question: dict[str, Any], words: str) -> None:
    from tierwall.api.question import ApiQuestion, ask
    from tierwall.core.diagnostics import Diagnostic, InputError
    from tierwall.resources.snapshot import Snapshot

    problems: list[Diagnostic] = []
    read = ApiQuestion.read({**question, "another": 1}, problems)
    with pytest.raises(InputError) as caught:
        ask(Snapshot.of(()), read, problems)
    assert len(caught.value.diagnostics) == 2
    assert any(words in f"{diagnostic.message} {diagnostic.hint}" for diagnostic in caught.value.diagnostics)


@pytest.mark.parametrize(
    "expect",
    [
        {"verdict": "Maybe"},
        {"final": "Conditional"},
        {"error": "yes"},
        {"called": "a"},
        {"decidedBy": 7},
        {"conditionSets": [{"effect": {}}]},
        {"conditionSets": [{"authorizer": "a", "effects": {"Alow": 1}}]},
        {"verdit": "Allow"},
    ],
)
def test_malformed_expectations_are_refused(expect: dict[str, Any]) -> None:
    from tierwall.api.question import EXPECTATIONS, ApiQuestion, ask
    from tierwall.core.diagnostics import InputError
    from tierwall.core.expectation import mismatches
    from tierwall.resources.snapshot import Snapshot

    with pytest.raises(InputError):
        mismatches(expect, ask(Snapshot.of(()), ApiQuestion()), EXPECTATIONS)


def test_the_check_command_reports_policies(folder: Path) -> None:
    bad = {"effect": "Allow", "expression": 'request.verb == "a" && request.verb == "b"'}
    value = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "ClusterAuthorizationPolicy",
        "metadata": {"name": "x"},
        "spec": bad,
    }
    (folder / "policies" / "bad.json").write_text(json.dumps(value))
    result = CliRunner().invoke(root, ["check", str(folder / "policies"), "-o", "json"], catch_exceptions=False)
    assert result.exit_code == 4
    assert "TW502" in result.stdout


def test_the_example_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert CliRunner().invoke(root, ["test", "examples/api"]).exit_code == 0
    assert CliRunner().invoke(root, ["check", "examples/api"]).exit_code == 0
