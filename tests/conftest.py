"""What all tests share: the conformance data beside the repository, and engines that must not be skipped in CI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("tierwall", deadline=None, derandomize=True, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("long", deadline=None, max_examples=100_000, suppress_health_check=SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tierwall"))

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with public conformance data: `TIERWALL_SHARED`, or `shared` beside the repository."""
    folder = Path(os.environ.get("TIERWALL_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        unavailable(f"no conformance data at {folder}")
    return folder


@pytest.fixture(scope="session")
def needs_envoy() -> None:
    """There is an Envoy of a version that will do."""
    from tierwall.core.diagnostics import InputError
    from tierwall.engines.envoy.binary import find_envoy

    try:
        find_envoy()
    except InputError as error:
        unavailable(str(error))


def unavailable(reason: str) -> None:
    """Skip, because something real is not to be had here; with CI=true that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"not testable here: {reason}")
    pytest.skip(reason)
