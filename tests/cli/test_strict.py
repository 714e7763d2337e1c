"""Every command that answers names what it did not consider, and `--strict` ends it with exit code 6 for that."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests import ROOT
from tests.cli.test_command_line import ALL
from tierwall.cli.main import root

# A pod, a Gateway with a backend, a user; and a policy of another system on every plane.
WORLD = """\
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: shop}
spec: {gatewayClassName: c, listeners: [{name: web, port: 80, protocol: HTTP}]}
---
apiVersion: agentic.networking.x-k8s.io/v0alpha0
kind: XBackend
metadata: {name: tools, namespace: shop}
spec: {mcp: {serviceName: tools, port: 80}}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: a}
spec: {priority: 1, subject: {namespaces: {}}, ingress: [{action: Allow, from: [{namespaces: {}}]}]}
---
{apiVersion: cilium.io/v2, kind: CiliumClusterwideNetworkPolicy, metadata: {name: other}}
---
{apiVersion: cedar.k8s.aws/v1alpha1, kind: Policy, metadata: {name: other}}
---
apiVersion: kuadrant.io/v1
kind: AuthPolicy
metadata: {name: other, namespace: shop}
spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: gw}}
"""
TEST = """\
apiVersion: tierwall.io/v1alpha1
kind: PolicyTest
metadata: {name: t}
spec:
  cases:
  - {name: a, network: {from: shop/web, to: outside, port: 80}, expect: {verdict: Allow}}
"""
TOOL = "--gateway shop/gw --backend shop/tools --tool t"
COMMANDS = (
    "check",
    "list",
    "list -o csv",
    "list --exposure",
    "convert --to ClusterNetworkPolicy",
    "explain network --from shop/web --to outside --port 80",
    f"explain tool {TOOL}",
    f"explain path --from shop/web {TOOL}",
    "explain gateway --gateway shop/gw",
    "explain api --user alice --verb get --resource pods",
    "tools",
    f"tools --from-log {ROOT}/examples/tool/decisions.jsonl",
    "effective --gateway shop/gw",
    "effective --all -o md",
    "effective --gateway shop/gw --why traffic.timeouts",
    "can-i get pods --as alice",
    "can-i get pods --as alice -q",
    "can-i --list --as alice",
    "can-i list pods --as alice --widest",
    "can-i list pods --as alice --widest -q",
    "status",
    "test test.yaml",
    "diff old.yaml world.yaml",
    "diff --prove world.yaml world.yaml",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "world.yaml").write_text(WORLD)
    (tmp_path / "old.yaml").write_text(WORLD.partition("---")[0])
    (tmp_path / "test.yaml").write_text(TEST)
    monkeypatch.chdir(tmp_path)


def run(words: str, *more: str) -> Result:
    files = () if words.startswith("diff") else ("-f", "world.yaml")
    return CliRunner().invoke(root, [*words.split(), *files, *more], catch_exceptions=False)


@pytest.mark.parametrize("words", COMMANDS)
def test_an_answer_that_may_be_incomplete_ends_with_6(words: str) -> None:
    plain, strict = run(words), run(words, "--strict")
    assert plain.exit_code in (0, 3, 4, 5), plain.output
    assert strict.exit_code == 6
    assert strict.output == plain.output
    assert ("not considered: 1 " in plain.output) == ("-q" not in words.split())


def test_every_command_with_the_option_is_tried() -> None:
    takes = [words for words, command in ALL.items() if any("--strict" in option.opts for option in command.params)]
    assert [words for words in takes if not any(f"{tried} ".startswith(f"{words} ") for tried in COMMANDS)] == []
