"""Findings of `check` about policies that Envoy cannot enforce as they are written, without compiling them.

The model decides by every rule. Envoy has fewer functions, and limits: a rule that it cannot evaluate never matches
there (`TW651`), and a policy over a limit denies everything (`TW660`). Of the settings of AgentgatewayPolicies it
enforces some (`TW662`). Envoy's own packages are not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from tierwall.attach.backend import backend_refs, is_permitted, nested_refs
from tierwall.attach.place import BACKEND, MODEL, ROUTES, Place
from tierwall.attach.reach import RouteRule
from tierwall.attach.section import sub_backends
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.core.source import Path
from tierwall.engines.envoy.config.cel_expression import Inexpressible, translated
from tierwall.engines.envoy.config.closings import every_closing
from tierwall.engines.envoy.config.options import MAX_PROGRAM_SIZE
from tierwall.engines.envoy.config.patterns import check_http_match
from tierwall.engines.envoy.config.policy_limits import RuleOverLimit, check_limits
from tierwall.engines.envoy.config.settings.values import too_many_rules
from tierwall.engines.envoy.config.unserved_parts import NOT_SERVED, not_served
from tierwall.gateway.decide import merger
from tierwall.gateway.model.conditional import ANY_REQUEST
from tierwall.gateway.model.enforcement import COMPETING, UnenforcedSetting, unenforced_parts, unenforced_settings
from tierwall.gateway.model.fields import PHASES, written_fields
from tierwall.gateway.model.places import reachable_places
from tierwall.gateway.unenforced import unenforced_in_force
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_valid
from tierwall.tool.model import model
from tierwall.tool.rules import AccessPolicy, AccessRule

# Where policies have rules that add up.
_AUTHORIZATION = (
    ("traffic", "authorization"),
    ("frontend", "networkAuthorization"),
    ("backend", "mcp", "authorization"),
)
INEXPRESSIBLE, OVER_LIMIT, NOT_ENFORCED = "TW651", "TW660", "TW662"


def envoy_findings(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield a finding for each rule that Envoy cannot evaluate, and for each policy that is over its limits."""
    policies = model(snapshot)
    for resource in policies.resources:
        policy = policies.policy(resource)
        if not policy.closed:
            yield from _findings(policy)
    for settings in attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies:
        yield from _not_enforced(settings, settings.reference, unenforced_settings(settings))
        yield from _not_permitted(snapshot, settings)
    yield from _of_places(snapshot)
    for backend in snapshot.of_kind(*BACKEND):
        if is_valid(snapshot, backend):
            yield from _backend_findings(backend)
            yield from _not_permitted(snapshot, backend)
    for route in (route for kind in ROUTES for route in snapshot.of_kind(*kind)):
        for ref in backend_refs(route):
            source = Reference(route.kind, route.namespace, route.name, RouteRule(route, ref.rule).label)
            yield from _inline_findings(route, source, ref.value.get("policies"), (*ref.path, "policies"))
            if ref.place.key in NOT_SERVED:
                message = f"Envoy does not serve {ref.place}: requests to it are answered with 500"
                yield route.diagnostic(NOT_ENFORCED, message, ref.path, hint=NOT_SERVED[ref.place.key])
    for closing in every_closing(snapshot):
        yield closing.finding(NOT_ENFORCED)
    for model_object in snapshot.of_kind(*MODEL):
        message = f"Envoy does not serve {model_object.reference}: no request gets to it"
        yield model_object.diagnostic(NOT_ENFORCED, message, ("spec",), hint=NOT_SERVED[MODEL])


def _of_places(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield what is not enforced where policies meet: conditional lists that compete, and too many rules together."""
    policies = attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies
    sections = [nested_map(policy.spec, *keys) for policy in policies for keys in _AUTHORIZATION]
    overrides = any(nested_map(policy.spec, "strategy").get("inheritance") == "Override" for policy in policies)
    has_lists = overrides and any(_has_list(policy.spec.get("traffic")) for policy in policies)
    if not has_lists and not too_many_rules(sections):
        return
    seen: set[tuple[Reference, str]] = set()
    for place, phase in product(reachable_places(snapshot), PHASES):
        for field in merger(snapshot, "docs", phase, ANY_REQUEST).merge_at(place).values():
            for candidate, part in unenforced_in_force(field):
                is_of_place = part.words == COMPETING or (field.field.union and not part.path)
                if is_of_place and (candidate.source, part.name) not in seen:
                    seen.add((candidate.source, part.name))
                    whole = part._replace(path=candidate.path)
                    yield from _not_enforced(candidate.resource, candidate.source, (whole,))


def _has_list(section: object) -> bool:
    values = section.values() if isinstance(section, dict) else ()
    return any(isinstance(value, dict) and "conditional" in value for value in values)


def _not_permitted(snapshot: Snapshot, owner: Resource) -> Iterator[Diagnostic]:
    """Yield the services in other namespaces that settings may not name, with `--backend-ref-grants strict`."""
    for ref in nested_refs(owner):
        if not is_permitted(snapshot, owner, ref.place):
            message = (
                f"Envoy does not enforce settings of {owner.reference} that need {ref.place}: no ReferenceGrant "
                "permits it; if they restrict requests, these are answered with 500"
            )
            hint = f"write a ReferenceGrant in namespace {ref.place.namespace} from {owner.kind} of {owner.namespace}"
            yield owner.diagnostic(NOT_ENFORCED, message, ref.path, hint=hint)


def _backend_findings(backend: Resource) -> Iterator[Diagnostic]:
    """Yield what Envoy does not serve of a backend, and what it does not enforce of its inline settings."""
    if (unserved := not_served(backend)) is not None:
        yield unserved.diagnostic(NOT_ENFORCED)
    yield from _inline_findings(backend, backend.reference, backend.spec.get("policies"), ("spec", "policies"))
    for sub in sub_backends(backend):
        yield from _inline_findings(backend, Place.of(backend, sub.name).reference, sub.policies, sub.path)


def _inline_findings(owner: Resource, source: Reference, policies: object, path: Path) -> Iterator[Diagnostic]:
    for written in written_fields("backend", policies):
        parts = (part._replace(path=(*path, *part.path)) for part in unenforced_parts(written))
        yield from _not_enforced(owner, source, parts)


def _not_enforced(owner: Resource, source: Reference, parts: Iterable[UnenforcedSetting]) -> Iterator[Diagnostic]:
    for part in parts:
        message = f"Envoy does not enforce `{part.name}` of {source}: {part.words}; {part.effect}"
        yield owner.diagnostic(NOT_ENFORCED, message, part.path, key=True)


def _findings(policy: AccessPolicy) -> Iterator[Diagnostic]:
    try:
        check_limits(policy)
    except RuleOverLimit as error:
        yield over_limit(policy, error)
        return
    for rule in dict.fromkeys((*policy.allows.all, *policy.asks.all)):
        try:
            check_http_match(rule.http, MAX_PROGRAM_SIZE)
            for method in rule.methods:
                if method.condition is not None:
                    translated(method.condition).check()
        except Inexpressible as error:
            yield inexpressible(policy, rule, error, asks=rule in policy.asks.all)


def inexpressible(policy: AccessPolicy, rule: AccessRule, error: Inexpressible, *, asks: bool) -> Diagnostic:
    """Return the diagnostic of a rule that Envoy cannot evaluate; `asks` if the rule asks an authorizer."""
    consequence = "it always asks its authorizer" if asks else "it never matches"
    message = f"Envoy cannot evaluate {rule}, so {consequence}: {error}"
    return policy.resource.diagnostic(INEXPRESSIBLE, message, rule.path)


def over_limit(policy: AccessPolicy, error: RuleOverLimit) -> Diagnostic:
    """Return the diagnostic of a policy that is over one of Envoy's limits, at the rule at fault."""
    what = error.rule if error.rule is not None else "its rules"
    message = f"Envoy cannot hold {what}, so {policy.reference} denies every request to its targets there: {error}"
    path = (*error.rule.path, "authorization", "cel", "expression") if error.rule is not None else ("spec", "rules")
    return policy.resource.diagnostic(OVER_LIMIT, message, path, hint="split the rule, or write it with names")
