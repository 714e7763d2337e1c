"""`python -m bench [NAME...]`: every module here that has a `run()`, or those named."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

if __name__ == "__main__":
    for name in sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if name.startswith("_") or (sys.argv[1:] and name not in sys.argv[1:]):
            continue
        loaded = importlib.import_module(f"bench.{name}")
        run = getattr(loaded, "run", None) or getattr(loaded, "main", None)
        if run is not None:
            run()
            print()
