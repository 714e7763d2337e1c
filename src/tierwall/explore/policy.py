"""`/policy/KIND[.GROUP]/[NS/]NAME`: a manifest with line numbers, what it decides, and who overrides whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.analyze.statuses import AnyStatus
from tierwall.core.diagnostics import InputError, UnknownName, unknown_name_diagnostic
from tierwall.core.reference import Reference
from tierwall.explore import named
from tierwall.explore.findings import finding_item
from tierwall.explore.manifest import listing, manifest, shown_value
from tierwall.explore.markup import Child, Markup, joined, tag
from tierwall.explore.network import decided_connections
from tierwall.explore.page import (
    ExploredWorld,
    Page,
    Query,
    address,
    failed,
    link,
    object_link,
    opening,
)
from tierwall.explore.permissions import decided_permissions
from tierwall.explore.review import checked
from tierwall.gateway.detail import FieldDetail
from tierwall.gateway.question import GatewayQuestion, ask_everywhere
from tierwall.network.model.policies import KINDS as NETWORK_KINDS
from tierwall.render.json import diagnostic_document, source_document
from tierwall.render.status import status_document, status_lines
from tierwall.resources.resource import Resource, list_of_maps

# Findings about two policies in which the one named first is overridden by the others.
_OVERRIDDEN = ("TW202", "TW203", "TW212", "TW303", "TW306")
# The most lines of a list on this page, and the most places that are looked at.
MAX_LISTED, MAX_PLACES = 40, 2000
_SECRET = ("", "Secret")


def policy(explored: ExploredWorld, query: Query, path: str) -> Page:
    """Show one object. Secrets are never shown, whoever put them among the manifests."""
    parts = path.split("/")
    try:
        if not 2 <= len(parts) <= 3 or not all(parts):
            raise UnknownName(
                [unknown_name_diagnostic("expected `/policy/Kind/namespace/name` or `/policy/Kind/name`")]
            )
        kind, _, group = parts[0].partition(".")
        reference = Reference(kind, parts[1] if len(parts) == 3 else "", parts[-1], group=group)
        resource = explored.world.find(reference)
        if (resource.group, resource.kind) == _SECRET:
            raise UnknownName([unknown_name_diagnostic("Secrets are not shown")])
    except InputError as error:
        return failed("Nothing here has that name", error, "")
    return _of(explored, resource)


def _of(explored: ExploredWorld, resource: Resource) -> Page:
    world, name = explored.world, str(resource.reference)
    about = [finding for finding in checked(explored).findings if str(finding.reference) == name]
    naming = [finding for finding in checked(explored).findings if name in finding.related_objects]
    overriders = _names(finding.related_objects for finding in about if finding.code in _OVERRIDDEN)
    overridden = _names((str(finding.reference),) for finding in naming if finding.code in _OVERRIDDEN)
    facts = list(_facts(explored, resource))
    if resource.kind == "AgentgatewayPolicy":
        winners, losers, settings = _settings(explored, resource)
        overriders, overridden = [*overriders, *winners], [*overridden, *losers]
        facts += settings
    statuses = _statuses(explored, resource)
    text = manifest(resource, world.line)
    marked = {finding.at.line for finding in about if finding.at is not None and finding.at.file == text.file}
    document = {
        "object": name,
        "source": source_document(resource.position()),
        "manifest": shown_value(resource),
        "decides": [words for words, _ in facts],
        "overrides": overridden,
        "overriddenBy": overriders,
        "status": [status_document(status) for status in statuses],
        "findings": [diagnostic_document(finding) for finding in about],
    }
    decides: list[Child] = [tag("li", shown) for _, shown in facts[:MAX_LISTED]]
    if len(facts) > MAX_LISTED:
        decides.append(tag("li", f"and {len(facts) - MAX_LISTED:,} more"))
    body = joined(
        opening(name, resource.api_version),
        _names_section("Overridden by", overriders),
        _names_section("Overrides", overridden),
        tag("section", tag("h2", "What it decides"), tag("ul", decides)) if decides else None,
        tag("section", tag("h2", "Findings"), tag("ul", map(finding_item, about), class_="findings"))
        if about
        else None,
        _status_section(statuses),
        tag("section", tag("h2", "Manifest"), listing(text, marked, f"Manifest of {name}")),
        tag("p", link("Change it, and see what changes", address("/change", object_=name)), class_="next"),
    )
    command = explored.command("status", name) if statuses else ""
    return Page(name, document, body, command=command, room=_room(resource))


def _room(resource: Resource) -> str:
    if (resource.group, resource.kind) in NETWORK_KINDS:
        return "network"
    if resource.kind == "AgentgatewayPolicy":
        return "settings"
    return "tools" if resource.kind.endswith("AccessPolicy") else ""


def _names(groups: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in groups for name in names))


def _names_section(title: str, names: list[str]) -> Markup | None:
    if not names:
        return None
    items = [tag("li", object_link(Reference.parse_or_string(name))) for name in names[:MAX_LISTED]]
    more = tag("li", f"and {len(names) - MAX_LISTED:,} more") if len(names) > MAX_LISTED else None
    return tag("section", tag("h2", title), tag("ul", items, more))


def _statuses(explored: ExploredWorld, resource: Resource) -> list[AnyStatus]:
    try:
        return explored.world.statuses(str(resource.reference))
    except InputError:
        # Only policies have a status.
        return []


def _status_section(statuses: list[AnyStatus]) -> Markup | None:
    if not statuses:
        return None
    lines = "\n".join(line for status in statuses for line in status_lines(status))
    return tag(
        "section", tag("h2", "Status"), tag("ul", [tag("li", line) for line in lines.split("\n") if line.strip()])
    )


def _facts(explored: ExploredWorld, resource: Resource) -> Iterator[tuple[str, Markup]]:
    """Yield what an object decides, as words and as markup."""
    if (resource.group, resource.kind) in NETWORK_KINDS:
        for line in decided_connections(explored.world, resource):
            yield line, tag("span", line)
    elif resource.kind.endswith("AccessPolicy"):
        from tierwall.explore.tools import decided_tools

        for words, href in decided_tools(explored.world, resource):
            yield words, link(words, href)
    elif resource.kind.endswith("AuthorizationPolicy"):
        for words, href in decided_permissions(explored.world, resource):
            yield words, link(words, href)
    elif resource.kind in ("Role", "ClusterRole"):
        for binding in named.bindings_of(explored.world.snapshot, resource):
            yield f"is given by {binding.reference}", joined("is given by ", object_link(binding.reference))
    elif resource.kind in ("RoleBinding", "ClusterRoleBinding"):
        for subject in list_of_maps(resource.value.get("subjects")):
            name, kind = str(subject.get("name")), str(subject.get("kind"))
            namespace = str(subject.get("namespace") or resource.namespace)
            user = f"system:serviceaccount:{namespace}:{name}" if kind == "ServiceAccount" else name
            words = f"grants its role to {kind} {name}"
            terms = {"group": name} if kind == "Group" else {"user": user}
            yield words, link(words, address("/permissions", **terms, namespace=resource.namespace))


def _settings(explored: ExploredWorld, resource: Resource) -> tuple[list[str], list[str], list[tuple[str, Markup]]]:
    """Return who overrides a policy of a gateway, whom it overrides, and the settings that it makes."""
    reference, winners, losers = resource.reference, dict[str, None](), dict[str, None]()
    settings: dict[str, Markup] = {}
    for number, answer in enumerate(ask_everywhere(explored.world.snapshot, GatewayQuestion())):
        if number == MAX_PLACES:
            break
        for field in answer.detail.fields:
            if _sets(field, reference):
                words = f"sets {field.field} at {answer.detail.place}"
                settings.setdefault(words, tag("span", words))
                losers |= {str(step.policy): None for step in field.over if step.policy is not None}
            elif any(_is(step.policy, reference) for step in field.over):
                winners |= {str(setter.step.policy): None for setter in field.set_by}
    return list(winners), list(losers), list(settings.items())


def _sets(field: FieldDetail, reference: Reference) -> bool:
    return any(_is(setter.step.policy, reference) for setter in field.set_by)


def _is(policy: Reference | None, reference: Reference) -> bool:
    return policy is not None and (policy.kind, policy.namespace, policy.name) == (
        reference.kind,
        reference.namespace,
        reference.name,
    )
