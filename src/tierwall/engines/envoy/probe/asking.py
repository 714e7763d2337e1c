"""Puts tool questions to a real Envoy: sends each as a real request through compiled policies to a recording backend.

A question names a Gateway, a listener and a backend, but no route. So every way gets its own route. A caller with an
identity connects over TLS with a certificate made for it, and a caller without one over plain HTTP: the listener's own
TLS is not part of the question. The verdict is whether the request reached the backend. Envoy reports who decided.
Questions that no real request can put to Envoy are skipped with a reason (docs/policy-tests.md#output).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from envoy.config.route.v3 import route_components_pb2

from tierwall.core.answer import Reason
from tierwall.core.protocols import EngineReply
from tierwall.core.reference import Reference
from tierwall.core.stack import Stack
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.engines.envoy.config import clusters
from tierwall.engines.envoy.config.checkpoints import PolicyFilters
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.connection_manager import connection_manager, http_filters
from tierwall.engines.envoy.config.external_auth import AuthorizationService
from tierwall.engines.envoy.config.listeners import filter_chain, listener
from tierwall.engines.envoy.config.names import RBAC, Slot
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.config.policy_compiler import PolicyCompiler, Protection
from tierwall.engines.envoy.config.rbac import denier_name, rule_name
from tierwall.engines.envoy.config.routes import Destination, empty_configuration, protected_routes
from tierwall.engines.envoy.config.tls import ListenerTls, transport_socket
from tierwall.engines.envoy.probe.client import CertificateAuthority, Client
from tierwall.engines.envoy.probe.recorder import AUTHORIZE, REACHED, RecordingBackend
from tierwall.engines.envoy.probe.standalone import StandaloneEnvoy
from tierwall.engines.probe import EngineProbe
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.decide import AuthorizerAnswers, PolicyEvaluation, ToolDecision
from tierwall.tool.protocol import ANSWER, COMPLETE
from tierwall.tool.question import ToolQuestion, answer, read_question
from tierwall.tool.request import ToolRequest
from tierwall.tool.rules import AccessPolicy, AccessRule
from tierwall.tool.ways import GuardedWay

# Listeners remove `x-tierwall-` headers of clients, and this one comes from the probing client.
CASE = "tierwall-case"
RESULTS, REASON = "x-tierwall-results", "x-tierwall-reason"
_BACKEND = "recorder"
_OF_COMPILING = "TW6"
_ANY_PORT = SocketAddress("127.0.0.1", 0)
_MAX_PROGRAM_SIZE = 10_000

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"))
# Every request has these headers, whatever the question: the client must send them, or Envoy adds them.
ALWAYS = frozenset(("accept", "content-type", "content-length", "host"))
_OF_CONNECTIONS = frozenset(
    ("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "proxy-connection", "via")
)
_OF_ENVOY = ("x-forwarded-", "x-envoy-", "x-request-id", "x-tierwall-", CASE, "x-http-method", "x-method-override")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]+", re.ASCII)
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?", re.ASCII)
_METHOD = re.compile(r"[!-~]+", re.ASCII)
_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@-]*)+(\?[!-~]*)?", re.ASCII)
_SPELT = frozenset(("tools/call", "tools/list", "prompts/get", "prompts/list", "resources/read", "resources/list")) | {
    "resources/subscribe",
    "resources/unsubscribe",
    "resources/templates/list",
}


class PolicySlot(NamedTuple):
    """A policy on a way: its level, and the slot in which Envoy reports its result."""

    level: str
    policy: AccessPolicy
    slot: Slot


class EnvoyCase(NamedTuple):
    """A question as a request, with its way, the number of the way, and the answers of authorizers."""

    question: ToolQuestion
    number: int
    way: GuardedWay
    protection: Protection
    request: ToolRequest
    external_auth: AuthorizerAnswers

    @property
    def policies(self) -> tuple[PolicySlot, ...]:
        """The policies on the way, in order. Each level with policies has a checkpoint."""
        tiers = [tier for tier in self.way.stack if tier.policies]
        return tuple(
            PolicySlot(tier.name, policy, slot)
            for tier, checkpoint in zip(tiers, self.protection.checkpoints, strict=True)
            for policy, slot in zip(tier.policies, checkpoint.slots, strict=True)
        )


class EnvoyProbe(EngineProbe[EnvoyCase]):
    """Sends questions about one snapshot as requests; every way that they name gets its own route."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._policies: dict[Reference, int] = {}
        self._options = EnvoyOptions(static=True, max_program_size=_MAX_PROGRAM_SIZE)
        self._compiler = PolicyCompiler(snapshot, self._options, find_authorizer=self._authorizer)
        self._ways: dict[Any, tuple[int, Protection]] = {}

    def _authorizer(self, snapshot: Snapshot, policy: Resource) -> AuthorizationService:
        """Return the recording backend, which answers for every authorizer; the path contains the policy's number."""
        number = self._policies.setdefault(policy.reference, len(self._policies))
        return AuthorizationService(_BACKEND, policy, number, False, {"http": {"path": f"{AUTHORIZE}{number}"}})

    def read(self, question: ToolQuestion) -> EnvoyCase:
        """Return the request of a question; InputError names everything wrong with it."""
        way, request, external_auth = read_question(self._snapshot, question, [])
        key = way.gateway.reference, way.listener and way.listener.name, way.backend
        if key not in self._ways:
            port = way.listener.port if way.listener is not None else 0
            self._ways[key] = len(self._ways), self._compiler.protection(way.stack, way.backend, port)
        number, protection = self._ways[key]
        return EnvoyCase(question, number, way, protection, request, external_auth)

    def obstacle(self, case: EnvoyCase) -> str:
        """Return why a question cannot be put to Envoy as a request, or an empty string."""
        return next(_obstacles(case), "")

    def ask(self, cases: Sequence[EnvoyCase]) -> Iterator[EngineReply]:
        """Start an Envoy and send it every request; InputError if it does not start."""
        authority = CertificateAuthority()
        with closing(RecordingBackend()) as recorder:
            resources = self._resources(recorder.address, authority)
            with (
                StandaloneEnvoy(resources, _MAX_PROGRAM_SIZE) as envoy,
                closing(Client(authority, envoy.ports())) as client,
            ):
                for case in cases:
                    recorder.answers = {
                        number: case.external_auth[policy]
                        for policy, number in self._policies.items()
                        if policy in case.external_auth
                    }
                    before = len(recorder.requests)
                    status, headers, body = client.send(case.request, {CASE: str(case.number)})
                    yield _answer(case, status, headers, body, len(recorder.requests) > before)

    def _resources(self, recorder: SocketAddress, authority: CertificateAuthority) -> XdsResources:
        routes = empty_configuration("asked")
        routes.request_headers_to_remove.append(CASE)
        virtual = routes.virtual_hosts.add(name="asked", domains=["*"])
        results = {"key": RESULTS, "value": f"%DYNAMIC_METADATA({RBAC})%"}
        routes.response_headers_to_add.add(header=results)
        for number, protection in self._ways.values():
            route = route_components_pb2.Route(name=str(number))
            route.match.prefix = "/"
            route.match.headers.add(name=CASE, string_match={"exact": str(number)})
            route.route.timeout.seconds = 0
            virtual.routes.extend(protected_routes(route, [Destination(_BACKEND, 1, protection)], self._options))
        policies = PolicyFilters.of(self._compiler.checkpoints).messages
        manager = connection_manager("asked", routes, self._options, list(http_filters(self._options, policies)))
        for mapper in manager.local_reply_config.mappers:
            mapper.headers_to_add.add(header=results)
            mapper.headers_to_add.add(header={"key": REASON, "value": "%RESPONSE_CODE_DETAILS%"})
        sock, _ = transport_socket(ListenerTls(authority.server(), authority.pem, True), "asked", static=True)
        listeners = {
            "tls": listener("tls", _ANY_PORT, [filter_chain("tls", manager, sock, "")]),
            "plain": listener("plain", _ANY_PORT, [filter_chain("plain", manager, None, "")]),
        }
        return XdsResources(listeners, clusters={_BACKEND: clusters.cluster(_BACKEND, recorder)})


def _answer(case: EnvoyCase, status: int, headers: Mapping[str, str], body: bytes, reached: bool) -> EngineReply:
    if reached != (headers.get(REACHED) == "1"):
        return EngineReply(error=f"the backend was {'' if reached else 'not '}reached, but the answer is {status}")
    if not reached and status in (400, 413) and REASON not in headers and case.policies:
        # Envoy did not read the message: the first policy denies it
        # (docs/semantics.md#messages-that-cannot-be-read-are-denied).
        level, policy, _ = case.policies[0]
        unread = PolicyEvaluation(level, policy, StepVerdict.DENY, Reason.NOT_READ_AS_MCP)
        return EngineReply(answer(case.way, ToolDecision(case.request, Verdict.DENY, (unread,)), status))
    results = headers.get(RESULTS, "")
    metadata: Mapping[str, str] = json.loads(results) if results.startswith("{") else {}
    evaluated = list(_allowing(case, metadata))
    if not reached:
        denial = _denial(case, evaluated, headers.get(REASON, ""))
        if denial is None:
            return EngineReply(error=f"Envoy answers {status}: {body[:200].decode(errors='replace')}")
        evaluated = denial
    verdict = Verdict.ALLOW if reached else Verdict.DENY
    return EngineReply(answer(case.way, ToolDecision(case.request, verdict, tuple(evaluated)), status))


def _allowing(case: EnvoyCase, metadata: Mapping[str, str]) -> Iterator[PolicyEvaluation]:
    """Yield the policies that, as Envoy reports, allowed the request or asked their authorizer about it."""
    for level, policy, slot in case.policies:
        is_asked = metadata.get(slot.asks) == "allowed"
        name = metadata.get(slot.asked if is_asked else slot.decider)
        if name is None:
            return
        rule = _rule(policy, name)
        reason = Reason.NOT_SELECTED if policy.only_asks else Reason.RULE_MATCHED
        yield PolicyEvaluation(
            level, policy, StepVerdict.ALLOW, Reason.AUTHORIZER_ALLOWED if is_asked else reason, rule
        )


def _rule(policy: AccessPolicy, name: str) -> AccessRule:
    """Return the rule with this name in Envoy."""
    return {rule_name(policy, rule): rule for rule in (*policy.allows.all, *policy.asks.all)}[name]


def _denial(case: EnvoyCase, evaluated: list[PolicyEvaluation], why: str) -> list[PolicyEvaluation] | None:
    """Return the evaluations with that of the policy that denied, as Envoy reports it; None if no policy denied."""
    slot = case.policies[len(evaluated)] if len(evaluated) < len(case.policies) else None
    if slot is not None and why == f"rbac_access_denied_matched_policy[{denier_name(slot.policy)}]":
        reason = Reason.FAILS_CLOSED if slot.policy.closed else Reason.NO_RULE_MATCHED
        return [*evaluated, PolicyEvaluation(slot.level, slot.policy, StepVerdict.DENY, reason)]
    if evaluated and evaluated[-1].reason is Reason.AUTHORIZER_ALLOWED and why.startswith("ext_authz"):
        # The last authorizer asked is the one that denied.
        *before, last = evaluated
        reason = Reason.AUTHORIZER_DENIED if why == "ext_authz_denied" else Reason.AUTHORIZER_UNREACHABLE
        return [*before, PolicyEvaluation(last.level, last.policy, StepVerdict.DENY, reason, last.rule)]
    return None


def _obstacles(case: EnvoyCase) -> Iterator[str]:
    """Yield every reason why a case cannot be sent as it is."""
    request, protection = case.request, case.protection
    for diagnostic in protection.diagnostics:
        # Envoy is stricter than the model there. A policy that is closed in both can be asked about.
        if diagnostic.code.startswith(_OF_COMPILING):
            yield diagnostic.message
    if case.question.time is not None:
        yield "Envoy uses its own clock"
    if request.http_method not in METHODS:
        yield f"HTTP method `{request.http_method}` cannot be sent"
    if request.method is not None and request.http_method != "POST":
        yield f"MCP messages are sent by POST, not {request.http_method}"
    if request.method is None and request.http_method == "POST" and protection.is_needed:
        yield "with policies, every POST must be an MCP message"
    if request.method is not None and _is_misspelled(request.method):
        yield f"method {request.method!r} is refused as a misspelling"
    if request.method == COMPLETE and request.tool is not None and request.uri is not None:
        yield "a completion is about a prompt or about a template, not both"
    if request.method == ANSWER:
        yield "answers are not asked about"
    if request.backend.targets and not request.target and (request.tool is not None or request.uri is not None):
        yield "a name of no joined server goes nowhere, whatever policies say"
    if _has_empty_key(request.arguments):
        yield "arguments with empty keys are refused"
    if not _PATH.fullmatch(request.path) or "//" in request.path or re.search(r"/\.{1,2}(/|\?|$)", request.path):
        yield f"path `{request.path}` is normalised before policies see it"
    yield from _header_obstacles(request, case.way.stack)
    yield from _argument_obstacles(request, protection)
    for name, text in (("tool", request.tool), ("uri", request.uri), ("method", request.method)):
        if text is not None and (not text or any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in text)):
            yield f"{name} {text!r} cannot be put in a header"
        elif text is not None and (text != text.strip() or any(_is_wide_blank(char) for char in text)):
            yield f"{name} {text!r} is refused for its blanks"


def _is_misspelled(method: str) -> bool:
    return method not in _SPELT and (method.lower() in _SPELT or not _METHOD.fullmatch(method))


def _is_wide_blank(char: str) -> bool:
    return ord(char) > 127 and unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cf")


def _has_empty_key(value: object) -> bool:
    if isinstance(value, Mapping):
        return "" in value or any(map(_has_empty_key, value.values()))
    return isinstance(value, list) and any(map(_has_empty_key, value))


def _header_obstacles(request: ToolRequest, stack: Stack[AccessPolicy]) -> Iterator[str]:
    for name, value in request.headers.items():
        if name in _OF_CONNECTIONS or name in ("host", "content-length") or name.startswith(_OF_ENVOY):
            yield f"callers cannot send header `{name}`"
        elif not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            yield f"header `{name}` cannot be sent unchanged"
    tested = tested_headers(stack)
    for name in sorted(ALWAYS - request.headers.keys()):
        if name in tested and (name != "host" or request.host is None):
            yield f"every request has a header `{name}`"
    if any(name.startswith(_OF_ENVOY) for name in tested):
        yield "Envoy sets a header that a rule tests"
    if request.host is not None and not re.fullmatch(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?", request.host):
        yield f"host `{request.host}` cannot be sent"


def tested_headers(stack: Stack[AccessPolicy]) -> set[str]:
    """Return the headers that rules test, including `host` if they test the host."""
    headers: set[str] = set()
    policies = [policy for tier in stack for policy in tier.policies]
    for rule in (rule for policy in policies for rule in (*policy.allows.all, *policy.asks.all)):
        headers |= {header.name for header in rule.http.headers} | ({"host"} if rule.http.hosts else set())
        for method in rule.methods:
            if method.condition is not None:
                text = method.condition.text
                headers |= {name for name in ALWAYS if name in text} | {name for name in _OF_ENVOY if name in text}
                # The number of headers depends on those that every request has.
                headers |= {"accept"} if "request.headers" in text and "size" in text else set()
    return headers


def _argument_obstacles(request: ToolRequest, protection: Protection) -> Iterator[str]:
    for path in protection.arguments:
        value: Any = request.arguments
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, list | Mapping):
            yield f"Envoy does not read lists and objects, such as argument `{'.'.join(path)}`"
        if isinstance(value, int) and abs(value) >= 1 << 53:
            yield f"Envoy reads argument `{'.'.join(path)}` as a double"
