"""The findings of `tierwall check` as text, JSON, SARIF and GitHub workflow commands (JUnit: `junit.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from tierwall.analyze.review import AcceptedFinding, ReviewResult
from tierwall.core.answer import Omission
from tierwall.core.catalogue import CATALOGUE, Severity
from tierwall.core.diagnostics import MAX_SHOWN, Diagnostics, ShownResult, shown
from tierwall.core.source import ClusterPosition, Position
from tierwall.core.words import count_noun
from tierwall.render.formats import View
from tierwall.render.json import diagnostic_document, more_documents, non_empty, omission_documents
from tierwall.render.text import diagnostics
from tierwall.resources.kinds.served import unserved_version
from tierwall.resources.load import LoadResult
from tierwall.resources.resource import Resource
from tierwall.resources.validity import is_judged
from tierwall.version import __version__

_GITHUB = {"error": "error", "warning": "warning", "note": "notice"}


class CheckResult(Struct, frozen=True):
    """Findings with those that are accepted, the files they are about, and the lowest severity that fails."""

    reviewed: ReviewResult
    loaded: LoadResult
    fail_on: Severity = Severity.WARNING
    # Whether there was a baseline or an older state to compare with.
    compared: bool = False
    not_considered: tuple[Omission, ...] = ()

    @property
    def findings(self) -> Diagnostics:
        """The findings to report."""
        return self.reviewed.findings

    @property
    def severities(self) -> Counter[str]:
        """The number of findings of each severity."""
        severities: Counter[str] = Counter()
        for finding in self.findings:
            severities[str(finding.severity)] += finding.count
        return severities

    @property
    def shown(self) -> ShownResult:
        """The findings that are written, and how many more there are."""
        return shown(self.findings)

    @property
    def shown_accepted(self) -> tuple[AcceptedFinding, ...]:
        """The accepted findings that are written: as many as of those that are reported."""
        return self.reviewed.accepted[:MAX_SHOWN]

    @property
    def unjudged_kinds(self) -> dict[str, int]:
        """The number of objects of each kind that Tierwall does not judge."""
        kinds = Counter(resource.kind for resource in self.loaded.resources if not self._is_judged(resource))
        return dict(sorted(kinds.items()))

    def _is_judged(self, resource: Resource) -> bool:
        # Of a cluster, only kinds are read that could matter; which of them are not judged, the answer says.
        if resource.is_live or is_judged(self.loaded.snapshot, resource):
            return True
        # Workloads in a version that is no longer served are read all the same.
        unserved = unserved_version(resource.api_version, resource.kind)
        return unserved is not None and not unserved.takes_no_part

    @property
    def summary(self) -> str:
        """`1 error, 2 warnings in 7 objects of 3 files`."""
        severities = self.severities
        parts = [count_noun(severities[word], word) for word in _GITHUB if severities[word] or word == "error"]
        objects, files = len(self.loaded.resources), len(self.loaded.read.sources)
        sources = [f"cluster {self.loaded.cluster}"] if self.loaded.cluster else []
        if files:
            sources.append(count_noun(files, "file"))
        words = f"{', '.join(parts)} in {count_noun(objects, 'object')}"
        if sources:
            words += f" of {' and '.join(sources)}"
        if accepted := self.reviewed.accepted:
            errors = len(Diagnostics(entry.finding for entry in accepted).errors)
            words += f"; {len(accepted)} accepted" + (f" ({count_noun(errors, 'error')})" if errors else "")
        if known := len(self.reviewed.known):
            words += f"; {known} known before"
        if unjudged_kinds := self.unjudged_kinds:
            kinds = ", ".join(f"{number} {kind}" for kind, number in unjudged_kinds.items())
            words += f"; not judged: {kinds}"
        return words


def text(checked: CheckResult, view: View) -> Iterator[str]:
    """Write each finding with its place, code and hint."""
    return diagnostics(checked.findings, view.line, view.terminal, view.colour)


def document(checked: CheckResult, view: View) -> dict[str, Any]:
    """Return the document of `check -o json`."""
    severities, chosen = checked.severities, checked.shown
    return {
        "files": len(checked.loaded.read.sources),
        **non_empty(cluster=checked.loaded.cluster),
        "objects": len(checked.loaded.resources),
        "errors": severities["error"],
        "warnings": severities["warning"],
        "notes": severities["note"],
        "accepted": len(checked.reviewed.accepted),
        "known": len(checked.reviewed.known),
        "diagnostics": [diagnostic_document(finding) for finding in chosen.diagnostics],
        # The numbers above count all findings.
        **({"more": more_documents(chosen, checked.findings)} if chosen.more else {}),
        "acceptedDiagnostics": [
            {**diagnostic_document(entry.finding), **non_empty(acceptedBy=entry.by, reason=entry.reason)}
            for entry in checked.shown_accepted
        ],
        "notConsidered": omission_documents(view.not_considered),
    }


def sarif(checked: CheckResult, view: View) -> dict[str, Any]:
    """Return a SARIF 2.1.0 document, which code hosts show beside the code: the codes found, and each finding."""
    from tierwall.render.rule_help import rule_help  # only SARIF needs it

    chosen = checked.shown
    entries = [*map(AcceptedFinding, chosen.diagnostics), *checked.shown_accepted]
    codes = sorted({entry.finding.code for entry in entries})
    index = {code: number for number, code in enumerate(codes)}
    rules = [
        {
            "id": code,
            "name": CATALOGUE[code].title,
            "shortDescription": {"text": CATALOGUE[code].title},
            "defaultConfiguration": {"level": str(CATALOGUE[code].severity)},
            **rule_help(code),
        }
        for code in codes
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "tierwall", "version": __version__, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(entry, index[entry.finding.code], checked) for entry in entries],
                **({"invocations": [_invocation(chosen)]} if chosen.more else {}),
            }
        ],
    }


def _invocation(chosen: ShownResult) -> dict[str, Any]:
    """Say how many findings are left out, where SARIF has the messages of the tool itself."""
    notes = [{"level": "note", "message": {"text": line}} for line in chosen.lines]
    return {"executionSuccessful": True, "toolExecutionNotifications": notes}


def _result(entry: AcceptedFinding, rule: int, checked: CheckResult) -> dict[str, Any]:
    finding = entry.finding
    out: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": str(finding.severity),
        "message": {"text": finding.message_with_hint},
        "locations": [_location(finding.at)] if finding.at else [],
    }
    related = [{**_location(at), "message": {"text": word}} for word, at in finding.related if at is not None]
    if related:
        out["relatedLocations"] = related
    # Either all results of a run have these properties or none has.
    if checked.compared:
        out["baselineState"] = "unchanged" if entry.by == "baseline" else "new"
    kind = "external" if entry.by == "baseline" else "inSource"
    out["suppressions"] = [{"kind": kind, **non_empty(justification=entry.reason)}] if entry.by else []
    return out


def _location(position: Position) -> dict[str, Any]:
    if isinstance(position, ClusterPosition):
        name, qualified = str(position.reference), str(position)
        return {"logicalLocations": [{"name": name, "fullyQualifiedName": qualified, "kind": "resource"}]}
    from urllib.parse import quote  # only SARIF needs it, and it imports much

    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(_file(position).replace("\\", "/"), safe="/:@!$&'()*+,;=~")},
            "region": {"startLine": position.line, "startColumn": position.column},
        }
    }


def _file(position: Position) -> str:
    # Code hosts know files by their path in the repository, and `check .` begins each path with `./`.
    return position.file.removeprefix("./")


def github(checked: CheckResult, view: View) -> Iterator[str]:
    """Write `::error file=…,line=…,col=…,title=…::message`: an annotation on a line, escaped for GitHub runners.

    What stands in a cluster has no file; the message names its place.
    """
    chosen = checked.shown
    for finding in chosen.diagnostics:
        where, words = [], finding.message_with_hint
        if finding.at is not None and finding.at.is_in_cluster:
            words = f"{finding.at}: {words}"
        elif finding.at is not None:
            where = [
                f"file={_escape_property(_file(finding.at))}",
                f"line={finding.at.line}",
                f"col={finding.at.column}",
            ]
        attributes = ",".join([*where, f"title={_escape_property(finding.code)}"])
        yield f"::{_GITHUB[finding.severity]} {attributes}::{_escape_data(words)}"
    for line in chosen.lines:
        yield f"::notice title=more::{_escape_data(line)}"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
