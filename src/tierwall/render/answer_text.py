"""Answers as text: each plane has a module that says in which order and words."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from tierwall.core.answer import Answer
from tierwall.render.text import Lines


def lines(answer: Answer, source: Lines) -> Iterator[str]:
    """What `tierwall explain` prints; `source` gives the lines of the files."""
    shown: Iterator[str] = importlib.import_module(f"tierwall.render.{answer.plane}_text").lines(answer, source)
    return shown
