"""The AccessPolicies of a snapshot in one form, and which of them guard a way.

docs/tool.md#how-a-request-is-decided.

A policy guards its targets: existing objects in its own namespace, or single listeners where it names sections. A
policy that admission or a controller would refuse closes its targets, and what it may have named where they cannot be
read (`attach.closing`); a policy over a limit guards nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec.structs import replace

from tierwall.attach.acceptance import MAX_POLICIES, closing_reasons, is_rejected
from tierwall.attach.closing import NO_SCOPE, closing_scope
from tierwall.attach.listener import Listener
from tierwall.attach.place import GATEWAY, Place
from tierwall.attach.target import ACCESS_GROUPS, ACCESS_POLICIES, attachments, policy_order, whole_objects
from tierwall.attach.target import follow as follow_attachments
from tierwall.core.stack import CombiningRule, Stack, Tier
from tierwall.resources.admission import with_defaults
from tierwall.resources.once import per_snapshot, provide
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import installed_definition
from tierwall.tool.generations import ReadNames, read_policy
from tierwall.tool.joined import target_names
from tierwall.tool.methods import NameSet, read_names
from tierwall.tool.protocol import CALL
from tierwall.tool.request import Backend
from tierwall.tool.rules import NO_RULES, AccessPolicy

BACKENDS = tuple((group, "XBackend") for group in ACCESS_GROUPS)
DEFAULT_PATH = "/mcp"


class PolicyLevel(StrEnum):
    """The level of the policy that settles a request: the names of the tiers, and `Default` without any policy."""

    GATEWAY = "Gateway"
    BACKEND = "Backend"
    DEFAULT = "Default"


class ToolModel:
    """The policies of one snapshot; each is read on first use."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.attachments = attachments(snapshot, ACCESS_POLICIES, admitted=False)
        self._policies: dict[Resource, AccessPolicy] = {}
        self._policies_by_place: dict[tuple[Place, ...], tuple[AccessPolicy, ...]] = {}

    @property
    def resources(self) -> tuple[Resource, ...]:
        """All AccessPolicies, the most senior first."""
        return self.attachments.policies

    def policy(self, resource: Resource) -> AccessPolicy:
        """Return an AccessPolicy in the one form."""
        policy = self._policies.get(resource)
        if policy is None:
            # INVARIANT: an AccessPolicy has one form, even if threads read it at the same time.
            policy = self._policies.setdefault(resource, _read(self.snapshot, resource))
        return policy

    def inherit(self, before: ToolModel) -> None:
        """Take over the policies of an earlier model that have not changed; call it before anything else.

        A policy on Gateways with a slash in a name is read again, because the scope of the name may have changed. So is
        a policy whose kind has a new definition.
        """
        known = {policy.resource.identity: policy for policy in before._policies.copy().values()}
        for resource in self.resources:
            policy = known.get(resource.identity)
            if policy is None or (is_on_gateways(resource) and _may_have_scope(policy)):
                continue
            if installed_definition(before.snapshot, policy.resource) is not installed_definition(
                self.snapshot, resource
            ):
                continue
            if policy.resource is resource:
                self._policies[resource] = policy
            elif resource.has_same_content(policy.resource):
                self._policies[resource] = replace(policy, resource=resource)

    def inherit_untouched(self, before: ToolModel, removed: Iterable[Resource], added: Iterable[Resource]) -> None:
        """Take over everything of an earlier model that removed and added policies do not touch.

        Call it before anything else.
        """
        removed_set = set(removed)
        self._policies = {
            resource: policy for resource, policy in before._policies.copy().items() if resource not in removed_set
        }
        sides = (before.attachments, removed), (self.attachments, added)
        touched = {place for index, changed in sides for policy in changed for place in whole_objects(index.of(policy))}
        closed = {
            policy.namespace for _, changed in sides for policy in changed if closing_scope(policy) is not NO_SCOPE
        }
        # A policy that a limit rejects at one target is rejected at all its targets.
        touched |= {
            place
            for index, _ in sides
            for whole in tuple(touched)
            for policy in index.on(whole)
            for place in whole_objects(index.of(policy))
        }
        self._policies_by_place = {
            places: policies
            for places, policies in before._policies_by_place.copy().items()
            if not any(place.whole in touched or place.namespace in closed for place in places)
        }

    def stack(self, gateway: Resource, listener: Listener | None, backend: Resource | None) -> Stack[AccessPolicy]:
        """Return the policies that guard the way from a listener of a Gateway to a backend."""
        places = [Place.of(gateway)]
        if listener is not None and listener.owner is gateway:
            places.append(Place.of(gateway, listener.name))
        return (
            Tier(str(PolicyLevel.GATEWAY), self.policies_at(*places), CombiningRule.EVERY_ONE_MUST_ALLOW),
            self.backend_tier(backend),
        )

    def backend_tier(self, backend: Resource | None) -> Tier[AccessPolicy]:
        """The policies on an XBackend; others have none (docs/semantics.md#a-service-sees-gateway-policies-only)."""
        if backend is None or (backend.group, backend.kind) not in BACKENDS:
            return Tier(str(PolicyLevel.BACKEND), (), CombiningRule.EVERY_ONE_MUST_ALLOW)
        return Tier(str(PolicyLevel.BACKEND), self.policies_at(Place.of(backend)), CombiningRule.EVERY_ONE_MUST_ALLOW)

    def policies_at(self, *places: Place) -> tuple[AccessPolicy, ...]:
        """Return the policies that guard any of these places, by age and then name."""
        policies = self._policies_by_place.get(places)
        if policies is None:
            attached = dict.fromkeys(policy for place in places for policy in self.attachments.at(place))
            attached |= dict.fromkeys(policy for place in places for policy in self._closing(place))
            accepted = sorted(
                (policy for policy in attached if not is_rejected(self.snapshot, policy)), key=policy_order
            )
            policies = self._policies_by_place.setdefault(places, _within_limit(list(map(self.policy, accepted))))
        return policies

    def _closing(self, place: Place) -> Iterator[Resource]:
        """Yield the invalid policies that may have named an object in entries that cannot be read."""
        if not place.section:
            for policy in _unreadable(self.snapshot).get(place.namespace, ()):
                if closing_scope(policy).covers(place) and self.policy(policy).closed:
                    yield policy


@per_snapshot
def _unreadable(snapshot: Snapshot) -> Mapping[str, Sequence[Resource]]:
    """Index the policies with target entries that cannot be read by namespace. Not all of them are invalid."""
    policies: dict[str, list[Resource]] = {}
    for policy in attachments(snapshot, ACCESS_POLICIES, admitted=False).policies:
        if closing_scope(policy) is not NO_SCOPE:
            policies.setdefault(policy.namespace, []).append(policy)
    return policies


def _within_limit(policies: list[AccessPolicy]) -> tuple[AccessPolicy, ...]:
    """Return at most five policies with the same verdict: a place has more only if an invalid policy closes it.

    Engines have room for five. Nothing after the first closed policy is ever evaluated.
    """
    if len(policies) <= MAX_POLICIES:
        return tuple(policies)
    first = next(number for number, policy in enumerate(policies) if policy.closed)
    return (*policies[: min(first, MAX_POLICIES - 1)], policies[first])


@per_snapshot
def model(snapshot: Snapshot) -> ToolModel:
    """Return the model of a snapshot."""
    return ToolModel(snapshot)


def inherit(before: Snapshot, snapshot: Snapshot) -> None:
    """Build the model of a snapshot, with the unchanged policies of an earlier snapshot."""
    successor = ToolModel(snapshot)
    successor.inherit(model(before))
    provide(successor, model, snapshot)


def follow(before: Snapshot, snapshot: Snapshot, removed: Sequence[Resource], added: Sequence[Resource]) -> None:
    """Build the model of a snapshot from that of an earlier one that differs only in AccessPolicies."""
    follow_attachments(before, snapshot, ACCESS_POLICIES, removed, added)
    successor = ToolModel(snapshot)
    successor.inherit_untouched(model(before), removed, added)
    provide(successor, model, snapshot)


def backend_of(resource: Resource) -> Backend:
    """Return a backend as requests name it."""
    mcp = resource.spec.get("mcp") if resource.kind == "XBackend" else None
    path = mcp.get("path") if isinstance(mcp, dict) else None
    path = path if isinstance(path, str) else DEFAULT_PATH
    return Backend(resource.namespace, resource.name, resource.kind, path, target_names(resource))


def is_on_gateways(resource: Resource) -> bool:
    """Whether the targets of an admitted policy are Gateways; they are all of one kind."""
    targets = resource.spec.get("targetRefs")
    first = targets[0] if isinstance(targets, list) and targets else None
    return isinstance(first, dict) and (first.get("group"), first.get("kind")) == GATEWAY


def _may_have_scope(policy: AccessPolicy) -> bool:
    return any(
        method.names is not None and (method.names.scoped or "/" in str(method.names))
        for rule in (*policy.allows.all, *policy.asks.all)
        for method in rule.methods
    )


def _read(snapshot: Snapshot, resource: Resource) -> AccessPolicy:
    if reasons := closing_reasons(snapshot, resource):
        return AccessPolicy(resource, NO_RULES, NO_RULES, tuple(reasons), resource.reference)
    return read_policy(resource, with_defaults(resource.value)["spec"], _name_reader(snapshot, resource))


def _name_reader(snapshot: Snapshot, resource: Resource) -> ReadNames:
    on_gateway = is_on_gateways(resource)

    def names(method: str, listed_names: Iterable[str]) -> NameSet:
        return read_names(snapshot, resource.namespace, listed_names, on_gateway=on_gateway and method == CALL)

    return names
