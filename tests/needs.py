"""What a test needs and may not have: something real that cannot run here, or data from beside the repository."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

NOT_HAD = "needs "


def unavailable(reason: str) -> None:
    """Skip, because something real is not to be had here; with CI=true that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"not testable here: {reason}")
    pytest.skip(reason)


def not_had(data: str) -> NoReturn:
    """Pass a test over for want of data that is not part of the repository, in CI too; the summary says so once."""
    pytest.skip(f"{NOT_HAD}{data}")
