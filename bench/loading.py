"""Loading: 10,000 Pods of multi-document YAML and a JSON List of 100,000: `python -m bench loading`.

Each figure comes from processes of their own, one a measurement, ours and the yardstick in turn; CPU seconds, best of
three, and the peak resident memory of the whole process. The yardsticks are libyaml's events (through PyYAML, nothing
built from them) and msgspec's untyped decode, the latter also with garbage collection off, as commands load. `library`
is the same loader in somebody else's process, where we must leave the collector on.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

YAML_PODS, JSON_PODS, ROUNDS = 10_000, 100_000, 3


def pod(number: int) -> dict[str, Any]:
    """A Pod as a Deployment leaves it: two containers, probes, resources, a projected volume, status."""
    containers = [
        {
            "name": f"c{index}",
            "image": f"registry.example/shop/web:1.{number % 20}.{index}",
            "imagePullPolicy": "IfNotPresent",
            "command": ["/bin/web", "--port=8080"],
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "env": [
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "MODE", "value": "production"},
            ],
            "resources": {
                "limits": {"cpu": "500m", "memory": "256Mi"},
                "requests": {"cpu": "100m", "memory": "128Mi"},
            },
            "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
            "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}],
        }
        for index in range(2)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"web-{number}",
            "namespace": f"shop-{number % 50}",
            "labels": {"app": "web", "tier": "front", "pod-template-hash": f"5d4f8c7b9-{number % 97}"},
            "annotations": {"checksum/config": f"8f14e45fceea167a5a36dedd4bea2543{number}", "note": "scraped: yes"},
        },
        "spec": {
            "nodeName": f"node-{number % 100}",
            "serviceAccountName": "default",
            "containers": containers,
            "volumes": [
                {
                    "name": "token",
                    "projected": {
                        "defaultMode": 420,
                        "sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}],
                    },
                }
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    }


def libyaml_events(file: str) -> None:
    """libyaml's events, iterated and dropped."""
    from yaml.cyaml import CParser  # type: ignore[attr-defined]
    from yaml.events import StreamEndEvent

    next_event = CParser(Path(file).read_bytes()).get_event
    while next_event().__class__ is not StreamEndEvent:
        pass


def msgspec_untyped(file: str) -> Any:
    """msgspec's decode into plain values."""
    import msgspec

    return msgspec.json.decode(Path(file).read_bytes())


def msgspec_without_gc(file: str) -> Any:
    """The same with garbage collection off."""
    import gc

    gc.disable()
    return msgspec_untyped(file)


def library(file: str) -> Any:
    """The loader: documents with plain values, positions on demand."""
    from tierwall.resources.read import read_paths

    return read_paths([file])


def ours(file: str) -> Any:
    """The loader as commands use it."""
    from tierwall.cli.collector import collector_off

    with collector_off():
        return library(file)


def last_position(file: str) -> Any:
    """Loading is not counted here: where the last item of a long list stands."""
    global started
    document = ours(file).documents[0]
    started = time.process_time()
    return document.position(("items", JSON_PODS - 1, "spec", "nodeName"))


WAYS = {
    way.__name__: way for way in (libyaml_events, msgspec_untyped, msgspec_without_gc, library, ours, last_position)
}
started = 0.0


def _measure(way: str, file: str) -> tuple[float, float]:
    """CPU seconds and peak MB of one way in a process of its own; imports are not counted."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.loading", way, file], capture_output=True, text=True, check=True
    )
    seconds, peak = done.stdout.split()
    return float(seconds), float(peak)


def _compare(title: str, file: str, ways: tuple[str, ...]) -> None:
    rounds = [[_measure(way, file) for way in ways] for _ in range(ROUNDS)]
    print(f"{title}: {Path(file).stat().st_size / 1e6:.0f} MB")
    ours = min(timing[-1][0] for timing in rounds)
    for index, way in enumerate(ways):
        times = [timing[index][0] for timing in rounds]
        peak = max(timing[index][1] for timing in rounds)
        ratio = "" if way == ways[-1] else f"   ours is {ours / min(times):.2f} x this"
        print(f"  {way:20} {min(times):6.2f} s  [{min(times):.2f}-{max(times):.2f}]  peak {peak:5.0f} MB{ratio}")


def run() -> None:
    """Print both comparisons."""
    import msgspec
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        manifests = Path(folder) / "pods.yaml"
        with manifests.open("w") as file:
            for number in range(YAML_PODS):
                yaml.dump(pod(number), file, Dumper=yaml.CSafeDumper, sort_keys=False)
                file.write("---\n")
        _compare(f"{YAML_PODS:,} Pods of YAML", str(manifests), ("libyaml_events", "library", "ours"))
        listed = Path(folder) / "pods.json"
        items = [pod(number) for number in range(JSON_PODS)]
        listed.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}))
        del items
        ways = "msgspec_untyped", "msgspec_without_gc", "library", "ours"
        _compare(f"a List of {JSON_PODS:,} Pods of JSON", str(listed), ways)
        print(f"  the last item's position: {_measure('last_position', str(listed))[0]:.2f} s")


if __name__ == "__main__":
    # Import what is timed before the clock starts.
    import tierwall.cli.collector
    import tierwall.resources.read  # noqa: F401

    started = time.process_time()
    kept = WAYS[sys.argv[1]](sys.argv[2])
    print(time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)
