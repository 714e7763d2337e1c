"""The explorer in headless chromium over 10,000 pods, 3,000 policies, 200 namespaces: `python -m bench ui`.

Times are from the browser's side: from the click or the key to the page that shows the answer. CPU time is that of the
server and of all processes of the browser; it does not depend on what else the machine does. The limits are those of
docs/explorer.md#times.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.listing import cluster

if TYPE_CHECKING:
    from tests.labs.browser import BrowserLab

NAMESPACES, POLICIES = 200, 15
# Edits of other kinds than NetworkPolicy, with a number that makes each a new one.
EDITS = {
    "AdminNetworkPolicy": """
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: edited}
spec:
  priority: 5
  subject: {namespaces: {matchLabels: {team: team-3}}}
  ingress: [{name: r, action: Deny, from: [{namespaces: {matchLabels: {team: team-%d}}}]}]
""",
    "ClusterNetworkPolicy for every pod": """
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: edited}
spec:
  tier: Admin
  priority: 5
  subject: {namespaces: {}}
  ingress: [{name: r, action: Deny, from: [{namespaces: {matchLabels: {team: team-%d}}}]}]
""",
    "ClusterNetworkPolicy that denies everything": """
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: edited}
spec:
  tier: Admin
  priority: 5
  subject: {namespaces: {}}
  ingress: [{name: r%d, action: Deny, from: [{namespaces: {}}]}]
""",
    "Namespace": "{apiVersion: v1, kind: Namespace, metadata: {name: ns-0003, labels: {team: team-%d, env: prod}}}",
    "Deployment": """
apiVersion: apps/v1
kind: Deployment
metadata: {name: edited-%d, namespace: ns-0003}
spec:
  selector: {matchLabels: {app: app-1}}
  template: {metadata: {labels: {app: app-1, tier: web}}, spec: {containers: [{name: c, image: i}]}}
""",
    "ClusterRoleBinding": """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: edited}
rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: edited}
roleRef: {kind: ClusterRole, name: edited, apiGroup: rbac.authorization.k8s.io}
subjects: [{kind: User, name: alice-%d, apiGroup: rbac.authorization.k8s.io}]
""",
}


def world() -> Iterator[dict[str, Any]]:
    """The objects: those of `bench listing`, and twelve more policies in each namespace."""
    chance = random.Random(1)
    yield from cluster(NAMESPACES)
    for number in range(NAMESPACES):
        for policy in range(POLICIES - 3):
            app, other = chance.sample(range(10), 2)
            rule = {
                "from": [{"podSelector": {"matchLabels": {"app": f"app-{other}"}}}],
                "ports": [{"port": 8000 + policy}],
            }
            yield {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": f"app-{policy}", "namespace": f"ns-{number:04}"},
                "spec": {"podSelector": {"matchLabels": {"app": f"app-{app}"}}, "ingress": [rule]},
            }


def run() -> None:
    """Start the explorer and a browser, and measure each step."""
    from tests.labs.browser import browser

    objects = list(world())
    pods = [value["metadata"] for value in objects if value["kind"] == "Pod"]
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        Path(folder, "all.json").write_text("\n".join(map(json.dumps, objects)))
        program = [sys.executable, "-m", "tierwall", "ui", folder, "--no-open"]
        server = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            question = f"{pods[0]['namespace']}/{pods[0]['name']} -> {pods[777]['namespace']}/{pods[777]['name']}:80"
            Steps(chromium).measure(address, question)
        finally:
            server.terminate()
            server.wait(60)
        file = Path(folder, "list.html")
        with file.open("w") as out:
            subprocess.run([sys.executable, "-m", "tierwall", "list", folder, "-o", "html"], stdout=out, check=True)
        print(f"{'the page in one file':<46}{file.stat().st_size / 1e6:>8.1f} MB, limit 8 MB")
        Steps(chromium).measure_file(file.as_uri())


class Steps:
    """The steps of a person, each with its time."""

    def __init__(self, chromium: BrowserLab) -> None:
        self._chromium = chromium

    def measure(self, address: str, question: str) -> None:
        """Measure each page."""
        self._chromium.run(self._pages(address, question))

    def measure_file(self, address: str) -> None:
        """Measure how fast a page in one file opens."""
        self._chromium.run(self._one_file(address))

    async def _measured(self, words: str, limit: float, step: Callable[[], Awaitable[Any]], times: int = 1) -> None:
        taken = []
        for _ in range(times):
            start, computed = time.perf_counter(), _cpu_seconds()
            await step()
            wall, after = time.perf_counter() - start, _cpu_seconds()
            taken.append((wall, *(late - early for early, late in zip(computed, after, strict=True))))
        wall, server, page = sorted(taken)[len(taken) // 2]
        cpu = f"CPU {server * 1000:.0f} ms of the server, {page * 1000:.0f} of the browser"
        print(f"{words:<46}{wall * 1000:>8.0f} ms, limit {limit * 1000:.0f} ms; {cpu}")

    async def _pages(self, address: str, question: str) -> None:
        origin = address.partition("/?")[0]
        async with self._chromium.context() as context:
            page = await context.new_page()
            await self._measured("first page after loading", 1, lambda: page.goto(address))
            await page.goto(f"{origin}/ask?q={question}")
            await self._measured("an answer", 0.15, lambda: page.goto(f"{origin}/ask?q={question}"), 7)
            await self._measured("network, folded", 1, lambda: page.goto(f"{origin}/network"), 3)
            numbers = iter(range(3, 30))
            unfolded = lambda: page.goto(f"{origin}/network?focus=ns-{next(numbers):04}")  # noqa: E731
            await self._measured("unfold a namespace", 0.3, unfolded, 5)
            await page.goto(f"{origin}/network")
            frames = await page.evaluate(_FRAMES)
            print(f"{'longest frame while zooming and scrolling':<46}{frames:>8.0f} ms, limit 100 ms")
            await page.goto(f"{origin}/change?object=NetworkPolicy/ns-0003/app-1")
            text = await page.locator("#manifests").input_value()
            ports = iter(range(9000, 9100))

            async def change() -> None:
                changed = text.replace("port: 8001", f"port: {next(ports)}")
                async with page.expect_response("**/change?format=html"):
                    await page.locator("#manifests").fill(changed)
                await page.locator("#result[aria-busy=false]").wait_for()

            await self._measured("a change of one policy, from the last key", 1, change, 3)
            for kind, edit in EDITS.items():
                numbers = iter(range(4, 100))

                async def other(edit: str = edit, numbers: Iterator[int] = numbers) -> None:
                    async with page.expect_response("**/change?format=html"):
                        await page.locator("#manifests").fill(edit % next(numbers))
                    await page.locator("#result[aria-busy=false]").wait_for()

                await self._measured(f"a change: {kind}", 1, other, 3)
            await page.goto(f"{origin}/network")
            await page.evaluate(_FRAMES)
            print(f"{'memory of the tab (PSS of its process)':<46}{_tab_megabytes():>8.0f} MB, limit 300 MB")

    async def _one_file(self, address: str) -> None:
        async with self._chromium.context() as context:
            page = await context.new_page()
            await self._measured("the page in one file opens", 3, lambda: page.goto(address))
            print(f"{'memory of its tab (PSS of its process)':<46}{_tab_megabytes():>8.0f} MB, limit 300 MB")


def _processes() -> Iterator[Path]:
    """Yield the processes that this one started, and those that they started."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
    for pid in parents:
        above = parents[pid]
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        if above:
            yield Path("/proc", str(pid))


def _cpu_seconds() -> tuple[float, float]:
    """Return what the server and what the browser has computed."""
    ticks = {True: 0, False: 0}
    for process in _processes():
        with suppress(OSError):
            is_server = b"\0tierwall\0" in process.joinpath("cmdline").read_bytes()
            ticks[is_server] += sum(map(int, process.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks[True] / os.sysconf("SC_CLK_TCK"), ticks[False] / os.sysconf("SC_CLK_TCK")


def _tab_megabytes() -> float:
    """Return the memory of the largest renderer: its own pages, and its share of those that it shares."""
    sizes = [0.0]
    for process in _processes():
        with suppress(OSError):
            if b"--type=renderer" in process.joinpath("cmdline").read_bytes():
                rollup = process.joinpath("smaps_rollup").read_text().split("\n")
                sizes += [int(line.split()[1]) / 1e3 for line in rollup if line.startswith("Pss:")]
    return max(sizes)


# Zooms and scrolls for a while, and returns the longest time between two frames.
_FRAMES = """async () => {
  let longest = 0, last = performance.now();
  for (let number = 0; number < 40; number += 1) {
    document.querySelector(number % 2 ? "[data-zoom=in]" : "[data-zoom=right]").click();
    scrollTo(0, number * 60);
    const now = await new Promise(requestAnimationFrame);
    if (number > 1) longest = Math.max(longest, now - last);
    last = now;
  }
  return longest;
}"""
