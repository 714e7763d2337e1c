"""Compares the tool plane: every request of every caller, on every way, that two snapshots decide differently.

docs/compare.md#what-is-compared.

Compared are the ways that routes take in either snapshot, the callers that policies on a way name and any other caller,
and the requests that their rules can tell apart: each method and tool that they name, and any other; hosts, headers
and paths of their HTTP matchers; with and without the approval of authorizers. Where only expressions differ, so that
no such request shows it, their conditions are compared as texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tierwall.analyze.difference import Difference, SettledVerdict, change_of, permission_words
from tierwall.core.reference import Reference
from tierwall.core.stack import Stack
from tierwall.core.verdict import Verdict
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.decide import decide
from tierwall.tool.grants import declared_tools, known_tools
from tierwall.tool.http_match import EVERY_REQUEST, PREFIX, REGEX, HttpMatch
from tierwall.tool.methods import BASE_METHODS
from tierwall.tool.model import BACKENDS, model
from tierwall.tool.possible import OTHER, possible
from tierwall.tool.protocol import ANSWER, BY_URI, CALL
from tierwall.tool.question import answer
from tierwall.tool.request import SESSION_HEADER, ToolRequest, tool_request
from tierwall.tool.rules import AccessPolicy, AccessRule
from tierwall.tool.ways import BackendWay, GuardedWay, routed_ways, unrouted_ways

# One method of each kind that a clause can tell apart, beside those that rules name.
METHODS = (*sorted(BASE_METHODS - {ANSWER}), "notifications/initialized", "prompts/get", "resources/read", "tasks/get")
OTHER_NAME = "any-other"
_WayKey: TypeAlias = tuple[str, str, str, str]


class RequestShape(NamedTuple):
    """The method of a request and the name that it gives, or plain HTTP."""

    method: str | None
    name: str | None = None
    http_method: str = "POST"

    def __str__(self) -> str:
        if self.method is None:
            return f"send plain {self.http_method}"
        if self.method != CALL:
            return f"use {self.method}" + (f" with {self.name}" if self.name else "")
        return "call any other tool" if self.name == OTHER_NAME else f"call {self.name}"


class ShownRequest(NamedTuple):
    """The request that shows a difference, with the number of its `http` and the authorizers that allow it."""

    http: int
    approval: tuple[str, ...]
    before: SettledVerdict | None
    after: SettledVerdict | None


class ComparedWay(NamedTuple):
    """A way, the policies that guard it, and everything about its backend that requests depend on."""

    way: BackendWay
    stack: Stack[AccessPolicy]
    # Whether XBackends of both groups have the backend's name.
    is_ambiguous: bool = False

    @property
    def policies(self) -> tuple[AccessPolicy, ...]:
        """The policies of both levels."""
        return tuple(policy for tier in self.stack for policy in tier.policies)


def tool_differences(old: Snapshot, new: Snapshot) -> Iterator[Difference]:
    """Yield every request whose verdict or conditions change, way by way and caller by caller."""
    then, now = _ways(old), _ways(new)
    for key in dict.fromkeys((*then, *now)):
        before, after = then.get(key), now.get(key)
        if before is None or after is None or not _same(before, after):
            yield from _on_way(before, after)


def _ways(snapshot: Snapshot) -> dict[_WayKey, ComparedWay]:
    stack = model(snapshot).stack
    backends = Counter((backend.namespace, backend.name) for kind in BACKENDS for backend in snapshot.of_kind(*kind))
    return {
        (*_listener(way), f"{way.resource.group}/{way.backend}"): ComparedWay(
            way,
            stack(way.gateway, way.listener, way.resource),
            way.resource.kind == "XBackend" and backends[way.backend.namespace, way.backend.name] > 1,
        )
        for way in routed_ways(snapshot) or unrouted_ways(snapshot)
    }


def _listener(way: BackendWay) -> tuple[str, str, str]:
    return str(way.gateway.reference), way.listener.name, way.listener_set or ""


def _same(before: ComparedWay, after: ComparedWay) -> bool:
    """Whether a way is certainly decided alike: the same policies, on the same backend and port."""
    then, now = before.policies, after.policies
    return (
        before.way.backend == after.way.backend
        and before.way.listener.port == after.way.listener.port
        and len(then) == len(now)
        and all(
            left.reference == right.reference
            and left.closed == right.closed
            and left.resource.has_same_content(right.resource)
            and _names(left) == _names(right)
            for left, right in zip(then, now, strict=True)
        )
    )


def _names(policy: AccessPolicy) -> list[Any]:
    """Return the names of a policy as they were read: whether one has a backend depends on other objects."""
    return [method.names for rule in _rules(policy) for method in rule.methods]


def _rules(policy: AccessPolicy) -> tuple[AccessRule, ...]:
    return (*policy.allows.all, *policy.asks.all)


def _on_way(before: ComparedWay | None, after: ComparedWay | None) -> Iterator[Difference]:
    sides = [side for side in (before, after) if side is not None]
    rules = [rule for side in sides for policy in side.policies for rule in _rules(policy)]
    callers = sorted({caller for side in sides for policy in side.policies for caller in _callers(policy)})
    forms = list(_forms(sides, rules))
    variants: list[dict[str, Any]] = [{}, *_http_variants(rules)]
    approvals = _approvals(sides)
    for caller in (None, *callers):
        # Methods without names that are decided alike are one difference.
        alike: dict[tuple[str | None, ShownRequest], list[RequestShape]] = {}
        for form in forms:
            shown = _shown(before, after, caller, form, variants, approvals)
            if shown is not None:
                alike.setdefault((form.name, shown), []).append(form)
        for (_, shown), together in alike.items():
            # Authorizers matter to the sentence only if the request is not decided alike with their approval.
            asking = approvals[-1] if shown.approval or _needs(before, after, caller, together[0], approvals) else ()
            yield _difference(before, after, caller, together, shown, variants[shown.http], asking)


def _needs(
    before: ComparedWay | None,
    after: ComparedWay | None,
    caller: str | None,
    form: RequestShape,
    approvals: Sequence[tuple[str, ...]],
) -> bool:
    """Whether the plain request differs only as long as no authorizer allows it."""
    settled = [_decided(side, caller, form, {}, approvals[-1]) for side in (before, after)]
    return bool(approvals[-1]) and change_of(*settled) is None


def _callers(policy: AccessPolicy) -> set[str]:
    return policy.allows.callers() | policy.asks.callers()


def _forms(sides: Iterable[ComparedWay], rules: Iterable[AccessRule]) -> Iterator[RequestShape]:
    """Yield every form of a request that rules can tell apart, calls first."""
    tools = {tool for side in sides for tool in known_tools(side.stack, side.way.backend)}
    tools |= {tool for side in sides for tool in declared_tools(side.way.resource)}
    yield from (RequestShape(CALL, tool) for tool in (*sorted(tools - {OTHER_NAME}), OTHER_NAME))
    names: dict[str, set[str]] = {}
    for rule in rules:
        for method in rule.methods:
            if method.name != CALL:
                names.setdefault(method.name, set()).update(method.names.bare if method.names is not None else ())
    for method_name in dict.fromkeys((*METHODS, *sorted(names))):
        named = names.get(method_name)
        if named:
            yield from (RequestShape(method_name, name) for name in (*sorted(named - {OTHER_NAME}), OTHER_NAME))
        else:
            yield RequestShape(method_name)
    yield from (RequestShape(None, None, method) for method in ("GET", "DELETE", "POST"))


def _http_variants(rules: Iterable[AccessRule]) -> list[dict[str, Any]]:
    """Return the `http` of a question for each HTTP matcher, such that it matches if that can be told."""
    matchers = dict.fromkeys(rule.http for rule in rules if rule.http is not EVERY_REQUEST)
    return [_http_of(matcher) for matcher in matchers]


def _http_of(matcher: HttpMatch) -> dict[str, Any]:
    http: dict[str, Any] = {}
    if matcher.methods:
        http["method"] = min(matcher.methods)
    path = next((path for path in matcher.paths if path.type is not REGEX), None)
    if path is not None:
        http["path"] = path.value or "/" if path.type is not PREFIX else path.value.rstrip("/") or "/"
    if matcher.hosts:
        host = min(matcher.hosts)
        http["host"] = f"x{host.removeprefix('*')}" if host.startswith("*") else host
    if matcher.headers:
        http["headers"] = {header.name: header.value.value for header in matcher.headers}
    return http


def _approvals(sides: Iterable[ComparedWay]) -> list[tuple[str, ...]]:
    """Return the policies whose authorizers allow the request: none, and all that ask one."""
    asking = {str(policy.reference) for side in sides for policy in side.policies if policy.asks.all}
    return [(), tuple(sorted(asking))] if asking else [()]


def _shown(
    before: ComparedWay | None,
    after: ComparedWay | None,
    caller: str | None,
    form: RequestShape,
    variants: Sequence[Mapping[str, Any]],
    approvals: Iterable[tuple[str, ...]],
) -> ShownRequest | None:
    """Return the plainest request of a form that is decided differently, or None."""
    for approval in approvals:
        for number, http in enumerate(variants):
            then, now = (_decided(side, caller, form, http, approval) for side in (before, after))
            if change_of(then, now) is not None:
                return ShownRequest(number, approval, then, now)
    if before is None or after is None:
        return None
    then, now = (_possible(side, caller, form) for side in (before, after))
    return ShownRequest(0, (), then, now) if change_of(then, now) is not None else None


def _request(side: ComparedWay, caller: str | None, form: RequestShape, http: Mapping[str, Any]) -> ToolRequest:
    by_uri = form.method in BY_URI
    headers = dict(http.get("headers", {}))
    if form.http_method == "DELETE":
        headers.setdefault(SESSION_HEADER, "any")
    return tool_request(
        side.way.backend,
        caller,
        form.method,
        None if by_uri else form.name,
        form.name if by_uri else None,
        http_method=http.get("method", form.http_method) if form.method is not None else form.http_method,
        path=http.get("path"),
        host=http.get("host"),
        headers=headers,
        port=side.way.listener.port,
    )


def _decided(
    side: ComparedWay | None,
    caller: str | None,
    form: RequestShape,
    http: Mapping[str, Any],
    approval: Collection[str],
) -> SettledVerdict | None:
    """Return the decision about a request, or None if the way does not exist here."""
    if side is None:
        return None
    allowed = {policy.reference: Verdict.ALLOW for policy in side.policies if str(policy.reference) in approval}
    decision = decide(side.stack, _request(side, caller, form, http), allowed)
    way = GuardedWay(side.way.gateway, side.way.listener, side.way.backend, side.stack)
    return SettledVerdict(decision.verdict, answer(way, decision).decided_by)


def _possible(side: ComparedWay, caller: str | None, form: RequestShape) -> SettledVerdict:
    """Return whether requests of a form may pass, and under which conditions."""
    name = OTHER if form.method == CALL and form.name == OTHER_NAME else form.name
    verdict = possible(side.stack, _request(side, caller, form._replace(name=name), {}))
    return SettledVerdict(verdict.verdict, verdict.decided_by, verdict.conditions)


def _difference(
    before: ComparedWay | None,
    after: ComparedWay | None,
    caller: str | None,
    forms: Sequence[RequestShape],
    shown: ShownRequest,
    http: Mapping[str, Any],
    asking: Sequence[str],
) -> Difference:
    side = after if after is not None else before
    change = change_of(shown.before, shown.after)
    assert side is not None
    assert change is not None
    way, form = side.way, forms[0]
    question: dict[str, Any] = {
        "gateway": f"{way.gateway.namespace}/{way.gateway.name}",
        "listener": way.listener.name,
        **({"listenerSet": way.listener_set} if way.listener_set is not None else {}),
        "backend": _backend(way, any(member is not None and member.is_ambiguous for member in (before, after))),
    }
    if caller is not None:
        question["caller"] = caller
    if form.method is not None:
        question["method"] = form.method
    if form.name is not None:
        question["uri" if form.method in BY_URI else "tool"] = form.name
    sent = dict(http)
    if form.method is None:
        sent["method"] = form.http_method
        if form.http_method == "DELETE":
            sent["headers"] = {SESSION_HEADER: "any", **sent.get("headers", {})}
    if sent:
        question["http"] = sent
    if shown.approval:
        question["externalAuth"] = dict.fromkeys(shown.approval, "Allow")
    may, conditions = permission_words(shown.before, shown.after)
    of_set = f" (ListenerSet/{question['listenerSet']})" if "listenerSet" in question else ""
    details = [f"at {question['backend']} through {question['gateway']}#{question['listener']}{of_set}"]
    details += filter(None, (conditions, _with(http)))
    if asking and not conditions:
        details.append(f"{'with' if shown.approval else 'without'} the approval of {', '.join(asking)}")
    if before is None or after is None:
        details.append("(no route led there before)" if before is None else "(no route leads there now)")
    return Difference(
        plane="tool",
        change=change,
        question=question,
        before=shown.before,
        after=shown.after,
        words=(f"{caller or 'any other caller'} {may}", ", ".join(map(str, forms)), " ".join(details)),
        covers=_covers(caller, forms),
    )


def _backend(way: BackendWay, is_ambiguous: bool) -> str:
    reference: Reference = way.backend.reference
    if reference.kind == "Service":
        return str(reference)
    name = f"{reference.namespace}/{reference.name}"
    return f"{reference.kind}.{way.resource.group}/{name}" if is_ambiguous else name


def _with(http: Mapping[str, Any]) -> str:
    parts = [f"{key} {http[key]}" for key in ("method", "path", "host") if key in http]
    parts += [f"header {name}: {value}" for name, value in http.get("headers", {}).items()]
    return f"with {', '.join(parts)}" if parts else ""


def _covers(caller: str | None, forms: Sequence[RequestShape]) -> dict[str, str]:
    covers = {"caller": "any other caller"} if caller is None else {}
    if forms[0].name == OTHER_NAME:
        covers["tool" if forms[0].method == CALL else "name"] = "any other"
    if len(forms) > 1:
        covers["method"] = ", ".join(map(str, forms))
    return covers
