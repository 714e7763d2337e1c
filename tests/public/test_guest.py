"""The library changes no global state of the process that uses it, and prints nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests import ROOT

EXAMPLES = ROOT / "examples"

# The global state of a process. Run in a separate process, because pytest changes some of it.
STATE = """
import decimal, gc, locale, logging, os, signal, socket, sys, threading, warnings

def state():
    return {
        "the collector is on": gc.isenabled(),
        "thresholds of the collector": gc.get_threshold(),
        "objects hidden from the collector": gc.get_freeze_count(),
        "signal handlers": {str(one): repr(signal.getsignal(one)) for one in signal.valid_signals()},
        "root handlers": repr(logging.getLogger().handlers),
        "root level": logging.getLogger().level,
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "digits of an int": sys.get_int_max_str_digits(),
        "hooks": [repr(hook) for hook in (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook)],
        "warning filters": repr(warnings.filters),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "file mode mask": os.umask(os.umask(0o22)),
        "locale": locale.setlocale(locale.LC_ALL),
        "decimal context": repr(decimal.getcontext()),
        "timeout of sockets": socket.getdefaulttimeout(),
        "threads": [thread.name for thread in threading.enumerate()],
        "streams": [repr(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "import path": sys.path,
    }

def same(before, what):
    now = state()
    assert now == before, (what, {key: (before[key], now[key]) for key in now if now[key] != before[key]})
"""

IMPORTS = f"""{STATE}
import importlib, pkgutil
before = state()
import tierwall
same(before, "import tierwall")
for name in tierwall.__all__:
    getattr(tierwall, name)
same(before, "the public names")
for module in pkgutil.walk_packages(tierwall.__path__, "tierwall."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        same(before, module.name)
"""

USE = f"""{STATE}
import json
before = state()
import tierwall

paths, tests = json.loads(sys.argv[1])
world = tierwall.load(*paths)
assert len(list(world.objects())) > 10_000
same(before, "loading")
assert world.check()
same(before, "checking")
report = tierwall.run_tests(*tests)
assert report.passed and not report.failed
same(before, "asking all planes")
assert list(world.connections())
same(before, "listing")
assert all(resource.position() for resource in world.objects())
same(before, "finding positions")
assert list(tierwall.diff(world, world.without("Pod/many/p-1")))
same(before, "comparing")
"""


def test_importing_the_library_leaves_the_process_unchanged() -> None:
    run_apart(IMPORTS)


def test_using_the_library_leaves_the_process_unchanged(tmp_path: Path) -> None:
    metadata = {"namespace": "many", "labels": {"app": "many"}}
    spec = {"containers": [{"name": "c", "image": "registry.example/many:1", "args": ["x" * 400]}]}
    items = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "name": f"p-{number}"}, "spec": spec}
        for number in range(10_001)
    ]
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    paths = [str(file), *(str(EXAMPLES / place) for place in ("shop/manifests", "tool/manifests", "gateway/manifests"))]
    tests = [str(EXAMPLES / place) for place in ("shop/tests", "tool/tests", "gateway/tests", "api/test.yaml")]
    run_apart(USE, json.dumps([paths, tests]))


def run_apart(script: str, *arguments: str) -> None:
    """Run a script in its own process; it must not print anything."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
