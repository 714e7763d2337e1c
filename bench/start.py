"""How long commands take on a small folder, against a Python that does nothing: what a person waits for every time.

Bytecode is cached, as it is for users, whatever the environment says; the first round writes it and does not count.
Seconds are of CPU, so that a busy machine does not pass for slow code.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = 15
COMMAND = str(Path(sys.executable).with_name("tierwall"))
SHOP = str(Path(__file__).parents[1] / "examples" / "shop")

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "tierwall --help": [COMMAND, "--help"],
    "tierwall explain network … -f examples/shop/manifests": [
        *(COMMAND, "explain", "network", "--from", "shop/web-0", "--to", "shop/db-0"),
        *("--port", "5432", "-f", f"{SHOP}/manifests"),
    ],
    "tierwall test examples/shop/tests": [COMMAND, "test", f"{SHOP}/tests"],
    "tierwall check examples/shop/manifests": [COMMAND, "check", f"{SHOP}/manifests"],
}


def run() -> None:
    """The median of some rounds, the commands taking turns so that a busy machine slows all of them alike."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(ROUNDS + 1):
        for name, command in COMMANDS.items():
            before = _seconds()
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            if number:
                taken[name].append(_seconds() - before)
    nothing = statistics.median(taken["python -c pass"])
    print("| command | ms | ratio |")
    print("|---|---|---|")
    for name, seconds in taken.items():
        print(f"| `{name}` | {statistics.median(seconds) * 1000:.0f} | {statistics.median(seconds) / nothing:.1f} |")


def _seconds() -> float:
    """The CPU seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    run()
