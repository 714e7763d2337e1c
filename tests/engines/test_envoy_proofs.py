"""Counterexamples of proofs about the tool plane: a real Envoy answers as the model does, or cannot be asked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

import tierwall
from tests.proofs.test_tool_proofs import EXTERNAL, FINANCE, OBJECTS, WAY, random_claim
from tests.worlds import tool_worlds
from tierwall import Proof
from tierwall.proofs.proving import engine_result, prove
from tierwall.serve.envoy import Envoy

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]


@pytest.mark.parametrize("seed", [3, 8])
def test_envoy_confirms_the_counterexamples_of_random_claims(seed: int) -> None:
    counts: Counter[str] = Counter()
    world = tool_worlds.World(seed)
    snapshot = tool_worlds.snapshot(world.objects)
    proofs = [Proof.from_dict(random_claim(world)) for _ in range(40)]
    results = [(proof, prove(snapshot, proof)) for proof in proofs]
    refuted = [(proof, result) for proof, result in results if result.counterexample is not None]
    questions = [result.counterexample.question for _, result in refuted if result.counterexample is not None]
    for (proof, result), reply in zip(refuted, Envoy().ask(snapshot, questions), strict=True):
        if reply.answer is None:
            counts[reply.skipped or reply.error] += 1
            assert reply.skipped, reply
            continue
        counts["confirmed"] += 1
        assert engine_result(proof, result, reply.answer).proof == "Refuted", (seed, proof, result.counterexample)
    assert counts["confirmed"] > len(refuted) / 2, counts


def test_a_policy_test_sends_counterexamples_as_requests(tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text(OBJECTS + EXTERNAL)
    old = OBJECTS.replace("startsWith('get')", "startsWith('get-')")
    (tmp_path / "old.yaml").write_text(old)
    refuted = {"proof": "Refuted"}
    cases = [
        {"name": "any", "prove": {"tool": WAY, "always": "Allow"}, "expect": refuted},
        {"name": "finance", "prove": {"tool": WAY | {"caller": FINANCE}, "never": "Deny"}, "expect": refuted},
        {"name": "asked", "prove": {"tool": WAY | {"caller": FINANCE}, "never": "Allow"}, "expect": refuted},
        {"name": "opens", "prove": {"noLoss": {"against": "old.yaml", "planes": ["tool"]}}, "expect": refuted},
    ]
    spec = {"resources": ["new.yaml"], "cases": cases}
    test = {"apiVersion": "tierwall.io/v1alpha1", "kind": "PolicyTest", "metadata": {"name": "t"}, "spec": spec}
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump(test))
    report = tierwall.run_tests(path, engine="envoy")
    assert [(case.ok, case.skipped, case.mismatches) for case in report.cases] == [(True, "", ())] * 4, [
        case.proof for case in report.cases
    ]
    proofs = [case.proof for case in report.cases if case.proof is not None]
    answers = [proof.counterexample.answer for proof in proofs if proof.counterexample is not None]
    # Only a real proxy answers with a status.
    assert [answer.detail.status for answer in answers] == [200, 200, 200, 200]
