"""`tierwall` and `python -m tierwall`: the command's process, set up before anything large is imported."""

from __future__ import annotations

import atexit
import gc

# What is imported and loaded is never garbage. Python looks for garbage after every 700 objects, and through all of
# them at the end: a fifth of the time of a short command. Servers go back to Python's thresholds (`cli/collector.py`).
COLLECT_AFTER = 500_000


def main() -> None:
    """Run the command line."""
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)
    from tierwall.cli.main import main

    main()


if __name__ == "__main__":
    main()
