"""Real nodes with what the suite of the Gateway API needs: its definitions, its server, a DNS, our Envoys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from supply.image import ImageEntry, ImageSettings, write_image
from tests import ROOT
from tests.labs.installed_chart import InstalledChart
from tests.labs.real_nodes import PAUSE, RealNodes
from tests.labs.real_nodes_inside import API_SERVER

# Where the suite has Gateways, and certificates for them.
NAMESPACES = (
    "gateway-conformance-infra",
    "gateway-conformance-app-backend",
    "gateway-conformance-web-backend",
    "not-the-namespace-youre-looking-for",
)
# By these names its pods ask for its server, and for a DNS of its own, which only UDPRoutes need.
_ECHO = tuple(f"registry.k8s.io/gateway-api/echo-basic:{tag}" for tag in ("v1.5.1", "v1.6.0-dev.2", "v1.6.0-dev.3"))
_DNS = "registry.k8s.io/coredns/coredns:v1.12.2"
_IMAGE = "localhost/tierwall-envoy"
# A small machine runs all of it: one replica of everything, and next to no processor asked for.
_VALUES = {
    "image.name": _IMAGE,
    "nodeAgent.enabled": "false",
    "warnings.enabled": "false",
    "controller.replicas": "1",
    "controller.resources.requests.cpu": "10m",
    "gatewayClass.enabled": "true",
    "gatewayClass.replicas": "1",
    "gatewayClass.serviceType": "ClusterIP",
    "gatewayClass.resources.requests.cpu": "10m",
    "gatewayNamespaces": f"{{{','.join(NAMESPACES)}}}",
}


class GatewayNodes:
    """Started nodes; `built` is where `deploy/cluster-tools/conformance/build` put the suite."""

    def __init__(self, nodes: RealNodes, built: Path) -> None:
        self.nodes, self._built = nodes, built

    def prepare(self) -> None:
        """Import the images, start the DNS, create the definitions and namespaces."""
        folder = self.nodes.folder
        echo = ImageEntry("/echo", self._built / "echo-basic", 0o755)
        write_image(folder / "echo.tar", _ECHO, [echo], ImageSettings(["/echo"]))
        command = [sys.executable, "-m", "supply", "image", "--envoy", "--out", str(folder / "envoy.tar")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for name in ("echo", "envoy"):
            self.nodes.import_image(folder / f"{name}.tar")
        self.nodes.tag(_DNS, PAUSE)
        names = (sys.executable, "-m", "tests.labs.cluster_dns", API_SERVER, str(self.nodes.kubeconfig))
        self.nodes.start_process("control", "dns", "env", f"PYTHONPATH={ROOT}", *names)
        definitions = str(self._built / "gateway-api-definitions")
        self.nodes.kubectl("apply", "--server-side", "-f", definitions)
        for namespace in NAMESPACES:
            self.nodes.kubectl("create", "namespace", namespace)

    def install(self) -> InstalledChart:
        """Install the chart with its GatewayClass."""
        chart = InstalledChart(self.nodes)
        chart.install(*(f"{name}={value}" for name, value in _VALUES.items()))
        return chart
