"""`/permissions?user=`: what a user may do, and under which conditions, as `tierwall can-i --list` says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from tierwall.api.permissions import Permission
from tierwall.api.permissions import permissions as user_permissions
from tierwall.core.diagnostics import InputError
from tierwall.explore import named
from tierwall.explore.markup import Child, Markup, joined, tag
from tierwall.explore.page import (
    ExploredWorld,
    Page,
    Query,
    address,
    failed,
    first,
    given,
    link,
    object_link,
    omission_list,
    opening,
    row,
    table,
    verdict_mark,
)
from tierwall.render.api import permissions_document
from tierwall.render.formats import View
from tierwall.resources.resource import Resource
from tierwall.world import World

# The most users, and groups, that are offered, and that are asked about one policy.
MAX_USERS, MAX_DECIDED = 200, 40
# The kinds of objects that permit or deny requests.
_SAYING = ("AuthorizationPolicy", "RoleBinding")


def permissions(explored: ExploredWorld, query: Query) -> Page:
    """Show what a user may do in a namespace."""
    user, groups, namespace = first(query, "user"), given(query, "group"), first(query, "namespace")
    world = explored.world
    if not user and not groups:
        users, known_groups = named.users(world.snapshot), named.groups(world.snapshot)
        body = joined(
            opening("Who may do what?"),
            _form(user, groups, namespace),
            _named("Users", "user", users),
            _named("Groups", "group", known_groups),
        )
        document = {"users": list(users), "groups": list(known_groups), "notConsidered": []}
        return Page("Permissions", document, body, room="permissions")
    try:
        permitted = user_permissions(world.snapshot, user, groups, namespace)
    except InputError as error:
        page = failed("Permissions", error, "permissions")
        return replace(page, body=joined(page.body, _form(user, groups, namespace)))
    omissions = world.omissions("api")
    who = user or f"a member of {', '.join(groups)}"
    title = f"What {who} may do" + (f" in {namespace}" if namespace else "")
    more = (
        tag("p", f"{', '.join(permitted.unlisted)} may allow more, request by request.") if permitted.unlisted else None
    )
    heads = ("Verbs", "Resources", "Names", "Effect", "By", "Condition")
    rows = [_row(permission) for permission in permitted.listed]
    body = joined(
        opening(title, f"{len(rows):,} permissions can be listed.", announced=True),
        _form(user, groups, namespace),
        table(heads, rows, title, data_filter="Filter these rows") if rows else tag("p", "Nothing.", class_="empty"),
        more,
        omission_list(omissions),
    )
    words = ["can-i", "--list", *(("--as", user) if user else ())]
    words += [part for group in groups for part in ("--as-group", group)] + (["-n", namespace] if namespace else [])
    document = permissions_document(permitted.listed, View(not_considered=omissions))
    return Page(
        title, document, body, command="" if explored.has_namespace else explored.command(*words), room="permissions"
    )


def decided_permissions(world: World, resource: Resource) -> Iterator[tuple[str, str]]:
    """Yield what a policy of the API plane says about each user and group that is named, with the address of all."""
    snapshot, policy = world.snapshot, str(resource.reference)
    # What others say takes its time, and nobody asks for it here.
    others = [each for each in snapshot if each.kind.endswith(_SAYING) and each.identity != resource.identity]
    alone = snapshot.with_changes(drop=others)
    asked: list[tuple[str, str, tuple[str, ...]]] = [(user, user, ()) for user in named.users(snapshot)[:MAX_DECIDED]]
    asked += [(f"a member of {group}", "", (group,)) for group in named.groups(snapshot)[:MAX_DECIDED]]
    for who, user, groups in asked:
        href = address("/permissions", user=user, group=groups, namespace=resource.namespace)
        try:
            permitted = user_permissions(alone, user, groups, resource.namespace)
        except InputError:
            return  # No API server starts with such authorizers, so nothing is decided.
        for permission in permitted.listed:
            if str(permission.policy) == policy:
                what = ", ".join((*_resources(permission), *permission.urls))
                condition = f", if {permission.condition}" if permission.condition else ""
                yield f"{permission.effect}: {who} {', '.join(permission.verbs)} {what}{condition}", href


def _resources(permission: Permission) -> list[str]:
    suffixes = [group for group in permission.groups if group] or [""]
    return [f"{name}.{group}" if group else name for name in permission.resources for group in suffixes]


def _named(title: str, term: str, names: Sequence[str]) -> Markup | None:
    """Show the users or groups that bindings and policies name, each with a link to its permissions."""
    if not names:
        return None
    items: list[Child] = [
        tag("li", link(f"members of {name}" if term == "group" else name, address("/permissions", **{term: name})))
        for name in names[:MAX_USERS]
    ]
    more = tag("p", f"and {len(names) - MAX_USERS:,} more: type a name above.") if len(names) > MAX_USERS else None
    heading = tag("h2", f"{title} that bindings and policies name")
    return tag("section", heading, tag("ul", items, class_="choices"), more)


def _form(user: str, groups: tuple[str, ...], namespace: str) -> Markup:
    fields = [
        tag("label", f"{label} ", tag("input", name=name, value=value))
        for name, label, value in (
            ("user", "User", user),
            ("group", "Group", groups[0] if groups else ""),
            ("namespace", "Namespace", namespace),
        )
    ]
    return tag(
        "form", fields, tag("button", "Show", type="submit"), action="/permissions", method="get", class_="filters"
    )


def _row(permission: Permission) -> Markup:
    condition: Child = tag("code", permission.condition) if permission.condition else "—"
    if permission.error:
        condition = f"fails: {permission.error}"
    is_if, effect = bool(permission.condition), str(permission.effect)
    verdict = "Conditional" if is_if and effect == "Allow" else effect
    words = {"Allow": "Allowed, if", "Deny": "Denied, if"}.get(effect, "") if is_if else ""
    return row(
        ", ".join(permission.verbs),
        ", ".join((*_resources(permission), *permission.urls)) or "—",
        ", ".join(permission.names) or "—",
        verdict_mark(verdict, words),
        object_link(permission.policy) if permission.policy is not None else permission.authorizer,
        condition,
    )
