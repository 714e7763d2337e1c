"""Writes findings as OpenReports, as the leader, where an API server has these kinds (docs/controller.md#reports).

All findings of a cluster are expensive. They are computed in a thread, once a minute at most and in a tenth of the
time, and only if something has changed that they depend on. A report is written if its digest differs, and deleted when
nothing is left to report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.discovery import ServedKind, discover
from tierwall.cluster.failures import ApiServerError, ClusterError, failure_reason
from tierwall.core.protocols import EngineReport
from tierwall.core.words import failure_words
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.finding_reports import (
    DIGEST,
    LABELS,
    NAME,
    FindingReport,
    finding_reports,
)
from tierwall.serve.controller.leadership import FencedConnection, NotLeadingError
from tierwall.serve.controller.state import ControllerContext, ControllerPart, ControllerState

INTERVAL_S = 60.0
# Computing findings takes one part in so many of the time.
_SHARE = 10
_PAGE = "500"
_GROUP, _VERSION = "openreports.io", "v1alpha1"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


class _Metadata(Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Report(Struct):
    metadata: _Metadata


class _ListMetadata(Struct, rename="camel"):
    next: str = msgspec.field(default="", name="continue")


class _ReportList(Struct):
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)
    items: list[_Report] | None = None


_LIST = msgspec.json.Decoder(_ReportList)


class ReportWriter(ControllerPart):
    """Keeps the reports of all namespaces as the findings are."""

    def __init__(self, context: ControllerContext, interval_s: float = INTERVAL_S) -> None:
        self._leadership, self._send_report = context.leadership, context.send_report
        self._connection = Connection(context.access, context.timeout)
        self._fenced = FencedConnection(self._connection, context.leadership)
        self._interval_s = interval_s
        self._judged: Snapshot | None = None
        # What the reports say, and the term in which they were last compared.
        self._reported: tuple[int, Snapshot] | None = None
        self._last_failure = ""

    def take(self, state: ControllerState) -> None:
        """Report about these objects next."""
        self._judged = state.judged

    async def run(self, stop: asyncio.Event) -> None:
        """Report until `stop` is set, while this process leads."""
        try:
            while await self._leadership.wait_to_lead(stop):
                began = time.monotonic()
                await self._report()
                seconds = time.monotonic() - began
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), max(self._interval_s, _SHARE * seconds))
        finally:
            await self._connection.close()

    async def _report(self) -> None:
        judged, term = self._judged, self._leadership.term
        if judged is None or self._reported == (term, judged):
            return
        failure = ""
        try:
            kinds = await self._kinds()
            if kinds:
                # A copy, because whoever asks this snapshot waits for whatever is computed from it.
                wanted = await asyncio.to_thread(_reports, judged.with_changes())
                for served in kinds:
                    of_kind = {key: report for key, report in wanted.items() if bool(key) is served.namespaced}
                    failure = await self._update(term, served, of_kind) or failure
                if not failure:
                    self._reported = term, judged
        except NotLeadingError:
            return
        except ClusterError as error:
            failure = failure_reason(error)
        except Exception as error:
            # Envoys, statuses and warnings must not end with reports.
            failure = failure_words(error)
        if failure and failure != self._last_failure:
            self._send_report(EngineReport(f"reports cannot be written: {failure}"))
        self._last_failure = failure

    async def _kinds(self) -> list[ServedKind]:
        served = (await discover(self._connection)).kinds
        every = (kind for name in ("Report", "ClusterReport") for kind in served.get((_GROUP, name), ()))
        return [kind for kind in every if kind.version == _VERSION]

    async def _update(self, term: int, served: ServedKind, wanted: Mapping[str, FindingReport]) -> str:
        """Write what differs of one kind, and delete what is left over; return what went wrong last."""
        existing = {report.metadata.namespace: report.metadata for report in await self._existing(served)}
        failure = ""
        for namespace in sorted({*wanted, *existing}):
            try:
                await self._settle(term, served, namespace, wanted.get(namespace), existing.get(namespace))
            except ApiServerError as error:
                # Somebody else wrote it, or its namespace is going away: the next time will show.
                if error.code not in (404, 409):
                    failure = failure_reason(error)
        return failure

    async def _settle(
        self, term: int, served: ServedKind, namespace: str, wanted: FindingReport | None, existing: _Metadata | None
    ) -> None:
        path = served.path(quote(namespace))
        if wanted is None:
            assert existing is not None
            precondition = {"preconditions": {"resourceVersion": existing.resource_version}}
            await self._fenced.send(term, "DELETE", f"{path}/{NAME}", msgspec.json.encode(precondition))
        elif existing is None:
            await self._fenced.send(term, "POST", path, msgspec.json.encode(wanted.document))
        elif (existing.annotations or {}).get(DIGEST) != wanted.digest:
            metadata = {**wanted.document["metadata"], "resourceVersion": existing.resource_version}
            document = {**wanted.document, "metadata": metadata}
            await self._fenced.send(term, "PUT", f"{path}/{NAME}", msgspec.json.encode(document))

    async def _existing(self, served: ServedKind) -> list[_Report]:
        """Return the metadata of all reports of ours."""
        selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
        query, reports = {"labelSelector": selector, "limit": _PAGE}, list[_Report]()
        while True:
            page = (await self._connection.get(served.path(), query, _METADATA)).decode(_LIST)
            reports += [report for report in page.items or () if report.metadata.name == NAME]
            if not page.metadata.next:
                return reports
            query["continue"] = page.metadata.next


def _reports(snapshot: Snapshot) -> dict[str, FindingReport]:
    """Compute all findings that nobody has accepted."""
    from tierwall.analyze.ignores import ignores
    from tierwall.analyze.review import FindingSelection, all_findings, review

    findings = review(all_findings(snapshot, ()), ignores(snapshot, (), {}), FindingSelection()).findings
    return finding_reports(snapshot, findings)
