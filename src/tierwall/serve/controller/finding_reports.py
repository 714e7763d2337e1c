"""Make OpenReports documents of findings: one for each namespace, and one for the cluster (docs/controller.md#reports).

The format is `openreports.io/v1alpha1`. A result has no time, so that the same findings give the same document.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from tierwall.attach.status import bounded_message
from tierwall.core.catalogue import CATALOGUE, Severity
from tierwall.core.diagnostics import Diagnostic
from tierwall.resources.snapshot import Snapshot

API_VERSION = "openreports.io/v1alpha1"
SOURCE = "tierwall"
# The name of every report, and the label by which they are found.
NAME = "tierwall"
LABELS = {"app.kubernetes.io/managed-by": "tierwall"}
DIGEST = "tierwall.io/digest"
# The most results of one report. With the longest messages it has less than 1 MiB, which an API server takes.
MAX_RESULTS = 300
_RESULTS = {Severity.ERROR: "fail", Severity.WARNING: "warn", Severity.NOTE: "skip"}
_SEVERITIES = {Severity.ERROR: "high", Severity.WARNING: "medium", Severity.NOTE: "info"}
_ORDER = tuple(_RESULTS)


class FindingReport(NamedTuple):
    """The report of a namespace, or of the cluster if `namespace` is empty. `digest` stands for all of its content."""

    namespace: str
    document: Mapping[str, Any]
    digest: str


def finding_reports(snapshot: Snapshot, findings: Iterable[Diagnostic]) -> dict[str, FindingReport]:
    """Return a report for each namespace with findings; those about cluster-scoped objects are in one for the cluster.

    The summary counts all findings, the results are the worst ones.
    """
    by_namespace: dict[str, list[Diagnostic]] = {}
    for finding in findings:
        namespace = finding.reference.namespace if finding.reference is not None else ""
        by_namespace.setdefault(namespace, []).append(finding)
    return {namespace: _report(snapshot, namespace, listed) for namespace, listed in by_namespace.items()}


def _report(snapshot: Snapshot, namespace: str, findings: list[Diagnostic]) -> FindingReport:
    counts = Counter(_RESULTS[finding.severity] for finding in findings)
    worst = sorted(findings, key=lambda finding: _ORDER.index(finding.severity))[:MAX_RESULTS]
    content: dict[str, Any] = {
        "source": SOURCE,
        "summary": {result: counts[result] for result in ("pass", "fail", "warn", "error", "skip")},
        "results": [_result(snapshot, finding) for finding in worst],
    }
    if len(findings) > MAX_RESULTS:
        content["configuration"] = {"limits": {"maxResults": MAX_RESULTS}}
    digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:32]
    metadata: dict[str, Any] = {"name": NAME, "labels": LABELS, "annotations": {DIGEST: digest}}
    if namespace:
        metadata["namespace"] = namespace
    kind = "Report" if namespace else "ClusterReport"
    return FindingReport(namespace, {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, **content}, digest)


def _result(snapshot: Snapshot, finding: Diagnostic) -> dict[str, Any]:
    info = CATALOGUE[finding.code]
    result: dict[str, Any] = {
        "source": SOURCE,
        "policy": finding.code,
        "category": info.title,
        "severity": _SEVERITIES[finding.severity],
        "result": _RESULTS[finding.severity],
        "message": bounded_message(finding.message.split("\n")),
    }
    if finding.places:
        result["rule"] = bounded_message((finding.places[0],))
    if finding.hint:
        result["properties"] = {"hint": bounded_message(finding.hint.split("\n"))}
    if finding.reference is not None:
        kind, namespace, name, _, _ = finding.reference
        resource = snapshot.find(finding.reference)
        subject = {"kind": kind, "namespace": namespace, "name": name}
        if resource is not None:
            subject |= {"apiVersion": resource.api_version, "uid": str(resource.metadata.get("uid", ""))}
        result["resources"] = [{key: value for key, value in subject.items() if value}]
    return result
