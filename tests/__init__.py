"""The tests of Tierwall: one package for each package of Tierwall; `worlds`, `labs` and `reference` are shared."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
