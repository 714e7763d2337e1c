"""An Envoy without a control plane, with one fixed configuration, for policy tests and benchmarks.

It listens only on loopback, and ends with its owner.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from pathlib import Path

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.envoy.config.bootstrap import static_bootstrap
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.control.process import find_envoy
from tierwall.engines.private import private_folder, write_private

REFUSED = "TW659"
_PATIENCE_S = 60.0


class StandaloneEnvoy:
    """A running Envoy; InputError with Envoy's own message if it refuses the configuration.

    `output` is where it writes the access logs that policies ask for.
    """

    def __init__(self, resources: XdsResources, max_program_size: int = 100, output: int = subprocess.DEVNULL) -> None:
        self._folder = private_folder()
        folder = Path(self._folder.name)
        self.admin, self._log = folder / "admin.sock", folder / "log"
        config = folder / "bootstrap.pb"
        write_private(config, static_bootstrap(resources, self.admin, max_program_size).SerializeToString())
        options = ("--concurrency", "1", "--log-format", "%l %v", "--log-path", str(self._log))
        self.process = subprocess.Popen(
            find_envoy().command(config, *options),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + _PATIENCE_S
        while self.ask("/ready")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
                reported = [line for line in lines if line.startswith(("error", "critical"))] or lines[-3:]
                words = " ".join(reported)[:2000] or "it does not become ready"
                raise InputError([Diagnostic(REFUSED, f"Envoy refuses the configuration: {words}")])
            time.sleep(0.01)

    def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Return the status code and body of an admin page; the status is 0 if nothing answers."""
        connection = _UnixConnection(self.admin)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def ports(self) -> dict[str, int]:
        """Return the port of each listener; a listener with port 0 has chosen a free port."""
        listed = json.loads(self.ask("/listeners?format=json")[1])["listener_statuses"]
        return {listener["name"]: listener["local_address"]["socket_address"]["port_value"] for listener in listed}

    def close(self) -> None:
        """Stop Envoy."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    def __enter__(self) -> StandaloneEnvoy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("admin", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(5)
        self.sock.connect(str(self._path))
