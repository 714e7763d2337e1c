"""Requirements of tests that may be missing: a real engine, or data beside the repository."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

NEEDS = "needs "


def unavailable(reason: str) -> None:
    """Skip a test because a real engine is not available; with CI=true that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"not testable here: {reason}")
    pytest.skip(reason)


def missing_data(data: str) -> NoReturn:
    """Skip a test because data beside the repository is missing, in CI too; the summary says so once."""
    pytest.skip(f"{NEEDS}{data}")
