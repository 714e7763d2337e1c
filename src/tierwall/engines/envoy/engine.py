"""Tool questions put to a real Envoy: a real request for each, through compiled policies, to a backend that records.

A question names a Gateway, a listener and a backend, not a route; so every way gets a route of its own. A caller with
an identity connects by TLS with a certificate made for it, one without by plain HTTP: what a listener's own TLS does is
not the question. The verdict is whether the request reached the backend; who decided is what Envoy says.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from envoy.config.route.v3 import route_components_pb2

from tierwall.core.diagnostics import InputError
from tierwall.core.reference import Reference
from tierwall.core.trace import DEFAULT, Step
from tierwall.core.verdict import Verdict
from tierwall.engines.envoy import clusters
from tierwall.engines.envoy.askable import obstacle
from tierwall.engines.envoy.cache import Cache
from tierwall.engines.envoy.certificates import Authority
from tierwall.engines.envoy.compile import Resources
from tierwall.engines.envoy.external_auth import Authorizer
from tierwall.engines.envoy.guards import Guards, Protection
from tierwall.engines.envoy.listeners import chain, connection_manager, http_filters, listener
from tierwall.engines.envoy.names import RBAC, SLOTS
from tierwall.engines.envoy.options import Address, Options
from tierwall.engines.envoy.recorder import AUTHORIZE, REACHED, Recorder
from tierwall.engines.envoy.routes import Destination, empty_configuration, guarded
from tierwall.engines.envoy.standalone import Standalone
from tierwall.engines.envoy.tls import Tls, transport_socket
from tierwall.policytest.run import Answer
from tierwall.policytest.suite import Suite
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.asked import read
from tierwall.tool.decide import Answers, Level
from tierwall.tool.model import Stack
from tierwall.tool.places import Way
from tierwall.tool.request import Request

WAY, TOLD, WHY = "x-tierwall-asked", "x-tierwall-told", "x-tierwall-why"
_BACKEND = "recorder"
_LARGEST_PATTERN = 10_000
_HOST = "tierwall.test"


class Asked(NamedTuple):
    """A question that can be asked: the number of its way, the request, what authorizers say, who could decide."""

    way: int
    request: Request
    answers: Answers
    stack: Stack


class Engine:
    """Asks Envoy; one is started for each suite."""

    def answers(self, suite: Suite) -> Iterator[Answer]:
        """One answer a case."""
        out: dict[int, Answer] = {}
        ways = Ways(suite.snapshot)
        asked: dict[int, Asked] = {}
        for number, case in enumerate(suite.cases):
            if case.plane != "tool":
                out[number] = Answer(skipped=f"Envoy does not answer {case.plane} questions")
                continue
            try:
                found = ways.add(case.question)
            except InputError as error:
                out[number] = Answer(error=str(error))
                continue
            if isinstance(found, str):
                out[number] = Answer(skipped=f"not testable here: {found}")
            else:
                asked[number] = found
        if asked:
            out |= dict(zip(asked, ways.ask(list(asked.values())), strict=True))
        yield from (out[number] for number in range(len(suite.cases)))


class Ways:
    """The ways of a suite's questions, and what it takes to ask about them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._policies: dict[str, int] = {}
        self._options = Options(static=True, largest_pattern=_LARGEST_PATTERN)
        self._guards = Guards(snapshot, self._options, Cache(), self._authorizer)
        self._ways: list[tuple[Way, Protection]] = []
        self._known: dict[Any, int] = {}

    def _authorizer(self, snapshot: Snapshot, policy: Resource) -> Authorizer:
        """The recorder answers for every authorizer; the policy's number in the path says for which."""
        number = self._policies.setdefault(str(policy.reference), len(self._policies))
        return Authorizer(_BACKEND, policy, number, False, {"http": {"path": f"{AUTHORIZE}{number}"}})

    def add(self, question: Mapping[str, Any]) -> Asked | str:
        """A question that can be asked, or why it cannot; InputError if it is none."""
        way, request, answers = read(self._snapshot, question)
        key = way.gateway.reference, way.listener and way.listener.name, way.backend
        if key not in self._known:
            port = way.listener.port if way.listener is not None else 0
            self._known[key] = len(self._ways)
            self._ways.append((way, self._guards.protection(way.stack, way.backend, port)))
        number = self._known[key]
        why = obstacle(request, way.stack, self._ways[number][1], question)
        return why or Asked(number, request, answers, way.stack)

    def ask(self, questions: list[Asked]) -> list[Answer]:
        """One answer a question, in order."""
        recorder = Recorder()
        authority = Authority()
        tls, plain = _free_port(), _free_port()
        resources = self._resources(recorder.address, authority, tls, plain)
        try:
            with Standalone(resources, _LARGEST_PATTERN), closing(Client(authority, tls, plain)) as client:
                return [self._ask(one, client, recorder) for one in questions]
        except InputError as error:
            return [Answer(error=str(error))] * len(questions)
        finally:
            recorder.close()

    def _ask(self, one: Asked, client: Client, recorder: Recorder) -> Answer:
        numbers = self._policies.items()
        recorder.answers = {number: one.answers[policy] for policy, number in numbers if policy in one.answers}
        before = len(recorder.requests)
        status, headers, body = client.send(one)
        return _answer(one, status, headers, body, len(recorder.requests) > before)

    def _resources(self, recorder: Address, authority: Authority, tls: int, plain: int) -> Resources:
        routes = empty_configuration("asked")
        routes.request_headers_to_remove.append(WAY)
        virtual = routes.virtual_hosts.add(name="asked", domains=["*"])
        told = routes.response_headers_to_add.add()
        told.header.key, told.header.value = TOLD, f"%DYNAMIC_METADATA({RBAC})%"
        for number, (_, protection) in enumerate(self._ways):
            route = route_components_pb2.Route(name=str(number))
            route.match.prefix = "/"
            chosen = route.match.headers.add(name=WAY)
            chosen.string_match.exact = str(number)
            destination = Destination(_BACKEND, 1, protection)
            route.route.timeout.seconds = 0
            virtual.routes.extend(guarded(route, [destination], self._options))
        manager = connection_manager(
            "asked", routes, self._options, list(http_filters(self._options, self._guards.filters()))
        )
        for mapper in manager.local_reply_config.mappers:
            for name, value in ((TOLD, f"%DYNAMIC_METADATA({RBAC})%"), (WHY, "%RESPONSE_CODE_DETAILS%")):
                header = mapper.headers_to_add.add()
                header.header.key, header.header.value = name, value
        sock, _ = transport_socket(Tls(authority.server(), authority.pem, True), "asked", static=True)
        made = {
            "tls": listener("tls", Address("127.0.0.1", tls), [chain("tls", manager, sock, "")]),
            "plain": listener("plain", Address("127.0.0.1", plain), [chain("plain", manager, None, "")]),
        }
        return Resources(made, {}, {_BACKEND: clusters.cluster(_BACKEND, recorder)}, {}, {}, {})


class Client:
    """Sends requests as any caller, over connections that are kept."""

    def __init__(self, authority: Authority, tls: int, plain: int) -> None:
        self._authority = authority
        self._tls, self._plain = tls, plain
        self._open: dict[str | None, http.client.HTTPConnection] = {}

    def send(self, asked: Asked) -> tuple[int, Mapping[str, str], bytes]:
        """The answer to a question's request: status code, headers and body."""
        request = asked.request
        body = json.dumps(message(request)).encode() if request.method is not None else b""
        headers = {WAY: str(asked.way), "host": request.host or _HOST}
        if body:
            headers |= {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        headers |= request.headers
        if body or request.http_method in ("POST", "PUT", "PATCH"):
            headers["content-length"] = str(len(body))
        connection = self._open.pop(request.caller, None) or self._connect(request.caller)
        for name, value in (("", ""), *headers.items()):
            if not name:
                connection.putrequest(request.http_method, request.path, skip_host=True, skip_accept_encoding=True)
            else:
                connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        if answer.will_close:
            connection.close()
        else:
            self._open[request.caller] = connection
        return found

    def close(self) -> None:
        """Close the connections."""
        for one in self._open.values():
            one.close()

    def _connect(self, caller: str | None) -> http.client.HTTPConnection:
        if caller is None:
            return http.client.HTTPConnection("127.0.0.1", self._plain, timeout=10)
        return http.client.HTTPSConnection("127.0.0.1", self._tls, timeout=10, context=self._authority.context(caller))


def message(request: Request) -> dict[str, Any]:
    """The JSON-RPC message of a request."""
    params: dict[str, Any] = {}
    if request.tool is not None:
        params["name"] = request.tool
    if request.uri is not None:
        params["uri"] = request.uri
    if request.arguments is not None:
        params["arguments"] = request.arguments
    return {"jsonrpc": "2.0", "id": 1, "method": request.method, "params": params}


def _answer(asked: Asked, status: int, headers: Mapping[str, str], body: bytes, reached: bool) -> Answer:
    if reached != (headers.get(REACHED) == "1"):
        return Answer(error=f"the backend was {'' if reached else 'not '}reached, but the answer is {status}")
    told = headers.get(TOLD, "")
    found: Mapping[str, str] = json.loads(told) if told.startswith("{") else {}
    if not reached and status in (400, 413) and WHY not in headers:
        return (
            Answer(_unread(asked, body))
            if (asked.stack.gateway or asked.stack.backend)
            else Answer(error=f"Envoy answers {status}: {body[:200].decode(errors='replace')}")
        )
    looked: list[tuple[Level, str, str]] = []
    for slot in SLOTS:
        decided = found.get(slot.asked if found.get(slot.asks) == "allowed" else slot.decider)
        if decided is not None:
            policy, _, rule = decided.partition(" ")
            looked.append((Level(slot.level.capitalize()), policy, rule or "spec"))
    if not reached:
        denier = _denier(headers.get(WHY, ""))
        if denier:
            in_gateway = any(one.reference == denier for one in asked.stack.gateway)
            looked.append((Level.GATEWAY if in_gateway else Level.BACKEND, denier, "spec"))
        elif headers.get(WHY, "").startswith("ext_authz"):
            # The authorizer that denied is the last that was asked.
            pass
        else:
            return Answer(error=f"Envoy answers {status}: {body[:200].decode(errors='replace')}")
    return Answer(_document(Verdict.ALLOW if reached else Verdict.DENY, looked, status))


def _denier(why: str) -> str:
    return why.partition("[")[2].rstrip("]") if why.startswith("rbac_access_denied") else ""


def _unread(asked: Asked, body: bytes) -> dict[str, Any]:
    """The first policy denies what Envoy did not read (docs/semantics.md#messages-that-cannot-be-read-are-denied)."""
    level = Level.GATEWAY if asked.stack.gateway else Level.BACKEND
    first = (*asked.stack.gateway, *asked.stack.backend)[0]
    return _document(Verdict.DENY, [(level, first.reference, "spec")], 400)


def _document(verdict: Verdict, looked: list[tuple[Level, str, str]], status: int) -> dict[str, Any]:
    settling = looked[-1:] if verdict is Verdict.DENY else looked
    denied = len(looked) - 1 if verdict is Verdict.DENY else len(looked)
    return {
        "verdict": str(verdict),
        "decidedBy": [{"policy": policy, "rule": rule} for _, policy, rule in settling] or [DEFAULT.document()],
        "level": str(looked[-1][0] if looked else Level.DEFAULT),
        "evaluated": [policy for _, policy, _ in looked],
        "trace": [
            Step(str(level), "allowed" if number < denied else "denied", _reference(policy), rule).document()
            for number, (level, policy, rule) in enumerate(looked)
        ],
        "response": {"status": status},
    }


def _reference(text: str) -> Reference:
    kind, namespace, name = text.split("/", 2)
    return Reference(kind, namespace, name)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
