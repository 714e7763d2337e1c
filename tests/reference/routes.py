"""The rule of HTTPRoutes that gets a request, as Gateway API and docs/gateway.md#delegation say, without indexes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

Object = dict[str, Any]
MOST_ROUTES = 16


class Request(NamedTuple):
    """A request."""

    host: str
    path: str
    method: str
    headers: dict[str, str]
    query: dict[str, str]


def fits(match: Object, request: Request) -> bool:
    path = match.get("path", {"type": "PathPrefix", "value": "/"})
    if path["type"] == "Exact":
        ok = request.path == path["value"]
    else:
        lead = path["value"].rstrip("/")
        ok = request.path == lead or request.path.startswith(f"{lead}/")
    return (
        ok
        and match.get("method") in (None, request.method)
        and all(request.headers.get(header["name"]) == header["value"] for header in match.get("headers", ()))
        and all(
            request.query.get(parameter["name"]) == parameter["value"] for parameter in match.get("queryParams", ())
        )
    )


def best(routes: Iterable[Object], request: Request) -> tuple[Object, int] | None:
    """Return the route and rule of the match with precedence: by the match, then by the age and name of its route."""
    choices: list[tuple[tuple[Any, ...], Object, int]] = []
    for route in routes:
        for number, rule in enumerate(route["spec"]["rules"]):
            for match in rule.get("matches", [{}]):
                where = match.get("path", {"type": "PathPrefix", "value": "/"})
                key = (
                    where["type"] != "Exact",
                    -len(where["value"].rstrip("/")),
                    "method" not in match,
                    -len(match.get("headers", ())),
                    -len(match.get("queryParams", ())),
                    route["metadata"]["creationTimestamp"],
                    route["metadata"]["namespace"] + "/" + route["metadata"]["name"],
                    number,
                )
                if fits(match, request):
                    choices.append((key, route, number))
    return min(choices, key=lambda choice: choice[0])[1:] if choices else None


def best_by_host(routes: list[Object], request: Request) -> tuple[Object, int] | None:
    """Return the best match among the routes for the most specific host name that has one."""
    for host in (request.host, *_wildcards(request.host), None):
        chosen = best((route for route in routes if host in route["spec"].get("hostnames", [None])), request)
        if chosen is not None:
            return chosen
    return None


def _wildcards(host: str) -> list[str]:
    labels = host.split(".")
    return ["*." + ".".join(labels[number:]) for number in range(1, len(labels))]


def chain(objects: list[Object], roots: list[Object], request: Request) -> tuple[list[tuple[Object, int]], int]:
    """Return the rules that a request goes through, outermost first, and 404 or 500 if the last has no backend."""
    chosen = best_by_host(roots, request)
    rules: list[tuple[Object, int]] = []
    while True:
        if chosen is None:
            return rules, 404
        if any(chosen[0] is route for route, _ in rules):
            return rules, 500
        rules.append(chosen)
        route, number = chosen
        refs = [ref for ref in route["spec"]["rules"][number]["backendRefs"] if ref.get("weight", 1)]
        delegating = [ref for ref in refs if ref.get("kind") == "HTTPRoute"]
        if not delegating:
            return rules, 0
        if len(refs) > 1 or len(rules) == MOST_ROUTES:
            return rules, 500
        chosen = best_by_host([child for child in objects if is_child(objects, route, child, refs[0])], request)


def is_child(objects: list[Object], parent: Object, child: Object, ref: Object) -> bool:
    namespace = ref.get("namespace", parent["metadata"]["namespace"])
    metadata = child["metadata"]
    if child["kind"] != "HTTPRoute" or metadata["namespace"] != namespace:
        return False
    key, equals, value = ref["name"].partition("=")
    if ref["name"] != "*" and not equals and metadata["name"] != ref["name"]:
        return False
    if equals and metadata.get("labels", {}).get(key, "") != value:
        return False
    parents = child["spec"].get("parentRefs", [])
    if parents:
        named = [(each.get("kind"), each.get("namespace", namespace), each["name"]) for each in parents]
        return ("HTTPRoute", parent["metadata"]["namespace"], parent["metadata"]["name"]) in named
    granted = [
        source["namespace"]
        for grant in objects
        if grant["kind"] == "ReferenceGrant" and grant["metadata"]["namespace"] == namespace
        for source in grant["spec"]["from"]
        if any(target["kind"] == "HTTPRoute" for target in grant["spec"]["to"])
    ]
    return parent["metadata"]["namespace"] in (namespace, *granted)
