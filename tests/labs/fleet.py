"""A fleet on one machine: controllers and Envoys, each as a process, with a real API server.

`python -m tests.labs.fleet SETTINGS` is `tierwall controller` with addresses of backends and with the times of a test.
"""

from __future__ import annotations

import base64
import json
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from examples.agents import certificates
from tests import ROOT
from tests.labs.chart import NAMESPACE, OTHER_APIS, rendered_text
from tests.labs.envoy_lab import EXAMPLE, Backend, Caller
from tests.labs.live_client import TIERWALL, LiveClient, path_of
from tests.labs.waiting import HeldPort, eventually

CLASS = "fleet"
Object = dict[str, Any]


class Process:
    """A process, and what it says."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environment) if environment is not None else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line.rstrip())

    def says(self, pattern: str) -> str:
        """Wait until a line matches; return the first group, or the line."""
        matches: list[re.Match[str]] = []

        def has_said() -> bool:
            assert self._process.poll() is None, (self.name, self.lines)
            matches.extend(match for line in list(self.lines) if (match := re.search(pattern, line)))
            return bool(matches)

        eventually(has_said, lambda: (self.name, pattern, self.lines))
        return matches[0][1] if matches[0].groups() else matches[0][0]

    def kill(self) -> None:
        """Kill it at once."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        """Ask it to end; return its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        code = self._process.wait(30)
        self._thread.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code


class Fleet:
    """Controllers and Envoys in a namespace of their own, and a Gateway with its route and backend in another."""

    def __init__(self, live: LiveClient, folder: Path, name: str) -> None:
        self.live, self.folder = live, folder
        self.release, self.shop = live.namespace(f"{name}-system"), live.namespace(f"{name}-shop")
        self.backend = Backend()
        self.held = HeldPort()
        self.controllers: list[Process] = []
        self.envoys: list[Process] = []
        self._callers: list[Caller] = []
        authority = certificates.Authority()
        (folder / "callers.pem").write_bytes(authority.pem)
        pair = authority.agent("agents", "shopper")
        (folder / "shopper.pem").write_bytes(pair.certificate + pair.key)
        self.objects = gateway_objects(authority, self.shop)
        for value in self.objects:
            if value["kind"] == "Gateway":
                self.gateway = value
                value["spec"]["gatewayClassName"] = CLASS
                value["spec"]["listeners"][0]["port"] = self.held.number
        live.create(service_account(self.shop), *self.objects)
        self.kubeconfig = self._kubeconfig()

    def _kubeconfig(self) -> Path:
        """Grant what the chart grants to a controller; return the kubeconfig of its ServiceAccount."""
        values = {"gatewayClass": {"enabled": True}, "gatewayNamespaces": [self.shop], "nodeAgent": {"enabled": False}}
        text = rendered_text(values, OTHER_APIS).replace(NAMESPACE, self.release)
        for value in yaml.safe_load_all(text):
            if value is not None and value["apiVersion"].startswith("rbac"):
                # Other tests install the chart, too.
                value["metadata"]["name"] = f"{self.release}-{value['metadata']['name']}"
                if "roleRef" in value:
                    value["roleRef"]["name"] = f"{self.release}-{value['roleRef']['name']}"
                self.live.create(value)
        self.live.create(service_account(self.release, "tierwall-controller"))
        path = f"/api/v1/namespaces/{self.release}/serviceaccounts/tierwall-controller/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        status, answer = self.live.request("POST", path, body)
        assert status == 201, answer
        config = json.loads(self.live.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["certificate-authority"] = str(self.live.folder / "pki" / "ca.crt")
        config["users"] = [{"name": "controller", "user": {"token": answer["status"]["token"]}}]
        config["contexts"] = [{"name": "live", "context": {"cluster": "live", "user": "controller"}}]
        config["current-context"] = "live"
        file = self.folder / "kubeconfig"
        file.write_text(json.dumps(config))
        return file

    def controller(self, name: str, template: Mapping[str, Any] | None = None) -> Process:
        """Start a replica of the controller."""
        settings = {
            "kubeconfig": str(self.kubeconfig),
            "release": self.release,
            "shop": self.shop,
            "identity": name,
            "backend": self.backend.port,
            "template": template,
        }
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(settings))
        process = Process(name, [sys.executable, "-m", "tests.labs.fleet", str(file)])
        self.controllers.append(process)
        return process

    def pod(self, name: str, gateway: str = "agents", namespace: str = "") -> Object:
        """Create the pod of an Envoy; return it as the API server has it."""
        value = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace or self.shop,
                "labels": {"gateway.networking.k8s.io/gateway-name": gateway},
            },
            "spec": {"serviceAccountName": "default", "containers": [{"name": "envoy", "image": "envoy"}]},
            "status": {"phase": "Running", "podIP": "10.244.0.9", "podIPs": [{"ip": "10.244.0.9"}]},
        }
        self.live.create(value)
        created: Object = self.live.request("GET", f"{path_of(value)}/{name}")[1]
        return created

    def token(self, pod: Object, audience: str = "tierwall") -> str:
        """Return a token of a pod, as a kubelet gets it."""
        metadata = pod["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        spec = {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": bound}
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/default/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        status, answer = self.live.request("POST", path, body)
        assert status == 201, answer
        token: str = answer["status"]["token"]
        return token

    def authority(self) -> Path:
        """Write the CA of the controllers to a file."""
        status, secret = self.live.request("GET", f"/api/v1/namespaces/{self.release}/secrets/tierwall-certificates")
        assert status == 200, secret
        file = self.folder / "controllers.pem"
        file.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
        return file

    @property
    def server_name(self) -> str:
        """The name in the certificates of the controllers."""
        return f"tierwall-controller.{self.release}.svc"

    def envoy(self, name: str) -> Process:
        """Start the Envoy of a new pod, which knows all controllers that run."""
        file = self.folder / f"{name}.token"
        file.write_text(self.token(self.pod(name)))
        ports = [controller.says(r"xDS on 127\.0\.0\.1:(\d+)") for controller in self.controllers]
        signing = self.controllers[0].says(r"certificates for Envoys on https://127\.0\.0\.1:(\d+)")
        command = [TIERWALL, "envoy", f"--gateway={self.shop}/agents", f"--certificates=127.0.0.1:{signing}"]
        command += [f"--xds=127.0.0.1:{port}" for port in ports] + [f"--server-name={self.server_name}"]
        command += [f"--ca={self.authority()}", f"--token={file}", f"--node={name}", "--concurrency=1"]
        process = Process(name, command)
        self.envoys.append(process)
        return process

    def refusals(self) -> list[str]:
        """Return what controllers said about rights that they lack."""
        lines = (line for controller in self.controllers for line in controller.lines)
        return [line for line in lines if "refuses" in line or "orbidden" in line]

    def caller(self) -> Caller:
        """Return an agent that calls tools through the Gateway."""
        context = ssl.create_default_context(cafile=str(self.folder / "callers.pem"))
        context.load_cert_chain(self.folder / "shopper.pem")
        caller = Caller(context, self.held.number)
        self._callers.append(caller)
        return caller

    def put(self, value: Object) -> None:
        """Create an object, or replace its spec."""
        path = path_of(value)
        status, answer = self.live.request("POST", path, value)
        if status == 409:
            path = f"{path}/{value['metadata']['name']}"
            status, answer = self.live.request("PATCH", path, {"spec": value["spec"]})
        assert status in (200, 201), answer

    def close(self) -> None:
        """Stop everything."""
        for caller in self._callers:
            caller.close()
        for process in (*self.envoys, *self.controllers):
            process.stop()
        self.backend.close()
        self.held.close()


def gateway_objects(authority: certificates.Authority, namespace: str) -> list[Object]:
    """Return the Gateway of the example with its certificate, route and backend, in a namespace; without policies."""
    tls = certificates.manifests(authority, authority.server("localhost"), namespace)
    manifests = ((EXAMPLE / "manifests" / f"{file}.yaml").read_text() for file in ("orders", "platform"))
    texts = [tls, *(re.sub(r"\bshop\b", namespace, text) for text in manifests)]
    objects = [value for text in texts for value in yaml.safe_load_all(text)]
    return [
        value
        for value in objects
        if value["metadata"].get("namespace") == namespace and value["kind"] != "XAccessPolicy"
    ]


def service_account(namespace: str, name: str = "default") -> Object:
    """Return a ServiceAccount; a controller of Kubernetes would make the default one."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}


class Calls:
    """Calls that go on all the time, in a thread: which tools were answered otherwise than they should be."""

    def __init__(self, fleet: Fleet, **expected: bool) -> None:
        self._fleet, self._expected = fleet, expected
        self.wrong: list[tuple[str, str]] = []
        self.number = 0
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        caller = self._fleet.caller()
        while not self._is_ending.is_set():
            for tool, is_allowed in self._expected.items():
                answer = caller.call(tool)
                if (answer == "allowed") is not is_allowed or answer.startswith("no answer"):
                    self.wrong.append((tool, answer))
                self.number += 1
            if self.number % 50 == 0:
                # Another connection may reach another Envoy.
                caller.close()
            time.sleep(0.002)
        caller.close()

    def go_on(self, calls: int = 100) -> None:
        """Wait for so many more calls."""
        end = self.number + calls
        eventually(lambda: self.number >= end, "more calls")

    def stop(self) -> None:
        self._is_ending.set()
        self._thread.join()


def main(file: str) -> None:
    """Run a controller with the settings of a file."""
    import os

    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from tierwall.cli.command import print_line, print_report
    from tierwall.cluster.access import find_access
    from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
    from tierwall.resources.load import Loader, LoadSettings
    from tierwall.serve.cluster import ClusterSource
    from tierwall.serve.controller.fleet import named_objects
    from tierwall.serve.controller.fleet_part import FleetSettings
    from tierwall.serve.controller.infrastructure import read_template
    from tierwall.serve.controller.kinds import OF_THE_RELEASE, controller_kinds
    from tierwall.serve.controller.lease import LeaseTiming
    from tierwall.serve.controller.replica_reports import ReplicaTiming
    from tierwall.serve.controller.run import ControllerSettings, run_controller
    from tierwall.serve.files import FileSource

    given = json.loads(Path(file).read_text())
    access = find_access(None, given["kubeconfig"], os.environ)
    shop, backend = given["shop"], SocketAddress("127.0.0.1", given["backend"])
    fleet = FleetSettings(
        xds=("127.0.0.1", 0),
        certificates=("127.0.0.1", 0),
        template=read_template(json.dumps(given["template"]).encode()) if given["template"] else None,
        namespaces=frozenset((shop,)),
        options=EnvoyOptions(endpoints={f"XBackend/{shop}/orders": backend}),
        timing=ReplicaTiming(heartbeat=1, stale=4),
    )
    settings = ControllerSettings(
        release_namespace=given["release"],
        identity=given["identity"],
        lease=LeaseTiming(6, 4, 1),
        fleet=fleet,
    )
    nothing = LoadSettings("default")
    source = ClusterSource(
        access,
        controller_kinds(),
        10,
        FileSource(Loader((), nothing)),
        nothing,
        lambda message: print_line(message, err=True),
        named=lambda snapshot: named_objects(snapshot, fleet.namespaces),
        within=dict.fromkeys(OF_THE_RELEASE, given["release"]),
        only_gets=True,
    )
    run_controller(access, 10, settings, source, print_report)


if __name__ == "__main__":
    main(sys.argv[1])
