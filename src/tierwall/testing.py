"""The public Python API of policy tests (docs/python-api.md, docs/policy-tests.md)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tierwall.cluster.cluster import Cluster
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.core.extras import missing_extra
from tierwall.engines import table
from tierwall.policytest.run import CaseResult, TestReport, run
from tierwall.policytest.suite import suites
from tierwall.resources.load import LoadSettings
from tierwall.world import Path, World

if TYPE_CHECKING:
    from tierwall.core.protocols import Progress


def run_tests(
    *paths: Path, engine: str = "model", world: World | None = None, progress: Progress | None = None
) -> TestReport:
    """Run the policy tests in files and folders. If a world is given, its objects are put under those of every test.

    Tests may name clusters, which are read. A world that was read from a cluster takes their place.
    """
    known = table.offered_by("test")
    if str(engine) not in known:
        message = f"expected one of {', '.join(known)} as `engine`, found `{engine}`"
        raise InputError([Diagnostic("TW703", message, hint=near_miss(str(engine), known))])
    under, namespace = (world.snapshot, world.namespace) if world is not None else (None, "default")
    named = None if under is not None and under.is_live else Cluster()
    loaded = suites([os.fspath(path) for path in paths], under, LoadSettings(namespace), named, progress)
    total = sum(len(suite.cases) for suite in loaded)
    results: list[CaseResult] = []
    try:
        for result in run(loaded, table.engine(engine)):
            results.append(result)
            if progress is not None:
                progress(f"test {result.test}", len(results), total)
    except ModuleNotFoundError as error:
        raise missing_extra(error) from error
    return TestReport(tuple(results))
