"""The chain of authorizers as a circuit: when it allows and when it denies an unknown request, in the end.

Both phases together come to what all policies say about the whole request (`authorizers.settlement`,
`algebra.condition`): the residual of an expression gives for every object what the expression gives. Where a request
carries no object and what a policy says about it matters, nobody can say; such requests are `open_because`.
"""

from __future__ import annotations

from msgspec import Struct

from tierwall.api.algebra.condition import Effect, FailureMode
from tierwall.api.authorizers.cel_policies import CelPolicy, policies_of
from tierwall.api.authorizers.demands import FIELDS, GROUPS
from tierwall.api.authorizers.rbac import PolicyRule, bindings_by_subject
from tierwall.api.model import AuthorizerConfig, AuthorizerType, configured_authorizers
from tierwall.core.verdict import Verdict
from tierwall.logic.cel.encoder import Rails
from tierwall.logic.circuit import FALSE, TRUE
from tierwall.logic.unsupported import Unsupported
from tierwall.proofs.api.request import UnknownRequest
from tierwall.resources.snapshot import Snapshot

# The field of a request as expressions name it, by the name that demands have for it.
_DEMANDED = {field: path[-1] for path, field in FIELDS.items()}


class CircuitVerdict(Struct, frozen=True):
    """The literals that say that the chain allows, and that it denies; else it has no opinion."""

    allows: int
    denies: int
    # Literals of requests about which nothing can be said, each with the reason; and of those about which it cannot
    # even be said whether they are allowed.
    open_because: tuple[tuple[int, str], ...]
    perhaps_allowed: tuple[tuple[int, str], ...]

    def open_for(self, verdict: Verdict) -> tuple[tuple[int, str], ...]:
        """Return the requests for which it is open whether the final answer is this verdict."""
        return self.perhaps_allowed if verdict is Verdict.ALLOW else self.open_because

    def is_verdict(self, verdict: Verdict) -> tuple[int, ...]:
        """Return the literals that are all true if the final answer is this verdict."""
        if verdict is Verdict.ALLOW:
            return (self.allows,)
        return (self.denies,) if verdict is Verdict.DENY else (-self.allows, -self.denies)


class ChainCircuit:
    """Writes the chain of one snapshot down."""

    def __init__(self, snapshot: Snapshot, request: UnknownRequest) -> None:
        self._snapshot = snapshot
        self._request = request
        self._circuit = request.circuit
        # Each with a literal that says that the answer may well be Allow.
        self._open: list[tuple[int, int, str]] = []

    def verdict(self) -> CircuitVerdict:
        """Ask the authorizers in order: the first that allows or denies decides."""
        passed_on, allows, denies = TRUE, [], []
        for member in configured_authorizers(self._snapshot):
            allow, deny = self._member(member, passed_on)
            allows.append(self._circuit.all_of((passed_on, allow)))
            denies.append(self._circuit.all_of((passed_on, deny)))
            passed_on = self._circuit.all_of((passed_on, -allow, -deny))
        # A condition on missing data is never fulfilled: it can only take an Allow away, unless it is always true.
        allowed = self._circuit.any_of(allows)
        perhaps = [
            (self._circuit.all_of((literal, self._circuit.any_of((grants, allowed)))), why)
            for literal, grants, why in self._open
        ]
        undecided = tuple((literal, why) for literal, _, why in self._open)
        return CircuitVerdict(allowed, self._circuit.any_of(denies), undecided, tuple(perhaps))

    def _member(self, member: AuthorizerConfig, asked: int) -> tuple[int, int]:
        match member.type:
            case AuthorizerType.CEL:
                return self._cel(member, asked)
            case AuthorizerType.RBAC:
                return self._rbac(), FALSE
            case AuthorizerType.ALWAYS_ALLOW:
                return TRUE, FALSE
            case AuthorizerType.ALWAYS_DENY | AuthorizerType.ABAC:
                return FALSE, FALSE
            case AuthorizerType.NODE:
                is_node = self._request.field("username").in_language(
                    self._request.world.languages.starting_with("system:node:")
                )
                in_nodes = self._request.in_group("system:nodes")
                self._leave_open((asked, is_node, in_nodes), TRUE, f"authorizer `{member.name}` decides about nodes")
                return FALSE, FALSE
            case AuthorizerType.WEBHOOK:
                self._leave_open((asked,), TRUE, f"webhook `{member.name}` may answer anything")
                return FALSE, FALSE

    def _cel(self, member: AuthorizerConfig, asked: int) -> tuple[int, int]:
        any_of, all_of = self._circuit.any_of, self._circuit.all_of
        true: dict[Effect, list[int]] = {effect: [] for effect in Effect}
        failed: dict[Effect, list[int]] = {effect: [] for effect in Effect}
        lacking: list[tuple[CelPolicy, int, int]] = []
        for policy in policies_of(self._snapshot):
            if policy.authorizer in (member.name, ""):
                scope = self._scope(policy)
                rails, always = self._rails(policy)
                true[policy.effect].append(self._circuit.all_of((scope, rails.true)))
                fails = (scope, -rails.true, -rails.false, -rails.missing)
                failed[policy.effect].append(self._circuit.all_of(fails))
                lacking.append((policy, all_of((scope, rails.missing)), always))
        denied, deny_failed = any_of(true[Effect.DENY]), any_of(failed[Effect.DENY])
        withheld = any_of((*true[Effect.NO_OPINION], *failed[Effect.NO_OPINION]))
        allowed = any_of(true[Effect.ALLOW])
        denies = any_of((denied, deny_failed)) if member.failure_mode is FailureMode.DENY else denied
        silent = any_of((deny_failed, withheld))
        may_allow = any_of((allowed, *(literal for policy, literal, _ in lacking if policy.effect is Effect.ALLOW)))
        # What is settled without the object: see the table of `settlement`.
        matters = {
            Effect.DENY: -denies,
            Effect.NO_OPINION: all_of((-denies, -silent, may_allow)),
            Effect.ALLOW: all_of((-denies, -silent, -allowed)),
        }
        for policy, literal, always in lacking:
            why = f"{policy.reference} asks about data that some requests of the region do not carry"
            grants = always if policy.effect is Effect.ALLOW else FALSE
            self._leave_open((asked, literal, matters[policy.effect]), grants, why)
        return all_of((allowed, -denied, -silent)), denies

    def _rails(self, policy: CelPolicy) -> tuple[Rails, int]:
        if policy.tree is None:
            return Rails(FALSE, FALSE), FALSE
        try:
            return self._request.rails(policy.tree)
        except Unsupported as error:
            line = policy.expression.count("\n", 0, max(error.at, 0)) + 1
            column = max(error.at, 0) - (policy.expression.rfind("\n", 0, max(error.at, 0)) + 1) + 1
            place = f" ({line}:{column} of the expression)" if error.at >= 0 else ""
            raise Unsupported(f"{error.construct} in {policy.reference} spec.expression{place}") from None

    def _scope(self, policy: CelPolicy) -> int:
        """Return whether a policy counts for the request: one that cannot be used fails only where it could match."""
        needed = [self._request.equals("namespace", policy.namespace)] if policy.namespace else []
        if policy.tree is None and policy.parsed is not None:
            for field, values in sorted(policy.parsed.demands.items()):
                if field == GROUPS:
                    needed.append(self._circuit.any_of(map(self._request.in_group, sorted(values))))
                else:
                    needed.append(self._request.one_of(_DEMANDED[field], values))
        return self._circuit.all_of(needed)

    def _rbac(self) -> int:
        request, all_of = self._request, self._circuit.all_of
        granted: list[int] = []
        rules: dict[PolicyRule, int] = {}
        for (namespace, kind, name), bindings in sorted(bindings_by_subject(self._snapshot).items()):
            who = request.equals("username", name) if kind == "User" else request.in_group(name)
            where = TRUE if not namespace else all_of((-request.is_about_path, request.equals("namespace", namespace)))
            for binding in bindings:
                for rule in binding.rules:
                    if binding.is_sound(rule):
                        if rule not in rules:
                            rules[rule] = self._grants(rule)
                        granted.append(all_of((who, where, rules[rule])))
        return self._circuit.any_of(granted)

    def _grants(self, rule: PolicyRule) -> int:
        """`PolicyRule.grants`."""
        request, all_of, any_of = self._request, self._circuit.all_of, self._circuit.any_of
        languages = request.world.languages
        verb = TRUE if "*" in rule.verbs else request.one_of("verb", rule.verbs)
        path = request.field("path")
        urls = []
        for url in rule.urls:
            prefix = languages.starting_with(url.rstrip("*"))
            urls.append(path.in_language(prefix if url.endswith("*") else languages.constant(url)))
        group = TRUE if "*" in rule.groups else request.one_of("apiGroup", rule.groups)
        resources = [TRUE] if "*" in rule.resources else [self._resource(name) for name in sorted(rule.resources)]
        named = all_of((-request.equals("name", ""), request.one_of("name", rule.names))) if rule.names else TRUE
        about_resource = all_of((-request.is_about_path, group, any_of(resources), named))
        return all_of((verb, any_of((all_of((request.is_about_path, any_of(urls))), about_resource))))

    def _resource(self, name: str) -> int:
        resource, _, subresource = name.partition("/")
        is_subresource = self._request.equals("subresource", subresource)
        if resource == "*" and subresource:
            return is_subresource
        return self._circuit.all_of((self._request.equals("resource", resource), is_subresource))

    def _leave_open(self, literals: tuple[int, ...], grants: int, why: str) -> None:
        literal = self._circuit.all_of(literals)
        if literal != FALSE:
            self._open.append((literal, grants, why))
