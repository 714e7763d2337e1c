"""Puts gateway questions to a real Envoy: observes each setting on requests to the place that a question names.

Every field is observed by itself (`staging`). Its requests tell the values apart that policies set: the value that
explains what was seen is the answer, even if it is a loser's. Fields that no request shows are named, and a case that
expects something of them is skipped (docs/policy-tests.md#output).
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from tierwall.attach.place import BACKEND
from tierwall.core.answer import Answer
from tierwall.core.protocols import EngineReply
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.probe.field_probe import (
    CASE,
    MAX_PROGRAM_SIZE,
    OBSERVED,
    FieldProbe,
    ObservedSetting,
    Services,
    policies_of,
)
from tierwall.engines.envoy.probe.observations import ObservedAnswer, Unobservable
from tierwall.engines.envoy.probe.recorder import RecordingBackend
from tierwall.engines.envoy.probe.recording_service import RecordingService
from tierwall.engines.envoy.probe.services import OVER_GRPC, service_of
from tierwall.engines.envoy.probe.standalone import StandaloneEnvoy
from tierwall.engines.probe import EngineProbe
from tierwall.gateway.model.conditional import RequestFacts
from tierwall.gateway.model.fields import FIELDS, PHASES, Phase, Profile, Section, fields_written_by, written_fields
from tierwall.gateway.model.places import RequestPlace
from tierwall.gateway.question import GatewayQuestion, ask, place_asked_about
from tierwall.resources.snapshot import Snapshot

_PATIENCE_S = 20
_HOST = "tierwall.test"
_UNSEEN = "no request shows it"
# Why a test does not observe a field that Envoy enforces, where more than that can be said.
_WHY_UNSEEN: Mapping[str, str] = {
    "frontend.accessLog": "a test has no collector of records",
    "frontend.tracing": "a test has no collector of spans",
    "backend.mcp.authentication": "a test has no tokens for MCP servers",
}
_NOT_CONFLICTS = "Envoy shows which settings are in force, not which policies conflict"


class GatewayCase(NamedTuple):
    """A question with its place and the model's answer."""

    question: GatewayQuestion
    place: RequestPlace
    answer: Answer


class GatewayProbe(EngineProbe[GatewayCase]):
    """Observes the settings at the places of questions about one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._stages: dict[tuple[str, Profile, Phase], FieldProbe] = {}

    def read(self, question: GatewayQuestion) -> GatewayCase:
        """Return the place and the model's answer; InputError names everything wrong with the question."""
        answer = ask(self._snapshot, question)
        return GatewayCase(question, place_asked_about(self._snapshot, question), answer)

    def obstacle(self, case: GatewayCase) -> str:
        """Return why no request can go to the place of a question, or an empty string."""
        return ""

    def ask(self, cases: Sequence[GatewayCase]) -> Iterator[EngineReply]:
        """Start an Envoy with the places of all cases, and observe every field there; InputError if it refuses."""
        staged = [[self._stage(number, case, path) for path in self._fields(case)] for number, case in enumerate(cases)]
        with ExitStack() as stack:
            recorder = stack.enter_context(closing(RecordingBackend()))
            over_http = set(self._services("traffic.extAuth"))
            over_grpc = {name for field in OVER_GRPC for name in self._services(field)}
            answering = Services(
                {name: stack.enter_context(closing(RecordingBackend())) for name in sorted(over_http)},
                {name: stack.enter_context(closing(RecordingService())) for name in sorted(over_grpc)},
            )
            listeners: dict[str, Any] = {}
            clusters: dict[str, Any] = {}
            for stage in self._stages.values():
                listeners |= stage.listeners(recorder.address, answering)
                clusters |= stage.clusters
            ports: Mapping[str, int] = {}
            if listeners:
                resources = XdsResources(listeners, clusters=clusters)
                ports = stack.enter_context(StandaloneEnvoy(resources, MAX_PROGRAM_SIZE)).ports()
            for number, (case, stages) in enumerate(zip(cases, staged, strict=True)):
                effective = case.answer.detail.effective
                facts = RequestFacts(case.question.request)
                observed = []
                for path, stage in zip(self._fields(case), stages, strict=True):
                    client = PlaceClient(ports.get(stage.port(number), 0), number, recorder)
                    observed.append(stage.observe(number, effective.get(path), client, answering, facts))
                yield _reply(case.answer, observed)

    def _stage(self, number: int, case: GatewayCase, path: str) -> FieldProbe:
        """Return the stage of a field, with the place of a case on it."""
        # Both may be null in a policy test, for the default.
        profile, phase = case.answer.detail.profile, case.answer.detail.phase
        key = path, profile, phase
        if key not in self._stages:
            self._stages[key] = FieldProbe(self._snapshot, FIELDS[path], profile, phase)
        self._stages[key].add(number, case.place)
        return self._stages[key]

    def _fields(self, case: GatewayCase) -> list[str]:
        """Return the fields to observe: those that any policy sets, because a loser's value must not be seen."""
        return [path for path in FIELDS if path in self._written(case.answer.detail.phase)]

    def _written(self, phase: Phase) -> set[str]:
        sections: tuple[Section, ...] = ("frontend", "traffic", "backend")
        every = (
            fields_written_by(policy, section, phase) for policy in policies_of(self._snapshot) for section in sections
        )
        # A list has every part of a property, and its entries may lack some.
        set_somewhere = (
            item
            for written in every
            for item in written
            if item.entries is None or any(map(item.has_part, item.entries))
        )
        inline = (
            item.field.path
            for backend in self._snapshot.of_kind(*BACKEND)
            for item in written_fields("backend", backend.spec.get("policies"))
        )
        return {*(item.field.path for item in set_somewhere), *inline} & OBSERVED

    def _services(self, field: str) -> Iterator[str]:
        """Yield the Services that a field of policies asks about requests, as `namespace/name`."""
        for policy in policies_of(self._snapshot):
            for written in (item for phase in PHASES for item in fields_written_by(policy, "traffic", phase)):
                entries = [written.entry_value(entry.get("policy")) for entry in written.entries or ()]
                for value in [written.value, *entries] if written.field.path == field else ():
                    if isinstance(value, dict):
                        with suppress(Unobservable):
                            yield service_of(policy, value)


class PlaceClient:
    """Sends requests to the place of a case, and tells what reached the backend."""

    def __init__(self, port: int, case: int, recorder: RecordingBackend) -> None:
        self._port = port
        self._case = case
        self._recorder = recorder

    def send(
        self,
        method: str = "GET",
        path: str = "/",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        status: int = 200,
        answer: Mapping[str, str] | None = None,
        silent: bool = False,
    ) -> ObservedAnswer:
        """Send a request; the backend answers with this status and these headers, or is silent."""
        recorder = self._recorder
        recorder.status, recorder.headers = status, answer or {}
        if silent:
            recorder.speaks.clear()
        before = len(recorder.requests)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        start = time.monotonic_ns()
        try:
            # A body is always given, so that the request has a length.
            has_body = body or method not in ("GET", "OPTIONS")
            given = {"host": _HOST, **(headers or {}), CASE: str(self._case)}
            connection.request(method, path, body if has_body else None, given)
            reply = connection.getresponse()
            content = reply.read()
        finally:
            recorder.speaks.set()
            connection.close()
        names = {name.lower(): value for name, value in reply.getheaders()}
        arrived = tuple(recorder.requests[before:])
        return ObservedAnswer(reply.status, names, content, arrived, time.monotonic_ns() - start)

    def connects_from(self, address: str) -> bool:
        """Whether a request of a client with this address, as a proxy says, reaches the backend."""
        family = f"TCP6 {address} ::1" if ":" in address else f"TCP4 {address} 127.0.0.1"
        before = len(self._recorder.requests)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        with closing(connection), suppress(ConnectionError, http.client.HTTPException):
            connection.connect()
            connection.sock.sendall(f"PROXY {family} 5 80\r\n".encode())
            connection.request("GET", "/", headers={"host": _HOST, CASE: str(self._case)})
            connection.getresponse().read()
        return len(self._recorder.requests) > before


def _reply(answer: Answer, observed: Sequence[ObservedSetting]) -> EngineReply:
    """Return the model's answer with the settings that were observed in place of its own."""
    detail = answer.detail
    by_field = {item.field: item for item in observed}
    errors = [item.error for item in observed if item.error]
    if errors:
        return EngineReply(error="; ".join(errors))
    unasked = {
        path: _WHY_UNSEEN.get(path, _UNSEEN) for path in FIELDS if path not in by_field and path in detail.effective
    }
    unasked |= {item.field: item.unasked for item in observed if item.unasked}
    seen = {item.field: item.setting for item in observed if not item.unasked}
    effective = {path: setting for path, setting in detail.effective.items() if path not in seen}
    effective |= {path: setting for path, setting in seen.items() if setting is not None}
    in_order = {path: effective[path] for path in FIELDS if path in effective}
    shown = replace(answer, detail=replace(detail, effective=MappingProxyType(in_order)))
    return EngineReply(shown, unasked={**unasked, "conflicts": _NOT_CONFLICTS})
