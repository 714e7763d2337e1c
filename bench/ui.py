"""The explorer in headless chromium over 10,000 pods, 3,000 policies, 200 namespaces: `python -m bench ui`.

Times are from the browser's side: from the click or the key to the page that shows the answer. The limits are those
of docs/explorer.md#times.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.listing import cluster

NAMESPACES, POLICIES = 200, 15


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
            origin = address.partition("/?")[0]
            page = chromium.new_page()
            page.set_default_timeout(60_000)

            def measured(words: str, limit: float, step: Callable[[], object], times: int = 1) -> None:
                taken = []
                for _ in range(times):
                    start = time.perf_counter()
                    step()
                    taken.append(time.perf_counter() - start)
                print(f"{words:<46}{sorted(taken)[len(taken) // 2] * 1000:>8.0f} ms, limit {limit * 1000:.0f} ms")

            measured("first page after loading", 1, lambda: page.goto(address))
            question = f"{pods[0]['namespace']}/{pods[0]['name']} -> {pods[777]['namespace']}/{pods[777]['name']}:80"
            page.goto(f"{origin}/ask?q={question}")
            measured("an answer", 0.15, lambda: page.goto(f"{origin}/ask?q={question}"), 7)
            measured("network, folded", 1, lambda: page.goto(f"{origin}/network"), 3)
            numbers = iter(range(3, 30))
            measured("unfold a namespace", 0.3, lambda: page.goto(f"{origin}/network?focus=ns-{next(numbers):04}"), 5)
            page.goto(f"{origin}/network")
            frames = page.evaluate(_FRAMES)
            print(f"{'longest frame while zooming and scrolling':<46}{frames:>8.0f} ms, limit 100 ms")
            page.goto(f"{origin}/change?object=NetworkPolicy/ns-0003/app-1")
            text = page.locator("#manifests").input_value()
            ports = iter(range(9000, 9100))

            def change() -> None:
                port = next(ports)
                with page.expect_response("**/change?format=html"):
                    page.locator("#manifests").fill(text.replace("port: 8001", f"port: {port}"))
                page.locator("#result[aria-busy=false]").wait_for()

            measured("a change of one policy, from the last key", 1, change, 3)
            memory = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
            print(f"{'memory of scripts in the tab':<46}{memory:>8.0f} MB, limit 300 MB")
            file = Path(folder, "list.html")
            with file.open("w") as out:
                subprocess.run([sys.executable, "-m", "tierwall", "list", folder, "-o", "html"], stdout=out, check=True)
            print(f"{'the page in one file':<46}{file.stat().st_size / 1e6:>8.1f} MB, limit 8 MB")
            measured("the page in one file opens", 3, lambda: page.goto(file.as_uri()))
        finally:
            server.terminate()
            server.wait()


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
