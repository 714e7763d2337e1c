"""Test the OpenReports documents of findings: by namespace, worst first, bounded, the same for the same findings."""

from __future__ import annotations

import msgspec

from tests.worlds.network_objects import admin, network_policy, pod, rule
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.finding_reports import MAX_RESULTS, finding_reports
from tierwall.serve.controller.reports import _reports


def finding(code: str, namespace: str, name: str, hint: str = "") -> Diagnostic:
    return Diagnostic(code, f"words about {name}", hint=hint, reference=Reference("NetworkPolicy", namespace, name))


def test_a_namespace_has_a_report_with_results_by_severity() -> None:
    findings = [
        finding("TW017", "shop", "c"),
        finding("TW101", "shop", "a", hint="do it"),
        finding("TW007", "shop", "b"),
    ]
    snapshot = Snapshot.of(load_objects([network_policy("a", metadata={"uid": "u"})]))
    (report,) = finding_reports(snapshot, findings).values()
    document = report.document
    assert (document["apiVersion"], document["kind"]) == ("openreports.io/v1alpha1", "Report")
    assert (document["metadata"]["namespace"], document["metadata"]["name"]) == ("shop", "tierwall")
    assert document["source"] == "tierwall"
    assert document["summary"] == {"pass": 0, "fail": 1, "warn": 1, "error": 0, "skip": 1}
    assert [(result["policy"], result["result"]) for result in document["results"]] == [
        ("TW101", "fail"),
        ("TW007", "warn"),
        ("TW017", "skip"),
    ]
    first = document["results"][0]
    assert (first["severity"], first["message"], first["properties"]) == ("high", "words about a", {"hint": "do it"})
    assert first["resources"] == [
        {"kind": "NetworkPolicy", "namespace": "shop", "name": "a", "apiVersion": "networking.k8s.io/v1", "uid": "u"}
    ]


def test_findings_about_cluster_scoped_objects_are_in_one_report_for_the_cluster() -> None:
    findings = [
        Diagnostic("TW201", "words", reference=Reference("AdminNetworkPolicy", "", "guard")),
        finding("TW007", "a", "b"),
    ]
    reports = finding_reports(Snapshot({}), findings)
    assert set(reports) == {"", "a"}
    assert reports[""].document["kind"] == "ClusterReport"
    assert "namespace" not in reports[""].document["metadata"]


def test_a_report_is_bounded_and_counts_all() -> None:
    findings = [
        Diagnostic("TW007", "é" * 5000, hint="ü" * 5000, reference=Reference("Pod", "shop", f"p{number}"))
        for number in range(MAX_RESULTS + 20)
    ]
    report = finding_reports(Snapshot({}), [*findings, finding("TW101", "shop", "worst")])["shop"]
    assert report.document["results"][0]["policy"] == "TW101"
    assert len(report.document["results"]) == MAX_RESULTS
    assert report.document["summary"]["warn"] == MAX_RESULTS + 20
    assert report.document["configuration"] == {"limits": {"maxResults": MAX_RESULTS}}
    assert len(msgspec.json.encode(report.document)) < 1 << 20


def test_the_digest_follows_the_content() -> None:
    before, after = finding("TW007", "shop", "a"), finding("TW007", "shop", "b")
    first, again, other = (finding_reports(Snapshot({}), [each])["shop"].digest for each in (before, before, after))
    assert first == again != other


def test_a_finding_that_its_object_accepts_is_not_reported() -> None:
    def reported(**annotations: str) -> list[str]:
        tied = [admin("a", rule("Deny")), admin("b", rule("Allow")), pod("shop", "web")]
        for policy in tied[:2]:
            policy["metadata"]["annotations"] = annotations
        reports = _reports(Snapshot.of(load_objects(tied)))
        return [result["policy"] for report in reports.values() for result in report.document["results"]]

    assert "TW201" in reported()
    assert "TW201" not in reported(**{"tierwall.io/ignore": "TW201 on purpose"})
