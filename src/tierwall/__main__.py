"""`tierwall` and `python -m tierwall`: the command's process, set up before anything large is imported."""

from __future__ import annotations

import atexit
import gc

# What is imported and loaded stays. Python looks for garbage after every 700 objects, and in all of them at the end,
# which takes a fifth of the time of a short command. What stays goes back to Python's own way (`cli/collector.py`).
COLLECT_AFTER = 500_000


def main() -> None:
    """Run the command line."""
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)
    from tierwall.cli.main import main

    main()


if __name__ == "__main__":
    main()
