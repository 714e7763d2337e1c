"""`tierwall` and `python -m tierwall`: the command's process, set up before anything large is imported."""

from __future__ import annotations

import atexit
import gc
import os
import sys

# What is imported and loaded is never garbage. Python looks for garbage after every 700 objects, and through all of
# them at the end: a fifth of the time of a short command. Servers go back to Python's thresholds (`cli/collector.py`).
COLLECT_AFTER = 500_000


def kubectl() -> None:
    """Run the command line as a plugin of kubectl."""
    main("kubectl tierwall")


def main(program: str | None = None) -> None:
    """Run the command line, under another name than that of the process if one is given."""
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)
    try:
        from tierwall.cli.main import main

        main(program)
    except KeyboardInterrupt:
        # Click handles it while a command runs; before that, modules are imported.
        sys.stderr.write("\nAborted!\n")
        sys.exit(1)
    except SystemExit as ended:
        if isinstance(ended.code, int):
            _end(ended.code)
        raise


def _end(code: int) -> None:
    """End a short command without freeing its objects one by one, which takes 3 ms.

    A server ends as usual: it has restored Python's thresholds, or still has threads.
    """
    from threading import active_count

    if gc.get_threshold()[0] == COLLECT_AFTER and active_count() == 1:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
