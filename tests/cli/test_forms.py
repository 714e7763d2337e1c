"""Documents that are not objects, and objects that nearly are (docs/reference/sources.md#what-is-not-an-object)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tierwall as api
from tierwall.cli.main import root

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
TEMPLATE = "{{- if .Values.on }}\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Release.Name }}\n{{- end }}\n"
FORMS = [
    ("kustomization", "kustomization.yaml", "resources: [a.yaml]\n"),
    ("kustomization", "k.yaml", "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"),
    ("kustomization", "k.yaml", "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"),
    ("Helm template", "t.yaml", TEMPLATE),
    ("Helm template", "t.yaml", f"{POD}---\n{TEMPLATE}"),
    ("Helm template", "t.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {{ include `x` . | nindent 2 }}\n"),
    ("Helm values", "values.yaml", "replicas: 2\n"),
    ("Helm values", "values-prod.yaml", "replicas: 2\n"),
    ("Helm values", "prod.values.yaml", "replicas: 2\n"),
    ("Chart", "Chart.yaml", "apiVersion: v2\nname: shop\nversion: 1.0.0\n"),
    ("compose file", "docker-compose.yml", "version: '3'\n"),
    ("compose file", "x.yaml", "services: {web: {image: nginx}}\n"),
    ("CI file", "cloudbuild.yaml", "steps:\n- name: gcr.io/x\n"),
    ("CI file", "x.yaml", "on: [push]\njobs: {build: {runs-on: ubuntu-latest}}\n"),
    ("CI file", "action.yml", "name: x\nruns: {using: composite}\n"),
    ("CI file", "ci.yaml", "stages: [a]\nbuild: {stage: a, script: [make]}\n"),
    ("CI file", "c.yml", "version: 2.1\njobs: {a: {docker: []}}\nworkflows: {}\n"),
    ("CI file", "azure-pipelines.yml", "steps: []\n"),
    ("CI file", "drone.yml", "kind: pipeline\ntype: docker\nname: x\n"),
    ("CI file", "p.yaml", "repos: [{repo: local, hooks: []}]\n"),
    ("mkdocs file", "mkdocs.yml", "site_name: x\n"),
    ("package file", "tsconfig.json", '{\n  // a comment\n  "compilerOptions": {"strict": true,},\n}\n'),
    ("OpenAPI document", "api.yaml", "openapi: 3.0.0\ninfo: {}\n"),
    ("other document", "x.yaml", "a: 1\n"),
    ("other document", "x.yaml", "- 1\n"),
    ("other document", "x.json", '"text"'),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tierwall(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(root, arguments, input=input)


def unread(*arguments: str) -> list[dict[str, Any]]:
    result = tierwall("check", *arguments, "--strict", "-o", "json")
    assert result.exit_code == 0, result.output
    omissions: list[dict[str, Any]] = json.loads(result.stdout)["notConsidered"]
    return omissions


@pytest.mark.parametrize(("form", "name", "text"), FORMS)
def test_a_form_is_named_and_fails_nothing(form: str, name: str, text: str) -> None:
    Path(name).write_text(text)
    Path("pod.yaml").write_text(POD)
    (omission,) = unread()
    assert (omission["reason"], omission["form"], omission["count"]) == ("unread", form, 1)
    assert omission["source"]["file"] == f"./{name}"
    assert omission["effect"]
    assert "not considered: 1 " + form in tierwall("check").stdout
    listed = tierwall("list")
    assert (listed.exit_code, "not considered" in listed.output) == (0, False)
    assert api.load(".").not_considered == ()
    assert [omission.form for omission in api.load(".", strict=True).unread] == [form]
    named = tierwall("list", name)
    assert named.exit_code == (1 if form == "other document" else 0)
    assert len(unread(name, "--skip-non-manifests")) == 1


@pytest.mark.parametrize("text", ["", "\n", "# apiVersion: v1\n", "---\n---\n"])
def test_a_named_file_must_not_be_empty(text: str) -> None:
    Path("empty.yaml").write_text(text)
    assert tierwall("list", "empty.yaml").exit_code == 1
    assert tierwall("check", "empty.yaml").exit_code == 4
    named = tierwall("check", "-", input=text)
    assert (named.exit_code, "found nothing" in named.stdout) == (4, True)
    # Folders, hooks and Python programs may have empty files and texts.
    assert tierwall("check", ".").exit_code == 0
    assert tierwall("check", "empty.yaml", "--skip-non-manifests").exit_code == 0
    assert list(api.loads(text).objects()) == []
    # A list without items is enough.
    Path("none.yaml").write_text("apiVersion: v1\nkind: List\nitems: []\n")
    assert tierwall("check", "none.yaml").exit_code == 0


@pytest.mark.parametrize("name", ["chart/templates/a.yaml", "chart/templates/tests/a.yaml"])
def test_below_templates_of_a_chart_everything_with_an_action_is_a_template(name: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True)
    path.write_text('apiVersion: v1\nkind: Pod\nmetadata: {name: "{{ .Release.Name }}"}\n')
    (path.parent / "plain.yaml").write_text(POD)
    assert tierwall("check", ".").exit_code == 4, "without a chart it is an object with a bad name"
    Path("chart/Chart.yaml").write_text("apiVersion: v2\nname: shop\nversion: 1.0.0\n")
    assert [omission["form"] for omission in unread()] == ["Chart", "Helm template"]
    assert [resource.name for resource in api.load(".").objects()] == ["a"]


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: [\n",
        'summary: "{{ $labels.x }}"\na: [\n',
        "# {{ x }}\na: [",
    ],
)
def test_a_broken_file_that_is_no_template_is_an_error(text: str) -> None:
    Path("x.yaml").write_text(text)
    assert tierwall("list").exit_code == 1
    assert tierwall("check").exit_code == 1


def test_what_a_hook_names_and_is_no_manifest_is_skipped() -> None:
    Path("notes.yaml").write_text("a: [")
    Path("picture.yaml").write_bytes(b"\0\1\2")
    assert [omission["form"] for omission in unread("notes.yaml", "picture.yaml", "--skip-non-manifests")] == [
        "other file"
    ]
    Path("notes.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: [")
    assert tierwall("check", "notes.yaml", "--skip-non-manifests").exit_code == 1
    Path("notes.yaml").write_text("kind: Pod\n")
    assert tierwall("check", "notes.yaml", "--skip-non-manifests").exit_code == 4
    Path("notes.yaml").write_text(POD)
    assert tierwall("test", "notes.yaml", "--skip-non-manifests").exit_code == 0
    assert tierwall("test", "notes.yaml").exit_code == 1


@pytest.mark.parametrize("text", ["kind: Pod\nmetadata: {name: a}\n", "apiVersion: v1\nmetadata: {name: a}\n"])
def test_half_an_object_is_an_error_everywhere(text: str) -> None:
    Path("x.yaml").write_text(text)
    for command, code in (("check", 4), ("list", 1)):
        result = tierwall(command)
        assert result.exit_code == code
        assert "x.yaml:1:1: error[TW006]: expected a Kubernetes object, found a map without" in result.output


def test_a_list_of_flux_and_tekton_objects_is_one_of_objects() -> None:
    Path("x.yaml").write_text(
        "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: a, namespace: b}\n---\n"
        "apiVersion: tekton.dev/v1\nkind: Pipeline\nmetadata: {name: a, namespace: b}\n"
    )
    assert [resource.kind for resource in api.load(".").objects()] == ["Kustomization", "Pipeline"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{POD}{POD.replace('a}', 'b}')}", "4:1"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nmetadata: {name: b}\n", "4:1"),
        ('{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "kind": "Pod"}', "1:64"),
    ],
)
def test_two_objects_in_one_document(text: str, place: str) -> None:
    for command in ("list", "check", "status"):
        result = tierwall(command, *(["-f"] if command == "status" else []), "-", input=text)
        assert result.exit_code == 1
        assert f"stdin:{place}: error[TW015]: " in result.output
        assert "put a line with `---` between them" in result.output
    with pytest.raises(api.InputError, match="two objects in one document"):
        api.loads(text)


def test_a_repeated_key_below_the_top_is_another_matter() -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, name: b}\n"
    assert tierwall("list", "-", input=text).exit_code == 0
    text = (
        '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "ownerReferences": '
        '[{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "b", "uid": "c"}]}}'
    )
    assert tierwall("list", "-", input=text).exit_code == 0


@pytest.mark.parametrize("word", ["y", "on", "No", "1", "1.0", "0x10", "true", "null", "~", "1e3", "0o7"])
def test_a_name_that_is_not_a_string(word: str) -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata:\n  name: {word} # a name\n"
    for command in ("list", "check"):
        result = tierwall(command, "-", input=text)
        assert result.exit_code in (1, 4)
        message = f"stdin:4:9: error[TW016]: expected a string as `metadata.name`, found `{word}`"
        assert f'{message} (put it in quotes: `name: "{word}"`)' in result.output
        assert "TW103" not in result.output
    assert tierwall("list", "-", input=text.replace(f" {word} ", f' "{word}" ')).exit_code == 0


def test_a_namespace_that_is_not_a_string() -> None:
    text = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: y}}"
    assert "`metadata.namespace`, found `y`" in tierwall("list", "-", input=text).stderr
    assert tierwall("list", "-", input=text.replace("namespace: y", "namespace:")).exit_code == 0
    with pytest.raises(api.InputError, match=r"`objects\[0\]`: expected a string as `metadata.name`, found `true`"):
        api.load(objects=[{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": True}}])


LISTS = [
    "{apiVersion: v1, kind: PodList, items: [{metadata: {name: a}}]}",
    "{apiVersion: v1, kind: PodList, items: [{kind: Pod, metadata: {name: a}}]}",
    "{apiVersion: v1, kind: PodList, items: [{apiVersion: v1, metadata: {name: a}}]}",
    "{apiVersion: v1, kind: PodList, items: [{apiVersion: '', kind: null, metadata: {name: a}}]}",
    "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: PodList, items: [{metadata: {name: a}}]}]}",
    "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: PodList, items: null}, "
    "{apiVersion: v1, kind: Pod, metadata: {name: a}}]}",
]


@pytest.mark.parametrize("text", LISTS)
def test_lists_are_their_items_wherever_an_object_may_stand(text: str) -> None:
    result = tierwall("check", "-", "-o", "json", input=text)
    assert (result.exit_code, json.loads(result.stdout)["objects"]) == (0, 1), result.output
    (resource,) = api.loads(text).objects()
    assert (resource.kind, resource.value["apiVersion"], resource.name) == ("Pod", "v1", "a")
    Path("list.yaml").write_text(text)
    Path("t.yaml").write_text(
        "apiVersion: tierwall.io/v1alpha1\nkind: PolicyTest\nmetadata: {name: t}\nspec:\n"
        f"  objects: [{text}]\n  cases:\n"
        "  - {name: c, network: {from: a, to: {ip: 10.0.0.1}, port: 1}, expect: {verdict: Allow}}\n"
        "  - {name: d, admit: {file: list.yaml}, expect: {verdict: Allow}}\n"
        f"  - name: e\n    admit: {{object: {text}}}\n    expect: {{verdict: Allow}}\n"
    )
    result = tierwall("test", "t.yaml")
    assert result.exit_code == 0, result.output


def test_items_that_are_not_objects_are_errors_everywhere() -> None:
    text = "{apiVersion: v1, kind: PodList, items: [{metadata: {name: y}}, 5, null, [], {metadata: {name: b}}]}"
    with pytest.raises(api.InputError) as caught:
        api.loads(text)
    assert sorted(problem.code for problem in caught.value.diagnostics) == ["TW006", "TW006", "TW006", "TW016"]
    Path("t.yaml").write_text(
        "apiVersion: tierwall.io/v1alpha1\nkind: PolicyTest\nmetadata: {name: t}\nspec:\n"
        f"  objects:\n  - {text}\n  cases:\n"
        "  - {name: c, network: {from: b, to: {ip: 10.0.0.1}, port: 1}, expect: {verdict: Allow}}\n"
    )
    result = tierwall("test", "t.yaml")
    assert result.exit_code == 0, result.output
    assert "t.yaml:6:68: error[TW006]: expected a Kubernetes object, found `5`" in result.stderr
    assert "t.yaml:6:63: error[TW016]: expected a string as `metadata.name`, found `y`" in result.stderr


def test_deeply_nested_lists_are_read() -> None:
    text = (
        "{apiVersion: v1, kind: List, items: [" * 100 + "{apiVersion: v1, kind: Pod, metadata: {name: a}}" + "]}" * 100
    )
    assert len(list(api.loads(text).objects())) == 1
