"""`python -m bench [NAME...]`: every module here that has a `run()`, or those named."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

if __name__ == "__main__":
    for module in sorted(iter_module.name for iter_module in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if module.startswith("_") or (sys.argv[1:] and module not in sys.argv[1:]):
            continue
        loaded = importlib.import_module(f"bench.{module}")
        run = getattr(loaded, "run", None) or getattr(loaded, "main", None)
        if run is not None:
            run()
            print()
