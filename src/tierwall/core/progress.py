"""How long work tells how far it is; nobody has to listen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

# Told what is being done, how much of it is done, and how much there is.
Progress: TypeAlias = Callable[[str, int, int], None]
