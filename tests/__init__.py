"""The tests of Tierwall: one package for each of its own, what they share in `worlds`, `labs` and `reference`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
