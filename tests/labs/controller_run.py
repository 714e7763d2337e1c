"""`tierwall controller` as a process in tests, as users start it, with short times for its election."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from urllib.request import urlopen

from tests.labs.live_client import TIERWALL, LiveClient
from tests.labs.waiting import PATIENCE_S, eventually

LEASE_S, RENEW_S, RETRY_S = 4.0, 3.0, 0.5
# A killed leader is replaced within the lease and two retries, with jitter.
TAKEOVER_S = LEASE_S + 2 * RETRY_S * 1.25


class ControllerRun:
    """A replica of the controller; `with` stops it."""

    def __init__(self, live: LiveClient, identity: str, *options: str, kubeconfig: Path | None = None) -> None:
        self.identity = identity
        self._log = live.folder / f"controller-{identity}-{time.monotonic_ns()}.log"
        command = [TIERWALL, "controller", "--cluster", "--kubeconfig", str(kubeconfig or live.kubeconfig)]
        command += ["--release-namespace", "tierwall-system", "--identity", identity]
        command += [f"--lease-duration={LEASE_S}s", f"--renew-deadline={RENEW_S}s", f"--retry-period={RETRY_S}s"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *options], env=live.environment(), stdout=log, stderr=subprocess.STDOUT, cwd=live.folder
            )

    def __enter__(self) -> ControllerRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        """The lines that it has printed so far."""
        return self._log.read_text()

    def leads(self) -> None:
        """Wait until it leads."""
        self.says(f"`{self.identity}` leads")

    def says(self, words: str) -> None:
        """Wait until it has printed something."""
        eventually(lambda: words in self.log, lambda: f"{words!r} of {self.identity}: {self.log}")
        assert self.process.poll() is None, self.log

    def end(self) -> str:
        """Ask it to end, and return what it has printed."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0, self.log
        return self.log

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name and labels."""
        self.says("health and metrics on ")
        address = self.log.partition("health and metrics on ")[2].split()[0]
        values = {}
        with urlopen(f"{address}/metrics", timeout=PATIENCE_S) as answer:
            for line in answer.read().decode().splitlines():
                with suppress(ValueError):
                    name, _, value = line.rpartition(" ")
                    values[name] = float(value)
        return values

    def writes(self) -> float:
        """Return how many statuses it has written."""
        return self.metrics().get('tierwall_status_writes_total{result="written"}', 0.0)
