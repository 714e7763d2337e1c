"""Running policy tests on the model or on a real engine (docs/policy-tests.md#output).

The document of a run has `passed`, `failed` and one entry a case: `ok` is true, false, or null with `skipped` where
the engine cannot ask the question; such a case counts as neither.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, cast

from tierwall.core import answer as core
from tierwall.core.diagnostics import InputError
from tierwall.policytest.planes import ask, differences
from tierwall.policytest.suite import Case, Suite

ENGINES = {
    "model": "tierwall.policytest.run:Model",
    "nft": "tierwall.engines.nftables.engine:Engine",
    "envoy": "tierwall.engines.envoy.engine:Engine",
}


class Answer(NamedTuple):
    """What an engine said to one case: a decision document, or why it was not asked, or what went wrong."""

    got: Any = None
    skipped: str = ""
    error: str = ""


class Engine(Protocol):
    """Something that answers the cases of a suite, in order."""

    def answers(self, suite: Suite) -> Iterable[Answer]:
        """One answer a case."""


class Model:
    """Decides with the library."""

    def answers(self, suite: Suite) -> Iterator[Answer]:
        """One decision a case."""
        for case in suite.cases:
            try:
                yield Answer(ask(case.plane, suite.snapshot, case.question, suite.defaults))
            except InputError as error:
                yield Answer(error=_words(error))


def engine(name: str) -> Engine:
    """The engine of that name, imported on first use."""
    module, _, attribute = ENGINES[name].partition(":")
    return cast(Engine, getattr(importlib.import_module(module), attribute)())


def run(suites: Iterable[Suite], using: Engine) -> Iterator[dict[str, Any]]:
    """One result document a case, in order."""
    for suite in suites:
        for case, answer in zip(suite.cases, using.answers(suite), strict=True):
            yield {"file": suite.file, "test": suite.name, "case": case.name, **_judge(suite, case, answer)}


def _judge(suite: Suite, case: Case, answer: Answer) -> dict[str, Any]:
    got = answer.got.to_dict() if isinstance(answer.got, core.Answer) else dict(answer.got or {})
    out: dict[str, Any] = {"ok": False, "got": got, "want": dict(case.expect)}
    if answer.skipped:
        return out | {"ok": None, "skipped": answer.skipped}
    try:
        if answer.got is None:
            out["error"] = answer.error
        elif lines := differences(case.plane, case.expect, answer.got):
            out["mismatches"] = lines
        else:
            return out | {"ok": True}
    except InputError as error:
        out["error"] = _words(error)
    if place := suite.resource.position(case.path):
        out["line"] = place.line
    return out


def _words(error: InputError) -> str:
    return "; ".join(f"{one.message} ({one.hint})" if one.hint else one.message for one in error.diagnostics)


def summary(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The document of a whole run."""
    cases = list(results)
    return {
        "passed": sum(case["ok"] is True for case in cases),
        "failed": sum(case["ok"] is False for case in cases),
        "skipped": sum(case["ok"] is None for case in cases),
        "cases": cases,
    }
