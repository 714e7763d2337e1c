"""Limits of an engine are in `notConsidered` of the answers that they touch (docs/reference/sources.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.worlds.tool_objects import cel, guarded, sa
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.protocols import Engine, EngineReply
from tierwall.core.question import Question
from tierwall.planes import plane
from tierwall.policytest.run import run
from tierwall.policytest.suite import suites
from tierwall.resources.load import read_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.envoy import Envoy
from tierwall.serve.nftables import Nftables

TEST = """\
apiVersion: tierwall.io/v1alpha1
kind: PolicyTest
metadata: {name: t}
spec:
  objects:
  - {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, status: {podIP: 10.0.0.1}}
  - {apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop}, status: {podIP: 10.0.0.2}}
  - {apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}
  - {apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: c, namespace: shop}}
  - apiVersion: policy.networking.k8s.io/v1alpha2
    kind: ClusterNetworkPolicy
    metadata: {name: domains}
    spec:
      tier: Admin
      priority: 1
      subject: {namespaces: {}}
      egress: [{name: a, action: Accept, to: [{domainNames: [example.com]}]}]
  cases:
  - name: egress
    network: {from: shop/web, to: {ip: 203.0.113.7}, port: 80}
    expect: {}
  - name: ingress only
    network: {from: {ip: 203.0.113.7}, to: shop/db, port: 80}
    expect: {}
"""


class SilentEngine(Engine[Snapshot, Any, Any]):
    """Answers as the model does, and says nothing of what it leaves out."""

    planes = ("network",)

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[EngineReply]:
        for question in questions:
            yield EngineReply(replace(plane("network").ask(snapshot, question), not_considered=()))

    def limits(self, snapshot: Snapshot) -> list[Diagnostic]:
        return list(Nftables().limits(snapshot))


@pytest.fixture
def test_file(tmp_path: Path) -> str:
    (tmp_path / "t.yaml").write_text(TEST)
    return str(tmp_path / "t.yaml")


def test_limits_are_named_where_the_question_met_the_policy(test_file: str) -> None:
    egress, ingress = run(suites([test_file]), SilentEngine())
    assert egress.answer is not None
    assert ingress.answer is not None
    foreign, limit = egress.answer.not_considered
    assert (foreign.reason, limit.reason) == ("foreign", "engine")
    assert (limit.kind, limit.group) == ("ClusterNetworkPolicy", "policy.networking.k8s.io")
    assert limit.effect.endswith("which the kernel does not know: it opens nothing")
    assert limit.at is not None
    assert [omission.reason for omission in ingress.answer.not_considered] == ["foreign"]


def test_envoy_names_rules_that_it_cannot_evaluate() -> None:
    objects = [
        resource
        for value in guarded({"source": sa(), "authorization": cel("request.mcp.tool_name.lowerAscii() == 'x'")})
        for resource in read_objects(value)
        if isinstance(resource, Resource)
    ]
    assert [limit.code for limit in Envoy().limits(Snapshot.of(objects))] == ["TW651"]
