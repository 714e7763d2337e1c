"""Findings that need both levels: tools granted at one of them only, and names that mean more than one tool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.analyze.tool import finding
from tierwall.attach.place import Place
from tierwall.core.diagnostics import Diagnostic, near_miss
from tierwall.core.verdict import Verdict
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import Passage, declared_tools, offered_tools, passages
from tierwall.tool.methods import Method
from tierwall.tool.model import BACKENDS, Model, Stack, is_on_gateways, model
from tierwall.tool.possible import possible
from tierwall.tool.request import CALL, request
from tierwall.tool.rules import Policy, Rule
from tierwall.tool.scope import Scoped

ONE_LEVEL, AMBIGUOUS, NO_SCOPE = "TW406", "TW407", "TW408"
MOST_SHOWN = 5


class Levels:
    """The ways of routes by the policies on them, and what each level says to a caller and a tool."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.model: Model = model(snapshot)
        self.of_gateways: dict[Policy, list[Passage]] = {}
        self.of_backends: dict[Policy, list[Passage]] = {}
        self._denied: dict[tuple[Passage, bool, str | None, str], bool] = {}
        self.stacks: dict[Passage, Stack] = {}
        for one in passages(snapshot):
            stack = self.stacks[one] = self.model.stack(one.gateway, one.listener, one.resource)
            for policies, index in ((stack.gateway, self.of_gateways), (stack.backend, self.of_backends)):
                for policy in policies:
                    index.setdefault(policy, []).append(one)

    def denied(self, way: Passage, gateway_level: bool, callers: Iterable[str | None], tool: str) -> bool:
        """Whether one level of a way denies a tool to every one of these callers."""
        return all(self._denies(way, gateway_level, caller, tool) for caller in callers)

    def _denies(self, way: Passage, gateway_level: bool, caller: str | None, tool: str) -> bool:
        key = way, gateway_level, caller, tool
        if key not in self._denied:
            whole = self.stacks[way]
            stack = Stack(whole.gateway, ()) if gateway_level else Stack((), whole.backend)
            asked = request(way.backend, caller, CALL, tool, port=way.listener.port)
            self._denied[key] = possible(stack, asked).verdict is Verdict.DENY
        return self._denied[key]

    def callers(self, way: Passage, gateway_level: bool, rule: Rule) -> set[str | None]:
        """Whom a rule is about: its caller, or everybody whom the other level knows."""
        if rule.source.spiffe is not None:
            return {rule.source.spiffe}
        whole = self.stacks[way]
        other = whole.backend if gateway_level else whole.gateway
        return {None, *(one.source.spiffe for policy in other for one in policy.allows.all)}


def levels(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Tools that a rule grants and the other level never lets through."""
    this = Levels(snapshot)
    for resource in this.model.resources:
        policy = this.model.policy(resource)
        on_gateway = is_on_gateways(resource)
        ways = (this.of_gateways if on_gateway else this.of_backends).get(policy, [])
        if not ways or policy.closed:
            continue
        for rule in policy.allows.all:
            dead = [one for one in _tools(rule) if not rule.source.nobody and _dead(this, ways, on_gateway, rule, one)]
            if dead:
                yield _one_level(policy, rule, dead, ways, on_gateway)


def _tools(rule: Rule) -> list[Scoped | str]:
    """The tools that a rule names, scoped ones with their backend."""
    found: set[Scoped | str] = set()
    for clause in rule.clauses:
        if isinstance(clause, Method) and clause.name == CALL and clause.names is not None:
            found |= clause.names.bare | clause.names.scoped
    return sorted(found, key=str)


def _dead(this: Levels, ways: list[Passage], on_gateway: bool, rule: Rule, tool: Scoped | str) -> bool:
    """Whether the other level denies the tool on every way where the rule grants it."""
    if isinstance(tool, Scoped):
        here = [one for one in ways if (one.backend.namespace, one.backend.name) == tool[:2]]
        return bool(here) and all(this.denied(one, False, this.callers(one, True, rule), tool.tool) for one in here)
    return all(this.denied(one, not on_gateway, this.callers(one, on_gateway, rule), tool) for one in ways)


def _one_level(
    policy: Policy, rule: Rule, dead: list[Scoped | str], ways: list[Passage], on_gateway: bool
) -> Diagnostic:
    names = ", ".join(f"`{one}`" for one in dead[:MOST_SHOWN]) + (" and more" if len(dead) > MOST_SHOWN else "")
    others = {str(one.backend) if on_gateway else str(one.gateway.reference) for one in ways}
    where = "no backend behind the Gateway" if on_gateway else "no Gateway in front of the backend"
    words = f"{rule.label} grants {names} to {rule.source}, but {where} does: {', '.join(sorted(others)[:MOST_SHOWN])}"
    return finding(ONE_LEVEL, policy, rule.path, words, "both levels must allow a request")


def names(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Tool names in policies on Gateways that several backends share, or whose scope is no backend."""
    this = model(snapshot)
    backends = [one for kind in BACKENDS for one in snapshot.of_kind(*kind)]
    offered = {backend: offered_tools(this, backend) for backend in backends}
    declared = {tool for one in backends for tool in declared_tools(one)}
    behind: dict[Place, dict[Resource, None]] = {}
    for way in passages(snapshot):
        if way.resource in offered:
            behind.setdefault(Place.of(way.gateway), {})[way.resource] = None
    for resource in this.resources:
        policy = this.policy(resource)
        if policy.closed or not is_on_gateways(resource):
            continue
        reached = dict.fromkeys(
            backend
            for ref in resource.spec["targetRefs"]
            for backend in behind.get(Place(ref["group"], ref["kind"], resource.namespace, ref["name"]), ())
        )
        for rule in policy.allows.all:
            for tool in _tools(rule):
                if isinstance(tool, Scoped):
                    continue
                yield from _ambiguous(policy, rule, tool, [backend for backend in reached if tool in offered[backend]])
                if "/" in tool and tool not in declared:
                    yield _no_scope(snapshot, policy, rule, tool)


def _ambiguous(policy: Policy, rule: Rule, tool: str, offering: list[Resource]) -> Iterator[Diagnostic]:
    if len(offering) > 1:
        listed = sorted(f"{one.namespace}/{one.name}" for one in offering)
        words = (
            f"{rule.label} names tool `{tool}`, which {len(offering)} backends offer: {', '.join(listed[:MOST_SHOWN])}"
        )
        own = offering[0].namespace == policy.resource.namespace
        scope = offering[0].name if own else f"{offering[0].namespace}/{offering[0].name}"
        yield finding(
            AMBIGUOUS, policy, rule.path, words, f"write `{scope}/{tool}` to mean the tool of that one backend"
        )


def _no_scope(snapshot: Snapshot, policy: Policy, rule: Rule, tool: str) -> Diagnostic:
    scope = tool.rpartition("/")[0]
    own = policy.resource.namespace
    known: set[str] = set()
    for kind in BACKENDS:
        for one in snapshot.of_kind(*kind):
            known |= {f"{one.namespace}/{one.name}", *([one.name] if one.namespace == own else [])}
    words = f"{rule.label} names `{tool}`, but there is no XBackend `{scope}`: it is read as the tool's own name"
    return finding(NO_SCOPE, policy, rule.path, words, near_miss(scope, known))
