"""`make conformance`: upstream's suites against the chart on real nodes; reports go to dist/conformance.

The suites of network-policy-api and of the Gateway API write the ConformanceReport that upstream publishes. The
NetworkPolicy part of Kubernetes' end-to-end tests writes a JUnit report. `python -m tests.upstream_suites SUITE...`
runs some of them. The suite of the Gateway API asks for what our GatewayClass says in `supportedFeatures`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import yaml

from tests import ROOT
from tests.labs.gateway_nodes import GatewayNodes
from tests.labs.installed_chart import InstalledChart, build_image
from tests.labs.real_nodes import RealNodes
from tierwall.version import __version__

OUT = ROOT / "dist" / "conformance"
# The pods of network-policy-api's suites ask for this image.
_AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.45"


class Suite(NamedTuple):
    """A program of `deploy/cluster-tools/conformance/build`, with its options."""

    name: str
    report: str
    options: Sequence[str]

    @property
    def program(self) -> Path:
        """The path of the program."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "tierwall" / "conformance" / self.name

    @property
    def image(self) -> str:
        """The image that its pods ask for."""
        if self.report.endswith(".yaml"):
            return _AGNHOST
        return subprocess.run([self.program, "-image"], check=True, capture_output=True, text=True).stdout.strip()


def _about_us(additional: str) -> tuple[str, ...]:
    """Return the options about the implementation."""
    return (
        "-organization=tierwall",
        "-project=tierwall",
        f"-url={os.environ.get('URL') or 'https://tierwall.io'}",
        f"-version={__version__}",
        f"-contact={os.environ.get('CONTACT') or '@tierwall'}",
        *((f"-additional-info={additional}",) if additional else ()),
    )


def _profiles(*kinds: str) -> tuple[str, ...]:
    """Return the options of a suite of network-policy-api: all features of these kinds."""
    features = (f"{kind}{feature}" for kind in kinds for feature in ("NamedPorts", "EgressNodePeers"))
    return (
        "-test.v",
        "-test.run=^TestConformanceProfiles$",
        "-test.timeout=60m",
        f"-conformance-profiles={','.join(kinds)}",
        f"-supported-features={','.join(features)}",
        *_about_us("make conformance: the chart with its default values on two nodes"),
    )


SUITES = (
    Suite("cluster-network-policies", "cluster-network-policies.yaml", _profiles("ClusterNetworkPolicy")),
    Suite(
        "admin-network-policies",
        "admin-network-policies.yaml",
        _profiles("AdminNetworkPolicy", "BaselineAdminNetworkPolicy"),
    ),
    Suite(
        "network-policies",
        "network-policies.xml",
        ("--provider=skeleton", "--num-nodes=2", "--ginkgo.timeout=60m", "--ginkgo.focus=."),
    ),
)
GATEWAY_SUITE = Suite(
    "gateway-api",
    "gateway-api.yaml",
    (
        "-test.v",
        "-test.run=^TestConformance$",
        "-test.timeout=60m",
        "-gateway-class=tierwall",
        "-conformance-profiles=GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP",
        *_about_us(""),
    ),
)


def skipped(report: Path) -> int:
    """Return how many tests did not run, by a report."""
    text = report.read_text()
    if report.suffix == ".xml":
        return sum(int(suite.attrib["skipped"]) for suite in ElementTree.fromstring(text).iter("testsuite"))
    profiles = yaml.safe_load(text)["profiles"]
    parts = [part for profile in profiles for part in profile.values() if isinstance(part, dict)]
    return sum(part["statistics"]["Skipped"] for part in parts)


def run_suite(nodes: RealNodes, suite: Suite, where: str = "control") -> bool:
    """Run a suite; keep its report and what it said. False if a test failed, or did not run."""
    report = OUT / suite.report
    report.unlink(missing_ok=True)
    write = f"-report-output={report}" if report.suffix == ".yaml" else f"--ginkgo.junit-report={report}"
    words = ("env", f"KUBECONFIG={nodes.kubeconfig}", str(suite.program), *suite.options, write)
    start = time.monotonic()
    is_passed = nodes.start_process(where, suite.name, *words).wait() == 0
    (OUT / f"{suite.name}.log").write_text(nodes.log(suite.name))
    left_out = skipped(report) if report.exists() else 0
    words_left_out = f", {left_out} tests did not run" if left_out else ""
    seconds = time.monotonic() - start
    print(
        f"{suite.name}: {'passed' if is_passed else 'FAILED'}{words_left_out} in {seconds:.0f} s; {report}", flush=True
    )
    return is_passed and report.exists() and not left_out


def run_network_suites(nodes: RealNodes, suites: Sequence[Suite]) -> bool:
    """Run suites about network policies, with the chart as it is."""
    nodes.import_image(build_image(nodes.folder))
    chart = InstalledChart(nodes)
    chart.install()
    results = []
    for suite in suites:
        nodes.tag(suite.image)
        results.append(run_suite(nodes, suite))
    for name in nodes.names:
        (OUT / f"{name}-agent.log").write_text(chart.kubectl("logs", "--timestamps", chart.agent(name)))
    return all(results) and _nothing_forbidden(chart)


def run_gateway_suite(nodes: RealNodes) -> bool:
    """Run the suite of the Gateway API, with the chart's Envoys. It calls them from a node, as their Service has it."""
    gateways = GatewayNodes(nodes, GATEWAY_SUITE.program.parent)
    gateways.prepare()
    chart = gateways.install()
    is_passed = run_suite(nodes, GATEWAY_SUITE, nodes.names[0])
    # The report is written before the tests that run beside others have ended.
    failed = re.findall(r"^ *--- FAIL: (\S+)", (OUT / f"{GATEWAY_SUITE.name}.log").read_text(), re.MULTILINE)
    print("".join(f"failed: {name}\n" for name in failed), end="")
    return is_passed and _nothing_forbidden(chart)


def _nothing_forbidden(chart: InstalledChart) -> bool:
    requests = sorted(set(chart.forbidden()))
    print("".join(f"forbidden: {request}\n" for request in requests), end="", flush=True)
    return not requests


def main() -> int:
    """Start nodes, install the chart, run the suites. Exit code 1 if one of them failed."""
    everything = (*SUITES, GATEWAY_SUITE)
    chosen = [suite for suite in everything if not sys.argv[1:] or suite.name in sys.argv[1:]]
    if unknown := set(sys.argv[1:]) - {suite.name for suite in everything}:
        sys.exit(f"no suite is called {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in everything)}")
    OUT.mkdir(parents=True, exist_ok=True)
    network = [suite for suite in chosen if suite is not GATEWAY_SUITE]
    results = []
    if network:
        results.append(_on_nodes(2, lambda nodes: run_network_suites(nodes, network)))
    if GATEWAY_SUITE in chosen:
        results.append(_on_nodes(1, run_gateway_suite))
    return 0 if all(results) else 1


def _on_nodes(count: int, run: Callable[[RealNodes], bool]) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="tierwall-conformance-"))
    nodes = RealNodes(folder, count)
    try:
        nodes.start()
        return run(nodes)
    finally:
        nodes.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
