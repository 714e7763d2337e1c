"""The options of every command that reads objects: `-n`, `--without` and `--exclude` (docs/reference/sources.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tierwall as api
from tierwall import GatewayQuestion, InputError, NetworkQuestion, ToolQuestion
from tierwall.cli.main import root
from tierwall.core.reference import full_name, full_reference

OBJECTS = """\
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, labels: {app: db}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {}, policyTypes: [Ingress]}
"""
TEST = """\
apiVersion: tierwall.io/v1alpha1
kind: PolicyTest
metadata: {name: t}
spec:
  resources: [objects.yaml]
  cases:
  - {name: c, network: {from: web-0, to: db-0, port: 1}, expect: {verdict: VERDICT, decidedBy: DECIDER}}
"""
ASK = ("explain", "network", "--from", "web-0", "--to", "db-0", "--port", "1", "-f", "objects.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "objects.yaml").write_text(OBJECTS)
    return tmp_path


def tierwall(*arguments: str) -> Result:
    return CliRunner().invoke(root, arguments)


@pytest.mark.parametrize(("options", "namespace"), [((), "default"), (("-n", "shop"), "shop")])
def test_names_and_objects_without_a_namespace_share_one(options: tuple[str, ...], namespace: str) -> None:
    result = tierwall(*ASK, *options)
    assert result.exit_code == 3
    assert result.stdout.startswith(f"{namespace}/web-0 cannot reach {namespace}/db-0")
    assert f"NetworkPolicy/{namespace}/closed" in result.stdout
    world = api.load("objects.yaml", namespace=namespace)
    answer = world.ask(NetworkQuestion(source="web-0", to=f"{namespace}/db-0", port=1))
    assert f"NetworkPolicy/{namespace}/closed" in [str(decider.policy) for decider in answer.decided_by]
    assert world.find("NetworkPolicy/closed").namespace == namespace


def test_a_namespace_that_is_given_stays() -> None:
    result = tierwall(*ASK[:3], "default/web-0", *ASK[4:], "-n", "shop")
    assert result.exit_code == 1
    assert "there is no pod in namespace `default`" in result.stderr


def test_an_address_and_the_outside_are_not_names() -> None:
    question = NetworkQuestion(source="10.0.0.1", to="outside", port=1)
    assert question.in_namespace("shop") is question
    question = NetworkQuestion(source={"ip": "10.0.0.1"}, to="Deployment/web", port=1)
    assert question.in_namespace("shop").to == "Deployment/shop/web"


def test_names_in_questions_of_every_plane() -> None:
    tool = ToolQuestion(gateway="edge", backend="Service/db", caller={"serviceAccount": "agent"})
    assert tool.in_namespace("x").to_dict() == {
        "gateway": "x/edge",
        "backend": "Service/x/db",
        "caller": {"serviceAccount": "x/agent"},
    }
    gateway = GatewayQuestion(gateway="edge", listener="web", route="HTTPRoute/api", backend="Service/y/db")
    assert gateway.in_namespace("x").to_dict() == {
        "gateway": "x/edge",
        "listener": "web",
        "route": "HTTPRoute/x/api",
        "backend": "Service/y/db",
    }


@pytest.mark.parametrize(
    ("name", "as_name", "as_reference"),
    [
        ("web", "x/web", "web"),
        ("y/web", "y/web", "y/web"),
        ("Kind/web", "Kind/x/web", "Kind/x/web"),
        ("Kind.group/web", "Kind.group/x/web", "Kind.group/x/web"),
        ("Kind/y/web", "Kind/y/web", "Kind/y/web"),
        ("", "", ""),
        ("Kind/", "Kind/", "Kind/"),
        ("/web", "/web", "/web"),
        (7, 7, 7),
    ],
)
def test_a_namespace_is_put_only_where_none_is(name: object, as_name: object, as_reference: object) -> None:
    assert full_name(name, "x") == as_name
    assert full_reference(name, "x") == as_reference


def test_the_namespace_of_a_request_is_not_that_of_files() -> None:
    Path("role.yaml").write_text(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\n"
        "rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]\n---\n"
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: r}\n"
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}\n"
        "subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: alice}]\n"
    )
    ask = ("can-i", "get", "pods", "--as", "alice", "-f", "role.yaml", "-n")
    assert tierwall(*ask, "default").stdout == "yes\n"
    assert tierwall(*ask, "shop").stdout.startswith("no")


def test_policy_tests_take_the_namespace_and_leave_objects_out() -> None:
    text = TEST.replace("DECIDER", "NetworkPolicy/shop/closed").replace("VERDICT", "Deny")
    Path("t.yaml").write_text(text)
    assert tierwall("test", "t.yaml", "-n", "shop").exit_code == 0
    Path("t.yaml").write_text(TEST.replace("DECIDER", "Default").replace("VERDICT", "Allow"))
    assert tierwall("test", "t.yaml", "--without", "NetworkPolicy/closed").exit_code == 0
    assert tierwall("test", "t.yaml").exit_code == 4
    result = tierwall("test", "t.yaml", "--without", "NetworkPolicy/clothed")
    assert (result.exit_code, "did you mean `NetworkPolicy/default/closed`?" in result.stderr) == (1, True)


def test_an_object_can_be_left_out() -> None:
    assert tierwall(*ASK, "--without", "NetworkPolicy/default/closed").exit_code == 0
    assert tierwall(*ASK, "--without", "NetworkPolicy.networking.k8s.io/closed").exit_code == 0
    for command in (ASK, ("list", "objects.yaml"), ("check", "objects.yaml"), ("compile", "nft", "-f", "objects.yaml")):
        result = tierwall(*command, "--without", "NetworkPolicy/clothed")
        assert result.exit_code == 1
        assert "there is no NetworkPolicy/clothed (did you mean `NetworkPolicy/default/closed`?)" in result.stderr
    with pytest.raises(InputError, match="clothed"):
        api.load("objects.yaml").without("NetworkPolicy/clothed")


def test_diff_leaves_out_what_either_side_has(folder: Path) -> None:
    (folder / "new.yaml").write_text(OBJECTS.rpartition("---")[0])
    assert tierwall("diff", "objects.yaml", "new.yaml").exit_code == 4
    assert tierwall("diff", "objects.yaml", "new.yaml", "--without", "NetworkPolicy/closed").exit_code == 0
    assert tierwall("diff", "objects.yaml", "new.yaml", "--without", "NetworkPolicy/other").exit_code == 1


def test_a_reference_prefers_the_group_that_is_judged() -> None:
    Path("objects.yaml").write_text(
        OBJECTS + "---\napiVersion: crd.projectcalico.org/v1\nkind: NetworkPolicy\n"
        "metadata: {name: closed, namespace: default}\n"
    )
    world = api.load("objects.yaml")
    assert world.find("NetworkPolicy/closed").group == "networking.k8s.io"
    calico = "NetworkPolicy.crd.projectcalico.org/default/closed"
    assert world.find(calico).group == "crd.projectcalico.org"
    (omission,) = world.omissions("network")
    assert [str(example) for example in omission.examples] == [calico]
    assert world.without(calico).omissions("network") == ()


def test_check_refuses_a_namespace_and_names_the_option_that_it_became() -> None:
    for option in ("-n", "--namespace"):
        result = tierwall("check", "objects.yaml", option, "shop")
        assert result.exit_code == 2
        assert "--for-namespace" in result.stderr
    summary = json.loads(tierwall("check", "objects.yaml", "--for-namespace", "default", "-o", "json").stdout)
    assert summary["objects"] == 3


def test_what_a_running_command_leaves_out(folder: Path) -> None:
    from tierwall.resources.load import Loader, LoadSettings

    loader = Loader([str(folder)], LoadSettings(without=("NetworkPolicy/closed",)), leaves_out=True)
    assert {resource.kind for resource in loader.load().resources} == {"Pod"}
    (folder / "objects.yaml").write_text(OBJECTS.rpartition("---")[0])
    assert len(loader.load().resources) == 2
    unknown = Loader([str(folder)], LoadSettings(without=("NetworkPolicy/closed",)), leaves_out=True)
    with pytest.raises(InputError, match="there is no NetworkPolicy/closed"):
        unknown.load()


def test_an_object_that_a_later_one_replaces_is_named(tmp_path: Path) -> None:
    """Otherwise an answer would silently be about one of two files."""
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME, namespace: shop}\n---\n"
    text = "".join(pod.replace("NAME", f"pod-{number}") for number in range(5))
    (tmp_path / "base.yaml").write_text(text)
    (tmp_path / "overlay.yaml").write_text(text)
    result = CliRunner().invoke(root, ["list", str(tmp_path)])
    assert result.stderr.count("warning[TW007]") == 3
    assert f"Pod/shop/pod-0 is defined twice, first at {tmp_path}/base.yaml:1; the later one counts" in result.stderr
    assert "and 2 more objects are defined twice (`tierwall check` names them)" in result.stderr
    assert "TW007" not in result.stdout
