"""Running policy tests on the model or on a real engine (docs/policy-tests.md#output)."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, cast

from tierwall.core.answer import Answer
from tierwall.core.diagnostics import InputError
from tierwall.policytest.planes import ask, differences
from tierwall.policytest.report import CaseResult
from tierwall.policytest.suite import Case, Suite

ENGINES = {
    "model": "tierwall.policytest.run:Model",
    "nft": "tierwall.engines.nftables.engine:Engine",
    "envoy": "tierwall.engines.envoy.engine:Engine",
}


class Reply(NamedTuple):
    """What an engine said to one case: an answer, or why it was not asked, or what went wrong."""

    answer: Answer | None = None
    skipped: str = ""
    error: str = ""


class Engine(Protocol):
    """Something that answers the cases of a suite, in order."""

    def answers(self, suite: Suite) -> Iterable[Reply]:
        """One reply for each case."""


class Model:
    """Decides with the library."""

    def answers(self, suite: Suite) -> Iterator[Reply]:
        """One decision for each case."""
        for case in suite.cases:
            try:
                yield Reply(ask(case.plane, suite.snapshot, case.question, suite.defaults))
            except InputError as error:
                yield Reply(error=error.told)


def engine(name: str) -> Engine:
    """The engine of that name, imported on first use."""
    module, _, attribute = ENGINES[name].partition(":")
    return cast(Engine, getattr(importlib.import_module(module), attribute)())


def run(suites: Iterable[Suite], using: Engine) -> Iterator[CaseResult]:
    """One result for each case, in order."""
    for suite in suites:
        for case, reply in zip(suite.cases, using.answers(suite), strict=True):
            yield _judge(suite, case, reply)


def _judge(suite: Suite, case: Case, reply: Reply) -> CaseResult:
    ok: bool | None = False
    mismatches: list[str] = []
    error = reply.error
    if reply.skipped:
        ok = None
    elif reply.answer is not None:
        try:
            mismatches = differences(case.expect, reply.answer)
            ok = not mismatches
        except InputError as malformed:
            error = malformed.told
    at = suite.resource.position(case.path) if ok is False else None
    return CaseResult(
        file=suite.file,
        test=suite.name,
        case=case.name,
        ok=ok,
        answer=reply.answer,
        expect=case.expect,
        mismatches=tuple(mismatches),
        error=error,
        skipped=reply.skipped,
        line=at.line if at is not None else None,
    )
