"""Durations, sizes and paths of settings."""

from __future__ import annotations

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import quantity
from tierwall.engines.envoy.config.paths import UNSENDABLE_PATH, is_sendable
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.values.time import parse_duration


def nanoseconds(text: object, *path: str | int) -> int:
    """Return a duration in nanoseconds."""
    duration = parse_duration(text)
    if duration is None or duration < 0:
        raise Unenforceable(f"`{text}` is not a duration", *path)
    return duration


def check_path(text: object, *path: str | int) -> None:
    """Raise Unenforceable for a path that no request can have."""
    if not is_sendable(text):
        raise Unenforceable(UNSENDABLE_PATH, *path)


def byte_count(value: object, *path: str | int) -> int:
    """Return a quantity of bytes."""
    try:
        count = quantity.as_integer(quantity.parse(str(value)))
    except EvaluationError:
        count = 0
    if not 0 < count < 1 << 32:
        raise Unenforceable(f"`{value}` is not a number of bytes", *path)
    return count
