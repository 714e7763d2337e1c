"""Reads policies of all four kinds into the one rule form, in order of precedence.

Admin and Baseline tiers: the order is priority, then name byte by byte, with both kinds of a tier in one list. A
BaselineAdminNetworkPolicy comes after the ClusterNetworkPolicies of the Baseline tier
(docs/semantics.md#equal-priority-goes-by-name). Parts that cannot be understood fail closed. If it is a part of a rule,
the rule fails closed; if it is the subject, priority or tier, the whole policy does, for the widest subject it could
have. Fields that only a definition among the objects declares are not understood
(docs/definitions.md#what-planes-read).

NetworkPolicy: every rule allows, and a policy isolates its pods in each direction that it applies to. Without
`policyTypes` a policy applies to ingress, and to egress if it has an egress rule
(docs/semantics.md#egress-is-implied-by-an-egress-rule). A rule that cannot be understood allows nothing. A policy whose
pods cannot be understood isolates its whole namespace and allows nothing.

Policies with the annotation `tierwall.io/mode: shadow` are in shadow mode: they do not take part in any decision, the
kernel counts and logs what they would do, and `explain` reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.labels import EVERYTHING, Requirement, Selector
from tierwall.core.words import failure_words
from tierwall.network.model.dialects import (
    BASELINE_EGRESS_PEER,
    EGRESS_PEER,
    INGRESS_PEER,
    MalformedRule,
    as_map,
    only_known,
    read_admin_peers,
    read_admin_ports,
    read_cluster_protocols,
    read_network_policy_peers,
    read_network_policy_ports,
    read_selector,
    read_subject,
    widest_subject,
)
from tierwall.network.model.endpoints import NAMESPACE_NAME
from tierwall.network.model.rules import Direction, NetworkRule, Peer, RuleAction, TieredPolicy, TierName
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.resources.admission.problem import AdmissionProblem, PathStep

BASELINE, CLUSTER = "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"
NETWORK_POLICY = "networking.k8s.io", "NetworkPolicy"
KINDS = (*(("policy.networking.k8s.io", kind) for kind in ("AdminNetworkPolicy", BASELINE, CLUSTER)), NETWORK_POLICY)
SHADOW = "tierwall.io/mode", "shadow"

_ACTIONS = {"Allow": RuleAction.ALLOW, "Accept": RuleAction.ALLOW, "Deny": RuleAction.DENY, "Pass": RuleAction.PASS}
_TYPES = {"Ingress": Direction.INGRESS, "Egress": Direction.EGRESS}
# Precedes every valid priority, so that policies that fail closed come first.
_FIRST = -(2**31) - 1
DEFINITION = "apiextensions.k8s.io", "CustomResourceDefinition"
_SUBJECT = "spec", "subject"
# The fields of a NetworkPolicy.
_FIELDS = ("podSelector", "policyTypes", "ingress", "egress")
_RULES = ("ingress",), ("egress",)
# The fields of the administrators' policies, beside `ingress`, `egress` and `subject`, and those of their rules.
_ADMIN_FIELDS = {BASELINE: ("subject",), CLUSTER: ("subject", "priority", "tier")}
_RULE_FIELDS = ("name", "action", "ports", "protocols", *(direction.peers_key for direction in Direction))


def read_policies(snapshot: Snapshot) -> list[TieredPolicy]:
    """Read all policies of a snapshot; those of one tier are in order of precedence."""
    find_unread = _unread_finder(snapshot)
    return in_order(_policy(resource, find_unread) for kind in KINDS for resource in snapshot.of_kind(*kind))


def in_order(policies: Iterable[TieredPolicy]) -> list[TieredPolicy]:
    """Sort policies; those of one tier are then in order of precedence."""
    return sorted(policies, key=_order)


def read_policy(snapshot: Snapshot, resource: Resource) -> TieredPolicy:
    """Read one policy, which need not be in the snapshot; the snapshot says what definitions declare."""
    from tierwall.resources.validity import unknown_parts  # as in `_unread_finder`

    return _policy(resource, partial(unknown_parts, snapshot))


def _policy(resource: Resource, find_unread: Callable[[Resource], Sequence[AdmissionProblem]]) -> TieredPolicy:
    """Read one policy. A mistake of the reader closes the policy, too, and leaves all others alone."""
    try:
        if (resource.group, resource.kind) == NETWORK_POLICY:
            return _network_policy(resource)
        return _admin_policy(resource, find_unread(resource))
    except Exception as error:
        reason = f"it cannot be read ({failure_words(error)})"
        tier, namespaces = TierName.ADMIN, EVERYTHING
        if (resource.group, resource.kind) == NETWORK_POLICY:
            tier, namespaces = TierName.NAMESPACE, _only(resource.namespace)
        ingress, egress = (
            (NetworkRule(tier, resource.reference, resource, direction, 0, RuleAction.DENY, None, None),)
            for direction in (Direction.INGRESS, Direction.EGRESS)
        )
        everything = TieredPolicy(
            tier, resource.reference, resource, namespaces, EVERYTHING, ingress, egress, _FIRST, reason
        )
        return closed_policy(everything, reason)


def closed_policy(policy: TieredPolicy, reason: str) -> TieredPolicy:
    """Return a policy that applies where this one does and fails closed there: it allows nothing.

    A NetworkPolicy isolates its pods. Of a policy of the other tiers, a rule that allows matches nobody, and every
    other rule denies everybody. Nothing else of the rules remains, not even their names: any part may be at fault.
    """

    def closed(rules: tuple[NetworkRule, ...] | None) -> tuple[NetworkRule, ...] | None:
        return tuple(map(closed_rule, rules)) if rules is not None else None

    def closed_rule(rule: NetworkRule) -> NetworkRule:
        if policy.tier is TierName.NAMESPACE or rule.action is RuleAction.ALLOW:
            return replace(rule, action=RuleAction.ALLOW, peers=(), ports=None, name="", closed=reason)
        return replace(rule, action=RuleAction.DENY, peers=None, ports=None, name="", closed=reason)

    return replace(policy, ingress=closed(policy.ingress), egress=closed(policy.egress), closed=reason)


def _only(namespace: str) -> Selector:
    return Selector((Requirement(NAMESPACE_NAME, "In", (namespace,)),))


def _unread_finder(snapshot: Snapshot) -> Callable[[Resource], Sequence[AdmissionProblem]]:
    """Return a function that finds the parts of a policy that only a definition, or a cluster, declares."""
    if not any(policy.is_live for kind in KINDS[:-1] for policy in snapshot.of_kind(*kind)) and not any(
        True for _ in snapshot.of_kind(*DEFINITION)
    ):
        return lambda _: ()
    from tierwall.resources.validity import unknown_parts  # imports all of admission, which few snapshots need here

    return partial(unknown_parts, snapshot)


def _order(policy: TieredPolicy) -> tuple[bool, int, str, str, str]:
    # Strings compare by code point, which is the order of their bytes in UTF-8.
    kind, namespace, name, *_ = policy.reference
    return kind == BASELINE, policy.priority, namespace, name, kind


def _admin_policy(resource: Resource, unread: Sequence[AdmissionProblem]) -> TieredPolicy:
    """Read one policy of the Admin or Baseline tier."""
    spec = resource.spec
    reasons: list[str] = []
    unknown: dict[
        tuple[PathStep, ...], str
    ] = {}  # by the first part of the path, which is at most as long as the path of a rule
    for problem in unread:
        part = problem.path[:3] if problem.path[1:2] in _RULES else problem.path[:2]
        unknown[part] = problem.message
        if len(part) < 3:
            reasons.append(problem.message)
    strays = _stray_fields(resource, unknown)
    reasons += strays
    # A problem with the object as a whole counts for its subject and for each rule.
    whole = next((message for part, message in unknown.items() if len(part) < 2), "")
    try:
        everybody = whole or _SUBJECT in unknown
        namespaces, pods = (EVERYTHING, EVERYTHING) if everybody else read_subject(spec.get("subject"))
    except MalformedRule as error:
        namespaces, pods = widest_subject(spec.get("subject"))
        reasons.append(f"the subject cannot be understood ({error})")
    tier, priority = _place(resource, reasons)
    closed = "; ".join(reasons)
    rules: dict[Direction, tuple[NetworkRule, ...]] = {}
    for direction in Direction:
        written = spec.get(direction)
        if written is None:
            if strays:
                rules[direction] = (_admin_rule(tier, resource, direction, 0, None, strays[0], closed),)
            continue
        everywhere = whole if isinstance(written, list) else f"`{direction}` is not a list"
        rules[direction] = ()
        for index, rule in enumerate(written if isinstance(written, list) else (None,)):
            why = everywhere or unknown.get(("spec", direction, index), "")
            rules[direction] += (_admin_rule(tier, resource, direction, index, rule, why, closed),)
    ingress, egress = rules.get(Direction.INGRESS), rules.get(Direction.EGRESS)
    return TieredPolicy(tier, resource.reference, resource, namespaces, pods, ingress, egress, priority, closed)


def _stray_fields(resource: Resource, unknown: Mapping[tuple[PathStep, ...], str]) -> list[str]:
    """Return what is wrong with fields that nobody declares. Such a field may be a misspelled `ingress` or `egress`."""
    fields = *_ADMIN_FIELDS.get(resource.kind, ("subject", "priority")), *Direction
    return [
        f"`{field}` is not a field" for field in resource.spec if field not in fields and ("spec", field) not in unknown
    ]


def _place(resource: Resource, reasons: list[str]) -> tuple[TierName, int]:
    if resource.kind == BASELINE:
        return TierName.BASELINE, 0
    tier, priority = TierName.ADMIN, resource.spec.get("priority")
    if resource.kind == CLUSTER:
        if resource.spec.get("tier") in (TierName.ADMIN, TierName.BASELINE):
            tier = TierName(resource.spec["tier"])
        else:
            reasons.append(f"tier `{resource.spec.get('tier')}` is neither Admin nor Baseline")
            return tier, _FIRST
    if type(priority) is not int:
        reasons.append(f"priority `{priority}` is not a whole number")
        return tier, _FIRST
    return tier, priority


def _admin_rule(
    tier: TierName, resource: Resource, direction: Direction, index: int, value: Any, unknown: str, policy_closed: str
) -> NetworkRule:
    """Read one rule. `unknown` describes a part that a definition declares and Tierwall does not know."""
    fields = value if isinstance(value, dict) else {}
    action_name, name = fields.get("action"), fields.get("name")
    action = _ACTIONS.get(action_name) if isinstance(action_name, str) else None
    name = name if isinstance(name, str) else ""
    reference = resource.reference
    try:
        if unknown:
            raise MalformedRule(unknown)
        only_known(as_map(value, "the rule"), _RULE_FIELDS, "the rule")
        if action is None:
            raise MalformedRule(f"expected one of {', '.join(_ACTIONS)} as `action`, found `{action_name}`")
        egress = BASELINE_EGRESS_PEER if resource.kind == BASELINE else EGRESS_PEER
        peers = read_admin_peers(fields, direction, egress if direction is Direction.EGRESS else INGRESS_PEER)
        is_cluster = resource.kind == CLUSTER
        if fields.get("ports" if is_cluster else "protocols") is not None:
            raise MalformedRule("`ports` and `protocols` belong to different kinds of policy")
        ports = read_cluster_protocols(fields.get("protocols")) if is_cluster else read_admin_ports(fields.get("ports"))
    except MalformedRule as error:
        # A malformed Allow matches nothing; a malformed Deny or Pass denies everything in its direction.
        if action is RuleAction.ALLOW:
            return NetworkRule(tier, reference, resource, direction, index, action, (), None, name, str(error))
        return NetworkRule(tier, reference, resource, direction, index, RuleAction.DENY, None, None, name, str(error))
    if policy_closed:
        # The subject is unknown, so the rule may apply to pods it was not meant for: it must not allow or pass on.
        peers = () if action is RuleAction.ALLOW else peers
        action = RuleAction.ALLOW if action is RuleAction.ALLOW else RuleAction.DENY
    return NetworkRule(tier, reference, resource, direction, index, action, peers, ports, name, policy_closed)


def _network_policy(resource: Resource) -> TieredPolicy:
    spec = resource.spec
    closed = ""
    pods = EVERYTHING
    try:
        if spec.get("podSelector") is not None:
            pods = read_selector(spec["podSelector"], "podSelector")
    except MalformedRule as error:
        closed = f"the pods cannot be understood ({error})"
    rules: dict[Direction, tuple[NetworkRule, ...]] = {}
    for direction in _directions(resource):
        written = spec.get(direction)
        values = written if isinstance(written, list) else () if written is None else (written,)
        rules[direction] = tuple(
            _network_policy_rule(resource, direction, index, value, closed) for index, value in enumerate(values)
        )
    namespace = _only(resource.namespace)
    ingress, egress = rules.get(Direction.INGRESS), rules.get(Direction.EGRESS)
    return TieredPolicy(
        TierName.NAMESPACE, resource.reference, resource, namespace, pods, ingress, egress, closed=closed
    )


def _directions(resource: Resource) -> Iterable[Direction]:
    types = resource.spec.get("policyTypes")
    # A field that is not known may be a misspelled `policyTypes` or `egress`, and a spec that is not a map any of them.
    if any(field not in _FIELDS for field in resource.spec) or not isinstance(resource.value.get("spec"), dict):
        return Direction
    if types is None or types == []:
        return Direction if resource.spec.get("egress") else (Direction.INGRESS,)
    if not isinstance(types, list) or not all(isinstance(word, str) and word in _TYPES for word in types):
        return Direction
    return (_TYPES[word] for word in types)


def _network_policy_rule(resource: Resource, direction: Direction, index: int, value: Any, closed: str) -> NetworkRule:
    peers: tuple[Peer, ...] | None = ()
    ports = None
    try:
        if not closed:
            # `- ` with nothing after it is an empty rule. It allows everything, as `{}` does.
            fields = as_map({} if value is None else value, "the rule")
            only_known(fields, (*(other.peers_key for other in Direction), "ports"), "the rule")
            peers = read_network_policy_peers(fields, direction)
            ports = read_network_policy_ports(fields.get("ports"))
    except MalformedRule as error:
        peers, closed = (), str(error)
    tier, reference = TierName.NAMESPACE, resource.reference
    return NetworkRule(tier, reference, resource, direction, index, RuleAction.ALLOW, peers, ports, closed=closed)


def fail_closed_warnings(policies: Iterable[TieredPolicy]) -> Iterator[Diagnostic]:
    """Yield a warning for each policy that fails closed, or for each rule that does, at its position."""
    for policy in policies:
        parts = (policy,) if policy.closed else policy.all_rules
        for part in parts:
            if part.closed:
                message = f"{part} fails closed: {part.closed}"
                yield part.resource.diagnostic("TW208", message, part.path)


def is_shadow(resource: Resource) -> bool:
    """Whether a policy is in shadow mode."""
    key, mode = SHADOW
    return nested_map(resource.metadata, "annotations").get(key) == mode


def shadow_policies(snapshot: Snapshot) -> list[Resource]:
    """Return the network policies in shadow mode."""
    return [resource for kind in KINDS for resource in snapshot.of_kind(*kind) if is_shadow(resource)]


def without_shadow_policies(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without its policies in shadow mode."""
    shadows = shadow_policies(snapshot)
    return snapshot.with_changes(drop=shadows) if shadows else snapshot


def shadow_notes(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield a note for every network policy in shadow mode."""
    for resource in shadow_policies(snapshot):
        message = f"{resource.reference} is in shadow mode: it is only watched and does not decide any connection"
        yield resource.diagnostic("TW209", message, ("metadata", "annotations", SHADOW[0]), key=True)
