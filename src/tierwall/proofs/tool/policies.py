"""The AccessPolicies of a way as a circuit: when every one of them allows an unknown request (`tool.decide`).

What an external authorizer answers is free, one answer for each policy that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import assert_never

from tierwall.core.reference import Reference
from tierwall.core.stack import Stack
from tierwall.logic.cel.language import StringView
from tierwall.logic.cel.unknown import ValueKind
from tierwall.logic.circuit import FALSE, TRUE
from tierwall.logic.unsupported import Unsupported, WorldLimit
from tierwall.proofs.tool.call import JudgedRequest, UnknownCall
from tierwall.tool.http_match import EXACT, PREFIX, HeaderMatch, HttpMatch, StringMatch
from tierwall.tool.methods import (
    BASE_METHODS,
    BASE_PREFIXES,
    AllButCalls,
    AnythingClause,
    BaseProtocol,
    Clause,
    MethodCategory,
    MethodClause,
    SessionRequest,
)
from tierwall.tool.protocol import BY_URI, CALL, COMPLETE, GET_PROMPT, TASK_METHODS
from tierwall.tool.rules import AccessPolicy, AccessRule, AccessRules, AnyCaller, CallerIdentity, RuleSource


class PolicyCircuit:
    """Writes the policies of ways down, for one request."""

    def __init__(self, call: UnknownCall) -> None:
        self._call = call
        self._circuit = call.circuit
        self._request = JudgedRequest(call)
        self._prompt = JudgedRequest(call, GET_PROMPT)
        self._resources = [JudgedRequest(call, method) for method in sorted(BY_URI)]
        self._completes = call.method_in((COMPLETE,))
        self._answers: dict[Reference, int] = {}
        # The policy that is being written down.
        self._policy_name = ""

    @property
    def answers(self) -> Mapping[Reference, int]:
        """The literals that say that an authorizer allows, by the policy that asks it."""
        return self._answers

    def allows(self, stack: Stack[AccessPolicy]) -> int:
        """Return whether every policy allows the request."""
        return self._circuit.all_of(self._policy(policy) for tier in stack for policy in tier.policies)

    def _policy(self, policy: AccessPolicy) -> int:
        if policy.closed:
            return FALSE
        all_of, self._policy_name = self._circuit.all_of, str(policy.reference)
        granted = all_of((-self._call.unreadable, self._match(policy.allows)))
        if not policy.asks.all or granted == FALSE:
            return granted
        asks = self._match_any(policy.asks)
        if policy.reference not in self._answers:
            self._answers[policy.reference] = self._circuit.variable()
        return all_of((granted, self._circuit.any_of((-asks, self._answers[policy.reference]))))

    def _match(self, rules: AccessRules) -> int:
        """`AccessRules.match`: some rule fits the request, and one each what a completion is about."""
        implies, any_of = self._circuit.implies, self._circuit.any_of
        prompt = self._circuit.all_of((self._completes, self._call.tool.present))
        resource = self._circuit.all_of((self._completes, self._call.uri.is_kind(ValueKind.STRING)))
        needed = [any_of(self._fits(rule, self._request) for rule in rules.all)]
        needed.append(implies(prompt, any_of(self._fits(rule, self._prompt) for rule in rules.all)))
        uses = any_of(self._fits(rule, use) for rule in rules.all for use in self._resources)
        return self._circuit.all_of((*needed, implies(resource, uses)))

    def _match_any(self, rules: AccessRules) -> int:
        """`AccessRules.match_any`: some rule fits the request, or something that a completion is about."""
        all_of = self._circuit.all_of
        ways = [self._fits(rule, self._request) for rule in rules.all]
        prompt = self._circuit.any_of(self._fits(rule, self._prompt) for rule in rules.all)
        ways.append(all_of((self._completes, self._call.tool.present, prompt)))
        uses = self._circuit.any_of(self._fits(rule, use) for rule in rules.all for use in self._resources)
        ways.append(all_of((self._completes, self._call.uri.is_kind(ValueKind.STRING), uses)))
        return self._circuit.any_of(ways)

    def _fits(self, rule: AccessRule, use: JudgedRequest) -> int:
        source, http = self._source(rule.source), self._http(rule.http)
        if FALSE in (source, http):
            return FALSE
        clauses = self._circuit.any_of(self._clause(clause, use, rule) for clause in rule.clauses)
        return self._circuit.all_of((source, http, clauses))

    def _source(self, source: RuleSource) -> int:
        if isinstance(source, AnyCaller):
            return TRUE
        if not isinstance(source, CallerIdentity):
            return FALSE
        caller = self._call.caller
        language = self._call.world.languages.constant(source.spiffe)
        return self._circuit.all_of((caller.is_kind(ValueKind.STRING), caller.in_language(language)))

    def _clause(self, clause: Clause, use: JudgedRequest, rule: AccessRule) -> int:
        all_of, any_of = self._circuit.all_of, self._circuit.any_of
        match clause:
            case AnythingClause():
                return TRUE
            case SessionRequest():
                return all_of((-use.is_rpc, self._call.is_session_http()))
            case BaseProtocol():
                methods = [use.judged_in(BASE_METHODS), *map(use.judged_starts, BASE_PREFIXES)]
                plain = all_of((-use.is_rpc, self._call.is_session_http()))
                return any_of((plain, all_of((use.is_rpc, any_of(methods)))))
            case AllButCalls():
                return all_of((use.is_rpc, -use.is_method(CALL)))
            case MethodCategory(name=name):
                tasks = use.judged_in(TASK_METHODS) if name == "tools" else FALSE
                return any_of((use.judged_starts(f"{name}/"), tasks))
            case MethodClause():
                return self._method_clause(clause, use, rule)
            case _:
                assert_never(clause)

    def _method_clause(self, clause: MethodClause, use: JudgedRequest, rule: AccessRule) -> int:
        tasks = use.judged_in(TASK_METHODS) if clause.grants_tasks(self._call.backend) else FALSE
        needed = [use.judged_in((clause.name,))]
        if FALSE in needed:
            return tasks
        if clause.names is not None:
            needed.append(use.named_in(clause.names.at(self._call.backend)))
        if clause.condition is not None:
            place = f"{self._policy_name} {rule.label} of the expression {clause.condition}"
            needed.append(self._call.is_true(clause.condition.program.tree, place))
        return self._circuit.any_of((self._circuit.all_of(needed), tasks))

    def _http(self, http: HttpMatch) -> int:
        call, languages = self._call, self._call.world.languages
        needed: list[int] = []
        if http.methods:
            needed.append(call.http_method.in_language(languages.one_of(sorted(http.methods))))
        if http.ports:
            needed.append(TRUE if call.port in http.ports else FALSE)
        if http.hosts:
            hosts = self._circuit.any_of(
                self._tested(("host", host), partial(self._host, host)) for host in sorted(http.hosts)
            )
            needed.append(self._circuit.all_of((call.host.present, hosts)))
        needed += [self._tested(("header", header), partial(self._header, header)) for header in http.headers]
        if http.paths:
            needed.append(
                self._circuit.any_of(self._tested(("path", path), partial(self._path, path)) for path in http.paths)
            )
        return self._circuit.all_of(needed)

    def _tested(self, key: Hashable, test: Callable[[], int]) -> int:
        """Return the literal of a test; one that has no translation may hold or not."""
        opened = self._call.opened
        if opened is None:
            return test()
        if key not in opened.given_up:
            try:
                with self._call.world.owned_by(key):
                    return test()
            except WorldLimit:
                raise
            except Unsupported as error:
                opened.given_up[key] = error
        with opened.described(lambda error: f"{error.construct} in {self._policy_name}"):
            return opened.test(key, opened.given_up[key])

    def _header(self, header: HeaderMatch) -> int:
        element = self._call.header(header.name)
        return self._circuit.all_of((element.present, element.value.in_language(self._string(header.value))))

    def _path(self, path: StringMatch) -> int:
        return self._call.has_url_path(self._string(path))

    def _host(self, host: str) -> int:
        """`host_matches` on the Host header, which may have capitals and a port."""
        languages = self._call.world.languages
        if ":" in host:
            raise Unsupported(f"host `{host}`")
        below = host.startswith("*.")
        name = "".join(f"[{char}]" if char not in "\\^]" else f"\\{char}" for char in host.removeprefix("*"))
        pattern = f".+{name}|[^:]+{name}:[0-9]+" if below else f"{name}(:[0-9]+)?"
        language = languages.matching(pattern, whole=True)
        return self._call.host.value.in_language(languages.before(language, StringView.LOWER))

    def _string(self, match: StringMatch) -> int:
        languages = self._call.world.languages
        if match.type is EXACT:
            return languages.constant(match.value)
        if match.type is PREFIX:
            prefix = match.value.removesuffix("/")
            return languages.any_of((languages.constant(prefix), languages.starting_with(f"{prefix}/")))
        return languages.matching(match.value, whole=True)
