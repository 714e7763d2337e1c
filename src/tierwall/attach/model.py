"""AgentgatewayModels: where they are served, and what they lead to.

A rule of an HTTPRoute serves models if its only backendRef is one to the kind AgentgatewayModel with the name `*`, in
the route's namespace and without a port. A model joins by a parentRef to the route in its own namespace, with the rule
as `sectionName` unless the route has only one. A listener serves models too, if its `allowedRoutes.kinds` lists them
and they name it in their parentRefs (docs/gateway.md#models).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tierwall.attach.place import GATEWAY_API, HTTP_ROUTE, MODEL, Place
from tierwall.attach.section import rule_name, rules
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

# Inline policies of a model, and the keys of the same setting in a backend section. `authorization` and `headers` are
# in no backend section.
INLINE_POLICIES: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("auth", "tls", "tunnel", "health")},
    **{name: ("ai", name) for name in ("promptGuard", "transformations", "finalTransformations")},
}


def served_models(snapshot: Snapshot, route: Resource, rule: int) -> tuple[Resource, ...]:
    """Return the models that a rule of a route serves, by name."""
    return _by_rule(snapshot).get((route, rule), ())


def parent_problem(snapshot: Snapshot, model: Resource, parent: Mapping[str, Any]) -> str:
    """Return why a parentRef to an HTTPRoute does not attach a model, or an empty string."""
    serving = _serving_rule(snapshot, model, parent)
    return serving if isinstance(serving, str) else ""


@per_snapshot
def _by_rule(snapshot: Snapshot) -> Mapping[tuple[Resource, int], tuple[Resource, ...]]:
    models: dict[tuple[Resource, int], dict[Resource, None]] = {}
    for model in sorted(snapshot.of_kind(*MODEL), key=lambda resource: (resource.namespace, resource.name)):
        for parent in route_parents(model):
            serving = _serving_rule(snapshot, model, parent)
            if not isinstance(serving, str):
                models.setdefault(serving, {})[model] = None
    return {rule: tuple(served) for rule, served in models.items()}


def route_parents(model: Resource) -> Iterator[Mapping[str, Any]]:
    """Yield the parentRefs of a model that name HTTPRoutes."""
    for parent in list_of_maps(model.spec.get("parentRefs")):
        if (parent.get("group", GATEWAY_API), parent.get("kind")) == HTTP_ROUTE:
            yield parent


def _serving_rule(snapshot: Snapshot, model: Resource, parent: Mapping[str, Any]) -> tuple[Resource, int] | str:
    """Return the rule that a parentRef names, or why the rule does not serve the model."""
    name, section = parent.get("name"), parent.get("sectionName")
    if (parent.get("namespace") or model.namespace) != model.namespace:
        return "a route of another namespace does not serve it"
    route = snapshot.get(*HTTP_ROUTE, model.namespace, str(name))
    if route is None:
        return f"HTTPRoute {model.namespace}/{name} not found"
    listed = rules(route)
    if section is None and len(listed) != 1:
        return f"HTTPRoute {model.namespace}/{name} has {len(listed)} rules, and `sectionName` names none"
    names = [rule_name(rule) for rule in listed]
    if section is not None and section not in names:
        return f"no rule {section} in HTTPRoute {model.namespace}/{name}"
    number = names.index(section) if section is not None else 0
    if not _serves(route, listed[number]):
        return f"rule {names[number] or number} of HTTPRoute {model.namespace}/{name} does not serve models"
    return route, number


def _serves(route: Resource, rule: Mapping[str, Any]) -> bool:
    refs = list_of_maps(rule.get("backendRefs"))
    if len(refs) != 1 or (refs[0].get("group"), refs[0].get("kind"), refs[0].get("name")) != (*MODEL, "*"):
        return False
    (ref,) = refs
    is_plain = ref.get("weight") in (None, 1) and not ref.get("port") and not ref.get("filters")
    paths = (nested_map(match, "path") for match in list_of_maps(rule.get("matches")))
    filters = {rule_filter.get("type") for rule_filter in list_of_maps(rule.get("filters"))}
    return (
        is_plain
        and (ref.get("namespace") or route.namespace) == route.namespace
        and all(path.get("type") in (None, "PathPrefix") for path in paths)
        and filters.isdisjoint(("URLRewrite", "RequestRedirect"))
    )


def model_targets(model: Resource) -> Iterator[Place]:
    """Yield the models of the same namespace that a virtual model chooses from."""
    virtual = nested_map(model.spec, "virtualModel")
    for way in ("weighted", "failover", "conditional"):
        for target in list_of_maps(nested_map(virtual, way).get("targets")):
            name = nested_map(target, "modelRef").get("name")
            if isinstance(name, str) and name:
                yield Place(*MODEL, model.namespace, name)


def inline_section(model: Resource) -> dict[str, Any]:
    """Return the inline policies of a model in the form of a backend section."""
    section: dict[str, Any] = {}
    policies = nested_map(model.spec, "policies")
    for name, (*outer, last) in INLINE_POLICIES.items():
        if name in policies:
            target = section
            for key in outer:
                target = target.setdefault(key, {})
            target[last] = policies[name]
    return section
