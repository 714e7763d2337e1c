"""The network conformance suites through the kernel: every case with real packets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import ROOT
from tests.labs.nft_kernel import nft_engine
from tierwall.policytest.run import CaseResult, run
from tierwall.policytest.suite import suites
from tierwall.serve.nftables import Nftables

pytestmark = pytest.mark.engine

__all__ = ["nft_engine"]

# Cases in each folder; of cyclonus, every eighth test.
SUITES = {"admin-v1alpha1": 289, "admin-v1alpha2": 301, "policy-assistant": 1090, "decisions": 66}
EVERY = 8


def wrong(results: list[CaseResult]) -> list[str]:
    return [
        f"{result.test}: {result.case}: {result.mismatches or result.error or result.skipped}"
        for result in results
        if result.ok is not True
    ]


def test_packets_do_what_our_own_cases_say(nft_engine: Nftables) -> None:
    results = list(run(suites([str(ROOT / "tests" / "conformance" / "network")]), nft_engine))
    # No packet comes from a pod that has ended, and none resolves a domain.
    skipped = {result.test: result.skipped for result in results if result.skipped}
    assert list(skipped) == ["a-pod-that-has-ended-reaches-nothing", "domain-rules-make-answers-conditional"]
    assert "ended" in str(skipped["a-pod-that-has-ended-reaches-nothing"])
    assert not wrong([result for result in results if not result.skipped])
    assert len(results) > 70


@pytest.mark.parametrize("folder", SUITES)
def test_packets_do_what_the_suite_says(nft_engine: Nftables, shared: Path, folder: str) -> None:
    results = list(run(suites([str(shared / "conformance" / "network" / folder)]), nft_engine))
    assert not wrong(results)
    assert len(results) == SUITES[folder]


def test_packets_do_what_a_sample_of_cyclonus_says(nft_engine: Nftables, shared: Path) -> None:
    files = sorted((shared / "conformance" / "network" / "cyclonus").glob("*.yaml"))[::EVERY]
    results = list(run(suites([str(file) for file in files]), nft_engine))
    assert not wrong(results)
    assert len(results) > 1000
