"""From one file saved to a load that is ready to be enforced: `python -m bench reload`.

The objects of `bench.envoy_change` with 1,000 policies, one a file and all in one file, watched as `tierwall run` does.
One policy is rewritten; the parts of the time until the controller has prepared the new load add up to the whole:
`watch` until loading begins (it includes the time for which the folder must be quiet), `read` the files, `snapshot` of
their objects, `admission`, `compile`, and what goes between threads. `at first` is the first load, which knows nothing.
"""

from __future__ import annotations

import asyncio
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import yaml

from bench.envoy_change import objects, policy
from examples.agents import certificates
from tierwall.analyze import admission as admitting
from tierwall.analyze.admission import admission_findings
from tierwall.cli.collector import CommandLoader
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.options import Certificate, EnvoyOptions, SocketAddress
from tierwall.resources import load as loading
from tierwall.resources.file_cache import CLOCK_STEP_NS
from tierwall.resources.read import read_paths
from tierwall.serve import envoy as controlling
from tierwall.serve import follower
from tierwall.serve.files import FileSource
from tierwall.serve.pages import RunMetrics

POLICIES, ROUNDS = 1000, 41
PARTS = ("watch", "read", "snapshot", "admission", "compile", "threads")
T = TypeVar("T")


class Clock:
    """When each part of a load began and how long it took, in milliseconds."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}
        self.took: dict[str, float] = {}

    def timed(self, part: str, function: Callable[..., T]) -> Callable[..., T]:
        def call(*arguments: Any, **options: Any) -> T:
            self.began[part] = begun = now()
            try:
                return function(*arguments, **options)
            finally:
                self.took[part] = now() - begun

        return call

    def parts(self, saved: float, ready: float) -> dict[str, float]:
        took = self.took
        out = {part: took[part] for part in ("read", "admission", "compile")}
        out["watch"] = self.began["load"] - saved
        out["snapshot"] = took["load"] - took["read"]
        out["all"] = ready - saved
        out["threads"] = out["all"] - out["watch"] - took["look"]
        return out

    @contextmanager
    def runs(self) -> Iterator[None]:
        """Everything that is loaded meanwhile is timed."""
        judge = self.timed("admission", lambda snapshot: list(admission_findings(snapshot)))
        with (
            mock.patch.object(loading.Loader, "load", self.timed("load", loading.Loader.load)),
            mock.patch.object(loading, "read_paths", self.timed("read", read_paths)),
            mock.patch.object(admitting, "admission_findings", judge),
            mock.patch.object(controlling, "compile", self.timed("compile", compile)),
            mock.patch.object(follower.Follower, "next_load", self.timed("look", follower.Follower.next_load)),
        ):
            yield


def now() -> float:
    """Milliseconds."""
    return time.perf_counter() * 1e3


def text(value: Any) -> str:
    """An object as YAML."""
    return str(yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=False))


async def measure(folder: Path, save: Callable[[bool], None]) -> tuple[dict[str, float], list[dict[str, float]]]:
    """The times of the first load, and of each after an edit; `save` writes the policy that changes."""
    backends = {f"XBackend/shop/b{number}": SocketAddress("127.0.0.1", 1) for number in range(POLICIES // 5)}
    authority = certificates.Authority()
    pair = authority.server("localhost")
    options = EnvoyOptions(
        bind={"shop/g:8443": SocketAddress("127.0.0.1", 8443)},
        endpoints=backends,
        certificate=Certificate(pair.certificate, pair.key),
        client_authority=authority.pem,
    )
    controller = controlling.EnvoyController(options, lambda resources: None, RunMetrics().count)
    stop, clock = asyncio.Event(), Clock()
    times = []
    with clock.runs():
        saved = now()
        async for load in controller.follow(FileSource(CommandLoader([str(folder)])), stop):
            assert not load.refusal
            times.append(clock.parts(saved, now()))
            if len(times) > ROUNDS:
                stop.set()
                continue
            # At another moment of the watcher's round each time.
            await asyncio.sleep(0.05 + len(times) % 10 / 1000)
            saved = now()
            save(len(times) % 2 == 0)
    return times[0], times[1:]


def run() -> None:
    """Measure and print."""
    made = [(f"{value['kind'].lower()}-{value['metadata']['name']}.yaml", text(value)) for value in objects(POLICIES)]
    edited = {allowed: text(policy(0, allowed)) for allowed in (True, False)}
    name = "xaccesspolicy-p0.yaml"
    print(f"one file saved to prepared, {ROUNDS} edits, medians; Python {platform.python_version()}; milliseconds")
    print(f"{'':26}" + "".join(f"{part:>10}" for part in (*PARTS, "all", "all, 95 %")))
    for kind in ("files", "one file"):
        with tempfile.TemporaryDirectory() as at:
            folder = Path(at)
            whole = {
                allowed: "---\n".join(edited[allowed] if file == name else text_ for file, text_ in made)
                for allowed in edited
            }
            if kind == "files":
                for file, text_ in made:
                    (folder / file).write_text(text_)
            else:
                (folder / "all.yaml").write_text(whole[True])
            # Files that were left alone are known by their times.
            time.sleep(CLOCK_STEP_NS / 1e9 + 0.1)

            def save(allowed: bool, folder: Path = folder, kind: str = kind, whole: Any = whole) -> None:
                if kind == "files":
                    (folder / name).write_text(edited[allowed])
                else:
                    (folder / "all.yaml").write_text(whole[allowed])

            first, later = asyncio.run(measure(folder, save))
        print(f"{f'{len(made):,} objects, {kind}':26}" + "".join(_row(later)))
        print(f"{'  at first':26}" + "".join(f"{first[part]:>10.1f}" for part in (*PARTS, "all")))


def _row(times: list[dict[str, float]]) -> Iterator[str]:
    for part in (*PARTS, "all"):
        yield f"{statistics.median(change[part] for change in times):>10.2f}"
    yield f"{sorted(change['all'] for change in times)[int(len(times) * 0.95)]:>10.2f}"


if __name__ == "__main__":
    run()
