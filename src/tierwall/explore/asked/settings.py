"""Questions about settings: which are in force at a place that objects name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tierwall.attach.place import GATEWAY
from tierwall.explore.asked import forms
from tierwall.explore.asked.meaning import Choice, asking
from tierwall.explore.asked.tools import is_named
from tierwall.gateway.model.places import RequestPlace, reachable_places
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


def at_place(snapshot: Snapshot, text: str) -> Iterator[Choice]:
    """Yield the places that are named: each that a request can reach, and a Gateway by itself.

    A place may be named as its own words do: `Gateway/infra/edge#web, HTTPRoute/team/chat rule llm`.
    """
    parts = [part for part in forms.BETWEEN.split(text) if part]
    if len(parts) == 1:
        name, _, listener = text.partition("#")
        for gateway in snapshot.of_kind(*GATEWAY):
            if is_named(gateway, name):
                terms = {"gateway": f"{gateway.namespace}/{gateway.name}", "listener": listener}
                shown = f"{gateway.reference}#{listener}" if listener else str(gateway.reference)
                yield Choice(f"Settings at {shown}", asking("gateway", **terms), "gateway")
    for reached in reachable_places(snapshot):
        if _is_meant(reached, parts):
            yield Choice(f"Settings at {reached}", asking("gateway", **place_terms(reached)), "gateway")


def _is_meant(place: RequestPlace, parts: list[str]) -> bool:
    """Whether every part names an object of a place, and not its Gateway alone."""
    is_narrow = len(parts) > 1
    for part in parts:
        rule = forms.RULE.search(part)
        name, _, section = part[: rule.start() if rule else len(part)].partition("#")
        meant = [each for each in place.objects if is_named(each, name) and (is_narrow or each is not place.gateway)]
        if not meant or (rule and place.route in meant and rule["rule"] not in (place.rule_name, str(place.rule))):
            return False
        if section and not any(section in _sections(place, each) for each in meant):
            return False
    return bool(parts)


def _sections(place: RequestPlace, resource: Resource) -> tuple[str, ...]:
    listener = place.listener.name if place.listener is not None else ""
    return (place.section,) if resource is place.backend else (listener,)


def place_terms(place: RequestPlace) -> dict[str, Any]:
    """Return a place as the terms of a question."""

    def name(resource: Resource | None) -> str:
        return f"{resource.namespace}/{resource.name}" if resource is not None else ""

    return {
        "gateway": name(place.gateway),
        "listenerSet": name(place.listener_set),
        "listener": place.listener.name if place.listener is not None else "",
        "parents": [f"{parent.route.reference}#{parent.rule}" for parent in place.parents],
        "route": str(place.route.reference) if place.route is not None else "",
        # A name of digits would be read as a number.
        "rule": place.rule if place.rule is None or place.rule_name.isdigit() else place.rule_name or place.rule,
        "backend": str(place.backend.reference) if place.backend is not None else "",
        "backendSection": place.section,
    }
