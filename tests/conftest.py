"""Fixtures for all tests: cases from other projects beside the repository, and engines that CI must not skip."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import ROOT
from tests.needs import NEEDS, missing_data, unavailable
from tests.randomness import SEEDED, examples

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("tierwall", deadline=None, derandomize=True, suppress_health_check=SLOW_IS_FINE)
# With a given seed (`--hypothesis-seed`); a failure prints how to replay its example.
settings.register_profile(
    "fuzz", deadline=None, max_examples=examples(100), print_blob=True, suppress_health_check=SLOW_IS_FINE
)
settings.load_profile("fuzz" if SEEDED else "tierwall")

pytest.register_assert_rewrite("tests.labs", "tests.worlds", "tests.reference")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--renew` (see tests/golden and tests/resources)."""
    parser.addoption("--renew", action="store_true", help="keep what commands print now, and write the pages of kinds")


@pytest.fixture
def renew(request: pytest.FixtureRequest) -> bool:
    """Whether to renew golden files."""
    return bool(request.config.getoption("--renew"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with cases from the suites of other projects: `TIERWALL_SHARED`, or `shared` beside the repository.

    They are not part of the repository. Where they are absent, one line of the summary says how many tests did not run,
    in CI too: a bare clone passes all its tests.
    """
    folder = Path(os.environ.get("TIERWALL_SHARED", ROOT.parent / "shared"))
    if not (folder / "conformance").is_dir():
        missing_data(f"other projects' cases, which are not at {folder}/conformance: set TIERWALL_SHARED")
    return folder


@pytest.fixture(scope="session")
def needs_envoy() -> None:
    """Require an Envoy of a suitable version."""
    from tierwall.core.diagnostics import InputError
    from tierwall.engines.envoy.control.process import find_envoy

    try:
        find_envoy()
    except InputError as error:
        unavailable(str(error))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that draw their own random inputs: `make fuzz` runs them as it runs those of Hypothesis."""
    for item in items:
        if isinstance(item, pytest.Function) and _draws(item):
            item.add_marker("hypothesis")


def _draws(item: pytest.Function) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return "seed" in parameters or not {"seeds", "examples"}.isdisjoint(item.function.__code__.co_names)


def _lacks(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the data that a skipped test lacks, or an empty string."""
    reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
    return reason.removeprefix(NEEDS) if report.skipped and reason.startswith(NEEDS) else ""


def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    """Count tests without their data apart, so that the summary does not list each of them."""
    return ("without data", "-", "WITHOUT DATA") if _lacks(report) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write one line for each kind of missing data."""
    lacked = Counter(_lacks(report) for report in terminalreporter.stats.get("without data", ()))
    for data, tests in sorted(lacked.items()):
        terminalreporter.write_line(f"{tests} tests were not run: they need {data}")
