"""The chain of authorizers as a circuit: when it allows and when it denies an unknown request, in the end.

Both phases together come to what all policies say about the whole request (`authorizers.settlement`,
`algebra.condition`): the residual of an expression gives for every object what the expression gives. A request that
carries no object meets no condition on one (`algebra.chain`).
"""

from __future__ import annotations

from msgspec import Struct

from tierwall.api.algebra.condition import Effect, FailureMode
from tierwall.api.authorizers.cel_policies import CelPolicy, policies_of
from tierwall.api.authorizers.demands import FIELDS, GROUPS
from tierwall.api.authorizers.node import ALWAYS_GRANTED, GROUP, SOMETIMES_GRANTED, USER_PREFIX
from tierwall.api.authorizers.rbac import PolicyRule, bindings_by_subject
from tierwall.api.model import AuthorizerConfig, AuthorizerType, configured_authorizers
from tierwall.core.verdict import Verdict
from tierwall.logic.cel.encoder import Rails
from tierwall.logic.circuit import FALSE, TRUE
from tierwall.logic.unsupported import Unsupported
from tierwall.proofs.api.request import UnknownRequest
from tierwall.proofs.api.seen_object import SeenObject
from tierwall.resources.snapshot import Snapshot

# The field of a request as expressions name it, by the name that demands have for it.
_DEMANDED = {field: path[-1] for path, field in FIELDS.items()}


class CircuitVerdict(Struct, frozen=True):
    """The literals that say that the chain allows, and that it denies; else it has no opinion.

    `undecided` has literals of requests about which nobody can say it, each with the reason: for those, the others are
    free to be true or not. So they are for those that select, whose selectors may imply the conditions.
    """

    allows: int
    denies: int
    undecided: tuple[tuple[int, str], ...]
    selects: int
    # Under its conditions it may be allowed: no selectors grant what nobody grants.
    may_allow: int = FALSE

    def is_verdict(self, verdict: Verdict) -> tuple[int, ...]:
        """Return the literals that are all true if the final answer is this verdict."""
        if verdict is Verdict.ALLOW:
            return (self.allows,)
        return (self.denies,) if verdict is Verdict.DENY else (-self.allows, -self.denies)


class CircuitOpinion(Struct, frozen=True):
    """The opinion of one authorizer: Allow, Deny, conditions that the request can never meet, or none."""

    allows: int
    denies: int = FALSE
    is_conditional: int = FALSE
    # One of the conditions is a Deny.
    may_deny: int = FALSE
    # One of the conditions is an Allow.
    may_allow: int = FALSE


class ChainCircuit:
    """Writes the chain of one snapshot down."""

    def __init__(self, snapshot: Snapshot, request: UnknownRequest) -> None:
        self._snapshot = snapshot
        self._request = request
        self._circuit = request.circuit
        self._undecided: list[tuple[int, str]] = []
        # Which authorizers are asked, by name, as far as no condition decides; and which webhooks return conditions.
        self._reached: dict[str, int] = {}
        self._webhook_conditions: list[int] = []

    def verdict(self) -> CircuitVerdict:
        """Ask the authorizers in order: the first that allows or denies decides, if none before has conditions.

        A request without data meets no condition: it is denied if some condition could deny it, and else nobody has an
        opinion (docs/semantics.md#the-final-decision).
        """
        any_of, all_of = self._circuit.any_of, self._circuit.all_of
        asked, is_conditional = TRUE, FALSE
        allowed, denied, may_allow = [], [], []
        for member in configured_authorizers(self._snapshot):
            opinion = self._member(member, asked)
            may_allow.append(all_of((asked, any_of((opinion.allows, opinion.may_allow)))))
            allowed.append(all_of((asked, -is_conditional, opinion.allows)))
            denied.append(all_of((asked, any_of((opinion.denies, opinion.may_deny)))))
            self._reached[member.name] = asked
            if member.type is AuthorizerType.WEBHOOK:
                self._webhook_conditions.append(all_of((asked, opinion.is_conditional)))
            is_conditional = any_of((is_conditional, all_of((asked, opinion.is_conditional))))
            asked = all_of((asked, -opinion.allows, -opinion.denies))
        allows, denies = any_of(allowed), any_of(denied)
        selects = all_of((is_conditional, self._request.selects_objects))
        if selects != FALSE:
            is_allowed, is_denied = self._request.free_answer("selectors")
            allows = self._circuit.choose(selects, is_allowed, allows)
            denies = self._circuit.choose(selects, is_denied, denies)
        return CircuitVerdict(allows, denies, tuple(self._undecided), selects, any_of(may_allow))

    def shows(self, seen: SeenObject, *, is_strict: bool = True) -> int:
        """Return whether the conditions allow one object that a request shows; a verdict has to come first.

        Where it is strict, as proofs about reads are (`reads.conditions`), a condition of a Deny that fails denies,
        whatever the failure mode, and nobody knows conditions of webhooks.
        """
        all_of, asked = self._circuit.all_of, TRUE
        allowed = []
        for member in configured_authorizers(self._snapshot):
            if member.type is AuthorizerType.CEL:
                opinion = self._cel_about(member, seen, is_strict)
            else:
                opinion = self._member(member, asked)
            allowed.append(all_of((asked, opinion.allows)))
            asked = all_of((asked, -opinion.allows, -opinion.denies))
        unknown = self._webhook_conditions if is_strict else ()
        return all_of((self._circuit.any_of(allowed), *(-literal for literal in unknown)))

    def is_unopposed(self, seen: SeenObject) -> int:
        """Return whether no condition that could stand against a request is true of an object, or fails."""
        against = []
        for member in configured_authorizers(self._snapshot):
            if member.type is AuthorizerType.CEL:
                for policy in self._policies(member):
                    if policy.effect is not Effect.ALLOW and policy.tree is not None:
                        rails = seen.rails(policy.tree)
                        is_condition = (self._reached[member.name], self._scope(policy), rails.missing)
                        against.append(self._circuit.all_of((*is_condition, -rails.false)))
        return -self._circuit.any_of(against)

    def _member(self, member: AuthorizerConfig, asked: int) -> CircuitOpinion:
        match member.type:
            case AuthorizerType.CEL:
                return self._cel(member)
            case AuthorizerType.RBAC:
                return CircuitOpinion(self._rbac())
            case AuthorizerType.ALWAYS_ALLOW:
                return CircuitOpinion(TRUE)
            case AuthorizerType.ALWAYS_DENY | AuthorizerType.ABAC:
                return CircuitOpinion(FALSE)
            case AuthorizerType.NODE:
                return self._node(member, asked)
            case AuthorizerType.WEBHOOK:
                return self._webhook(member, asked)

    def _node(self, member: AuthorizerConfig, asked: int) -> CircuitOpinion:
        """Every node may do some things; about the rest decide its name and its pods, and any pod may come."""
        request, all_of, any_of = self._request, self._circuit.all_of, self._circuit.any_of
        languages = request.world.languages
        username = request.field("username")
        is_node = all_of(
            (
                username.in_language(languages.starting_with(USER_PREFIX)),
                -username.in_language(languages.constant(USER_PREFIX)),
                request.in_group(GROUP),
                -request.is_about_path,
            )
        )
        always, sometimes = (
            any_of(
                all_of((request.equals("apiGroup", group), self._resource(resource), request.one_of("verb", verbs)))
                for (group, resource), verbs in sorted(granted.items())
            )
            for granted in (ALWAYS_GRANTED, SOMETIMES_GRANTED)
        )
        depends = all_of((is_node, -always, sometimes))
        why = f"authorizer `{member.name}` decides by the node's name and pods"
        self._undecided.append((all_of((asked, depends)), why))
        may_allow, _ = request.free_answer("nodes")
        return CircuitOpinion(any_of((all_of((is_node, always)), all_of((depends, may_allow)))))

    def _webhook(self, member: AuthorizerConfig, asked: int) -> CircuitOpinion:
        """A webhook may answer anything. Both sides of a change ask the same one."""
        allows, denies = self._request.webhook(member)
        if member.webhook.get("matchConditions"):
            self._undecided.append((asked, f"webhook `{member.name}` has match conditions"))
        is_conditional = FALSE
        if member.returns_conditions:
            conditional, _ = self._request.free_answer(f"conditions of {member.name}")
            is_conditional = self._circuit.all_of((conditional, self._request.is_left_open, -allows, -denies))
            self._undecided.append(
                (self._circuit.all_of((asked, is_conditional)), f"webhook `{member.name}` may return conditions")
            )
        return CircuitOpinion(allows, denies, is_conditional)

    def _cel(self, member: AuthorizerConfig) -> CircuitOpinion:
        """`authorizers.settlement`, with what is left over where the request carries no data."""
        any_of, all_of = self._circuit.any_of, self._circuit.all_of
        true: dict[Effect, list[int]] = {effect: [] for effect in Effect}
        failed: dict[Effect, list[int]] = {effect: [] for effect in Effect}
        left: dict[Effect, list[int]] = {effect: [] for effect in Effect}
        for policy in self._policies(member):
            scope, rails = self._scope(policy), self._rails(policy)
            true[policy.effect].append(all_of((scope, rails.true)))
            failed[policy.effect].append(all_of((scope, -rails.true, -rails.false, -rails.missing)))
            counts = rails.missing_true if policy.effect is Effect.ALLOW else rails.missing
            left[policy.effect].append(all_of((scope, counts)))
        denied, deny_failed, may_deny = (any_of(kind[Effect.DENY]) for kind in (true, failed, left))
        withheld = any_of((*true[Effect.NO_OPINION], *failed[Effect.NO_OPINION]))
        allowed, may_allow = any_of(true[Effect.ALLOW]), any_of(left[Effect.ALLOW])
        denies = any_of((denied, deny_failed)) if member.failure_mode is FailureMode.DENY else denied
        speaks = all_of((-denies, -may_deny, -deny_failed, -withheld))
        allows = all_of((speaks, allowed, -any_of(left[Effect.NO_OPINION])))
        deny_conditions = all_of((-denies, may_deny))
        allow_conditions = all_of((speaks, any_of((allowed, may_allow)), -allows))
        is_conditional = any_of((deny_conditions, allow_conditions))
        grants = all_of((is_conditional, -deny_failed, -withheld, any_of((allowed, may_allow))))
        return CircuitOpinion(allows, denies, is_conditional, deny_conditions, grants)

    def _cel_about(self, member: AuthorizerConfig, seen: SeenObject, is_strict: bool) -> CircuitOpinion:
        """`authorizers.settlement` of all policies about one object."""
        any_of, all_of = self._circuit.any_of, self._circuit.all_of
        true: dict[Effect, list[int]] = {effect: [] for effect in Effect}
        failed: dict[Effect, list[int]] = {effect: [] for effect in Effect}
        denies_for_sure: list[int] = []
        for policy in self._policies(member):
            scope = self._scope(policy)
            rails = seen.rails(policy.tree) if policy.tree is not None else Rails(FALSE, FALSE)
            fails = all_of((scope, -rails.true, -rails.false))
            true[policy.effect].append(all_of((scope, rails.true)))
            failed[policy.effect].append(fails)
            if policy.effect is Effect.DENY and is_strict:
                denies_for_sure.append(all_of((fails, rails.missing)))
        denied, deny_failed = any_of(true[Effect.DENY]), any_of(failed[Effect.DENY])
        if member.failure_mode is FailureMode.DENY:
            denies_for_sure.append(deny_failed)
        denies = any_of((denied, *denies_for_sure))
        withheld = any_of((*true[Effect.NO_OPINION], *failed[Effect.NO_OPINION]))
        return CircuitOpinion(all_of((-denies, -deny_failed, -withheld, any_of(true[Effect.ALLOW]))), denies)

    def _policies(self, member: AuthorizerConfig) -> list[CelPolicy]:
        return [policy for policy in policies_of(self._snapshot) if policy.authorizer in (member.name, "")]

    def _rails(self, policy: CelPolicy) -> Rails:
        if policy.tree is None:
            return Rails(FALSE, FALSE)

        def described(error: Unsupported) -> str:
            at = max(error.at, 0)
            line, column = policy.expression.count("\n", 0, at) + 1, at - policy.expression.rfind("\n", 0, at)
            place = f" ({line}:{column} of the expression)" if error.at >= 0 else ""
            return f"{error.construct} in {policy.reference} spec.expression{place}"

        opened = self._request.opened
        if opened is None:
            return self._request.rails(policy.tree)
        with opened.described(described):
            return self._request.rails(policy.tree)

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
