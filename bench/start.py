"""How long `tierwall --help` takes, against a Python that does nothing: what a person waits for at every command."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 15
COMMAND = str(Path(sys.executable).with_name("tierwall"))
SHOP = str(Path(__file__).parents[1] / "examples" / "shop")

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "tierwall --help": [COMMAND, "--help"],
    "tierwall check examples/shop/manifests": [COMMAND, "check", f"{SHOP}/manifests"],
    "tierwall test examples/shop/tests": [COMMAND, "test", f"{SHOP}/tests"],
}


def run() -> None:
    """The best of some rounds, the commands taking turns so that a busy machine slows all of them alike."""
    best = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            best[name] = min(best[name], time.perf_counter() - started)
    nothing = best["python -c pass"]
    print("| command | ms | ratio |")
    print("|---|---|---|")
    for name, seconds in best.items():
        print(f"| `{name}` | {seconds * 1000:.0f} | {seconds / nothing:.1f} |")


if __name__ == "__main__":
    run()
