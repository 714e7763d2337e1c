"""`make tool-conformance`: the tests of kube-agentic-networking's suite, as a ConformanceReport of the Gateway API.

The tests are policy tests in our words (`tests/conformance/kube-agentic-networking`). A test passes if a real Envoy
answers all of its cases, the statuses of its policies are as upstream writes them, and a denial has upstream's text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests import ROOT
from tests.labs.envoy_lab import Lab
from tierwall import run_tests
from tierwall.analyze.statuses import statuses
from tierwall.attach.status import PolicyStatus
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.profile import UPSTREAM_DENIAL, ToolProfile
from tierwall.version import __version__

FOLDER = ROOT / "tests" / "conformance" / "kube-agentic-networking"
REPORT = ROOT / "dist" / "conformance" / "kube-agentic-networking.yaml"
DENIAL = {"code": 403, "message": UPSTREAM_DENIAL}
DIFFERENCES = (
    "The cases are those of the suite, asked of a running Envoy without a cluster.",
    "All policies of a target must allow, as the proposal says; upstream's code allows what one of them allows.",
    "Params may have 128 characters, upstream 20: names of real tools are longer.",
    "A policy whose expression does not compile closes its targets; upstream leaves it out, and they stay open.",
    "Plain HTTP that is denied gets HTTP 403; upstream answers it with 200 and a JSON-RPC error.",
    "A GET belongs to the base set on the path of the backend; upstream takes any path.",
)


class Suite(NamedTuple):
    """A test of the suite: its name there, whether it is extended, and the reason of `Accepted` of each policy."""

    name: str
    feature: str
    reasons: dict[str, str]

    @property
    def test(self) -> str:
        """The name of our policy test."""
        words = self.name.removeprefix("XAccessPolicy").replace("SA", "Sa").replace("SPIFFE", "Spiffe")
        return "xaccesspolicy" + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in words)


_ACCEPTED, _EXTERNAL = "Accepted", "SupportAccessPolicyExternalAuth"
SUITE = (
    Suite("XAccessPolicyAccepted", "", {"legacy": _ACCEPTED}),
    Suite("XAccessPolicyAllowAccepted", "", {"allow": _ACCEPTED}),
    Suite("XAccessPolicyBaseProtocolMatch", "", {"base": _ACCEPTED}),
    Suite("XAccessPolicyBaseProtocolSkip", "", {"skip": _ACCEPTED}),
    Suite("XAccessPolicySAMatching", "", {"allow": _ACCEPTED}),
    Suite("XAccessPolicyEvaluationLogic", _EXTERNAL, {"ask": _ACCEPTED, "allow": _ACCEPTED}),
    Suite("XAccessPolicyExtAuthAccepted", _EXTERNAL, {"ask": _ACCEPTED}),
    Suite("XAccessPolicyExtAuthLimit", _EXTERNAL, {"ask": _ACCEPTED, "junior": "LimitPerTargetExceeded"}),
    Suite("XAccessPolicySPIFFEMatching", "SupportAccessPolicySPIFFESource", {"allow": _ACCEPTED}),
)


def reasons(test: dict[str, Any]) -> dict[str, str]:
    """Return the reason that each policy of a test gets, as upstream writes it; one condition for one target."""
    files = [yaml.safe_load_all((FOLDER / name).read_text()) for name in test["spec"]["resources"]]
    objects = [manifest for file in files for manifest in file] + test["spec"]["objects"]
    by_policy = {}
    for status in statuses(Snapshot.of(load_objects(objects)), tool_profile=ToolProfile.KUBE_AGENTIC_NETWORKING):
        assert isinstance(status, PolicyStatus)
        ((_, (condition,)),) = status.ancestors
        assert condition.type == "Accepted"
        by_policy[status.policy.name] = condition.reason
    return by_policy


def denial() -> dict[str, Any]:
    """Return the JSON-RPC error that a denied caller gets through an Envoy with upstream's profile."""
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "agents"}
    rule = {"name": "r", "authorization": {"type": "Inline", "mcp": {"methods": [{"name": "tools/list"}]}}}
    lab = Lab(tool_profile=ToolProfile.KUBE_AGENTIC_NETWORKING)
    try:
        lab.publish(
            [
                {
                    "apiVersion": "agentic.networking.x-k8s.io/v1alpha1",
                    "kind": "XAccessPolicy",
                    "metadata": {"name": "lists", "namespace": "shop"},
                    "spec": {"targetRefs": [target], "action": "Allow", "rules": [rule]},
                }
            ]
        )
        lab.programmed()
        caller = lab.caller()
        lab.until_ready(caller, "forbidden", UPSTREAM_DENIAL)
        got = caller.send("tools/call", {"name": "forbidden", "arguments": {}})
        assert not isinstance(got, str), got
        error: dict[str, Any] = got["error"]
        return error
    finally:
        lab.close()


def failures(engine: str) -> Iterator[tuple[Suite, list[str]]]:
    """Yield each test with what failed in it."""
    documents = {test["metadata"]["name"]: test for test in yaml.safe_load_all((FOLDER / "suite.yaml").read_text())}
    ran: dict[str, list[str]] = {name: [] for name in documents}
    for case in run_tests(FOLDER / "suite.yaml", engine=engine).cases:
        if case.ok is not True:
            ran[case.test].append(case.case)
    for suite in SUITE:
        failed = ran.pop(suite.test)
        if reasons(documents[suite.test]) != suite.reasons:
            failed.append("status")
        yield suite, failed
    assert not ran, f"the suite has no test for {', '.join(ran)}"


def report(results: list[tuple[Suite, list[str]]]) -> dict[str, Any]:
    """Return the ConformanceReport, with the keys that kube-agentic-networking's own has."""
    core = _part([(suite, failed) for suite, failed in results if not suite.feature])
    extended = _part([(suite, failed) for suite, failed in results if suite.feature])
    extended["supportedFeatures"] = sorted({suite.feature for suite, _ in results if suite.feature})
    words = [
        f"{name} tests {'succeeded' if part['result'] == 'success' else 'failed'}."
        for name, part in (("Core", core), ("Extended", extended))
    ]
    return {
        "GatewayLayerVersion": "v0.0.0-dev",
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "ConformanceReport",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "gatewayAPIChannel": "experimental",
        "gatewayAPIVersion": "v1.6.1",
        "implementation": {
            "organization": "tierwall",
            "project": "tierwall",
            "url": os.environ.get("URL") or "https://tierwall.io",
            "version": __version__,
            "contact": [os.environ.get("CONTACT") or "@tierwall"],
        },
        "mode": "default",
        "profiles": [{"name": "Gateway", "core": core, "extended": extended, "summary": " ".join(words)}],
    }


def _part(results: list[tuple[Suite, list[str]]]) -> dict[str, Any]:
    failed = [suite.name for suite, cases in results if cases]
    numbers = {"Failed": len(failed), "Passed": len(results) - len(failed), "Skipped": 0}
    part = {"result": "failure" if failed else "success", "statistics": numbers}
    return {**part, "failedTests": failed} if failed else part


def main(path: Path = REPORT) -> int:
    """Run the suite on an Envoy and write the report. Exit code 1 if a test failed."""
    text = denial()
    if text != DENIAL:
        print(f"expected {DENIAL} as the error of a denial, found {text}")
    results = list(failures("envoy"))
    for suite, failed in results:
        print(f"{'FAILED' if failed else 'ok    '} {suite.name}{': ' if failed else ''}{', '.join(failed)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"# * {difference}\n" for difference in DIFFERENCES)
    path.write_text(f"# Where Tierwall differs on purpose:\n{lines}{yaml.safe_dump(report(results), sort_keys=False)}")
    print(f"report: {path}")
    return 1 if text != DENIAL or any(failed for _, failed in results) else 0


if __name__ == "__main__":
    sys.exit(main())
