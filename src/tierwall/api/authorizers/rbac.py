"""The RBAC authorizer: Allow if a rule of a role bound to the user grants the request, else NoOpinion. Never Deny.

Rules, aggregation and bindings are those of Kubernetes' `pkg/apis/rbac` and `plugin/pkg/auth/authorizer/rbac`. `pods`
does not grant `pods/x`; `*` grants all subresources, `*/x` only subresource x; `resourceNames` never match an empty
name; the URL `/a/*` is the prefix `/a/`. A role or binding that an API server would refuse grants nothing, whether it
is bound or aggregated (docs/semantics.md#a-policy-that-cannot-be-used-fails-alone). A ClusterRoleBinding applies
everywhere; a RoleBinding only in its own namespace, and never to a path. A ServiceAccount subject without a namespace
has the binding's. Bindings are found by subject, so unrelated ones cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tierwall.api.algebra.authorizer import WithoutConditionSets
from tierwall.api.algebra.decision import Decision, no_opinion, settled_by_step
from tierwall.api.algebra.request import Attributes
from tierwall.core.answer import Reason, Step
from tierwall.core.labels import Selector, SelectorError
from tierwall.core.verdict import StepVerdict
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import built_in_problems

GROUP = "rbac.authorization.k8s.io"


class PolicyRule(msgspec.Struct, frozen=True):
    """One rule of a role, and its index there."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    names: frozenset[str]
    urls: tuple[str, ...]
    role: Resource
    index: int

    def grants(self, attributes: Attributes) -> bool:
        """Whether this rule alone allows a request."""
        if attributes.verb not in self.verbs and "*" not in self.verbs:
            return False
        if not attributes.is_resource_request:
            return any(_url_matches(url, attributes.path) for url in self.urls)
        return (
            ("*" in self.groups or attributes.group in self.groups)
            and (
                "*" in self.resources
                or attributes.combined_resource in self.resources
                or (attributes.subresource != "" and f"*/{attributes.subresource}" in self.resources)
            )
            and (not self.names or (attributes.name != "" and attributes.name in self.names))
        )


def _url_matches(rule: str, path: str) -> bool:
    return rule in ("*", path) or (rule.endswith("*") and path.startswith(rule.rstrip("*")))


def find_role(snapshot: Snapshot, kind: str, namespace: str, name: str) -> Resource | None:
    """Return a role by how a binding in a namespace names it."""
    home = {"Role": namespace, "ClusterRole": ""}.get(kind)
    return snapshot.get(GROUP, kind, home, name) if home is not None else None


def rules_of(snapshot: Snapshot, kind: str, namespace: str, name: str) -> tuple[PolicyRule, ...]:
    """Return the rules of a role; a role that does not exist has none."""
    role = find_role(snapshot, kind, namespace, name)
    if role is None:
        return ()
    if kind == "Role" or not isinstance(role.value.get("aggregationRule"), Mapping):
        return tuple(_own_rules(role))
    return tuple(rule for part in _aggregated(snapshot, role) for rule in _own_rules(part))


def _aggregated(snapshot: Snapshot, role: Resource) -> Iterator[Resource]:
    """Yield the plain roles that an aggregated role consists of, by name.

    The controller replaces the rules of an aggregated role by those of the roles it selects, until nothing changes;
    rules written into the role itself are lost. Roles that only select each other have no rules.
    """
    plain: dict[str, Resource] = {}
    seen = {role.name}
    todo = [role]
    while todo:
        aggregated = todo.pop()
        if not _is_accepted(aggregated):
            continue
        for selected in _selected(snapshot, aggregated):
            if selected.name in seen:
                continue
            seen.add(selected.name)
            if isinstance(selected.value.get("aggregationRule"), Mapping):
                todo.append(selected)
            else:
                plain[selected.name] = selected
    yield from (plain[name] for name in sorted(plain))


def _selected(snapshot: Snapshot, role: Resource) -> Iterator[Resource]:
    for value in _items(role.value["aggregationRule"].get("clusterRoleSelectors")):
        try:
            selector = Selector.parse(value)
        except SelectorError:
            continue
        yield from snapshot.selected(GROUP, "ClusterRole", selector)


def _own_rules(role: Resource) -> Iterator[PolicyRule]:
    for index, value in enumerate(_items(role.value.get("rules"))):
        if not isinstance(value, Mapping):
            continue
        resource_names = value.get("resourceNames")
        names = _strings(resource_names)
        # Whatever is written there narrows the rule. What cannot be read must not widen it.
        if resource_names not in (None, []) and not names:
            continue
        yield PolicyRule(
            _strings(value.get("verbs")),
            _strings(value.get("apiGroups")),
            _strings(value.get("resources")),
            names,
            tuple(sorted(_strings(value.get("nonResourceURLs")))),
            role,
            index,
        )


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _strings(value: Any) -> frozenset[str]:
    return frozenset(string for string in _items(value) if isinstance(string, str))


class Binding(msgspec.Struct, frozen=True, eq=False):
    """A binding and the rules it grants; `namespace` is empty for a ClusterRoleBinding."""

    resource: Resource
    namespace: str
    rules: tuple[PolicyRule, ...]
    role: Resource | None = None

    def is_sound(self, rule: PolicyRule) -> bool:
        """Whether an API server would accept every object that one of the rules comes from."""
        return _is_accepted(self.resource) and _is_accepted(self.role) and _is_accepted(rule.role)


def _is_accepted(resource: Resource | None) -> bool:
    if resource is None:
        return True
    # No CustomResourceDefinition can replace these kinds.
    problems = built_in_problems(resource)
    # What is wrong with an object of a cluster is not known here.
    return not (problems if resource.is_live else problems.errors)


class RbacAuthorizer(WithoutConditionSets):
    """RBAC over one snapshot."""

    def __init__(self, snapshot: Snapshot, name: str = "rbac") -> None:
        self.name = name
        self._bindings = bindings_by_subject(snapshot)
        no_rule = Step(tier=name, verdict=StepVerdict.NO_OPINION, reason=Reason.NO_RULE_MATCHED)
        self._no_rule = no_opinion(no_rule, "no RBAC rule grants it")

    def authorize(self, attributes: Attributes) -> Decision:
        """Allow if a rule grants the request. Cluster-wide bindings come first, then those of the namespace."""
        if not self._bindings:
            return self._no_rule
        for rule, binding in self._bound_rules(attributes):
            # Only what would grant is validated: a cluster has thousands of roles.
            if rule.grants(attributes) and binding.is_sound(rule):
                return self._allow(rule, binding)
        return self._no_rule

    def _allow(self, rule: PolicyRule, binding: Binding) -> Decision:
        role, bound_by = rule.role, binding.resource.reference
        step = Step(
            tier=self.name,
            verdict=StepVerdict.ALLOW,
            reason=Reason.GRANTED_BY_BINDING,
            policy=role.reference,
            rule=f"rules[{rule.index}]",
            note=f"bound by {bound_by}",
            origin=role,
            path=("rules", rule.index),
        )
        return settled_by_step(step, f"RBAC: allowed by {bound_by} of {role.reference}")

    def rules_for(self, attributes: Attributes) -> Iterator[tuple[PolicyRule, Binding]]:
        """Yield every rule that applies to the user in the request's namespace, with its binding."""
        return (entry for entry in self._bound_rules(attributes) if entry[1].is_sound(entry[0]))

    def _bound_rules(self, attributes: Attributes) -> Iterator[tuple[PolicyRule, Binding]]:
        subjects = [("User", attributes.user), *(("Group", group) for group in dict.fromkeys(attributes.groups))]
        namespaces = [""]  # of ClusterRoleBindings
        if attributes.is_resource_request and attributes.namespace:
            namespaces.append(attributes.namespace)
        for namespace in namespaces:
            seen: set[Binding] = set()
            for kind, name in subjects:
                for binding in self._bindings.get((namespace, kind, name), ()):
                    if binding not in seen:
                        seen.add(binding)
                        for rule in binding.rules:
                            yield rule, binding


@per_snapshot
def bindings_by_subject(snapshot: Snapshot) -> Mapping[tuple[str, str, str], Sequence[Binding]]:
    """Index bindings by (namespace, `User` or `Group`, name), in the order of their names."""
    index: dict[tuple[str, str, str], list[Binding]] = {}
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        for resource in sorted(snapshot.of_kind(GROUP, kind), key=lambda binding: (binding.namespace, binding.name)):
            namespace = resource.namespace if kind == "RoleBinding" else ""
            role = resource.value.get("roleRef")
            if not isinstance(role, Mapping) or (kind == "RoleBinding" and not namespace):
                continue
            role_kind, role_name = role.get("kind"), role.get("name")
            if not isinstance(role_kind, str) or not isinstance(role_name, str):
                continue
            if kind == "ClusterRoleBinding" and role_kind == "Role":
                continue
            named = snapshot, role_kind, namespace, role_name
            binding = Binding(resource, namespace, rules_of(*named), find_role(*named))
            for subject in _subjects(resource.value.get("subjects"), namespace):
                bindings = index.setdefault((namespace, *subject), [])
                if not bindings or bindings[-1] is not binding:
                    bindings.append(binding)
    return index


def _subjects(value: Any, namespace: str) -> Iterator[tuple[str, str]]:
    for subject in list_of_maps(value):
        kind, name = subject.get("kind"), subject.get("name")
        if not isinstance(name, str):
            continue
        if kind in ("User", "Group"):
            yield kind, name
        elif kind == "ServiceAccount":
            home = subject.get("namespace") or namespace
            if isinstance(home, str) and home:
                yield "User", f"system:serviceaccount:{home}:{name}"
