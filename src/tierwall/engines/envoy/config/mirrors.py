"""RequestMirror: copies of requests for a second backend, whose answers nobody reads (Gateway API).

The copy is made after all policies of the way to the first backend. It passes no others, so it is made only if the
second backend has no policies but those: otherwise the rule answers 500.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tierwall.attach.backend import BackendRef, referenced_place
from tierwall.core.diagnostics import Diagnostic
from tierwall.resources.resource import Resource, list_of_maps, nested_map

if TYPE_CHECKING:
    from tierwall.engines.envoy.config.policy_compiler import Protection

HINT = "let the policies of both backends be on the Gateway, or remove the filter"


class MirrorRef(BackendRef):
    """The backendRef of a RequestMirror filter; `number` is that of the filter, `value` the filter."""

    __slots__ = ()

    @property
    def path(self) -> tuple[str | int, ...]:
        """The path of the reference in the route."""
        return ("spec", "rules", self.rule, "filters", self.number, "requestMirror", "backendRef")


def mirror_refs(route: Resource, number: int, rule: Mapping[str, Any]) -> Iterator[MirrorRef]:
    """Yield the backends that get copies of a rule's requests."""
    for index, entry in enumerate(list_of_maps(rule.get("filters"))):
        mirror = nested_map(entry, "requestMirror")
        value = nested_map(mirror, "backendRef")
        place = referenced_place(value, route.namespace) if entry.get("type") == "RequestMirror" else None
        if place is not None:
            port = value.get("port")
            yield MirrorRef(route, number, index, place, port if type(port) is int else 0, mirror)


def share(mirror: Mapping[str, Any]) -> Fraction:
    """Return the share of requests that are copied; without `percent` and `fraction` all are."""
    fraction, percent = nested_map(mirror, "fraction"), mirror.get("percent")
    if type(fraction.get("numerator")) is int:
        denominator = fraction.get("denominator")
        return Fraction(fraction["numerator"], max(denominator, 1) if type(denominator) is int else 100)
    return Fraction(percent if type(percent) is int else 100, 100)


def add_mirror(route: Any, cluster: str, host: str, copied: Fraction) -> None:
    """Copy a share of the requests of an Envoy route to a cluster."""
    out = route.route.request_mirror_policies.add(cluster=cluster, disable_shadow_host_suffix_append=not host)
    out.host_rewrite_literal = host
    # Envoy has fractions of a hundred, of ten thousand and of a million.
    out.runtime_fraction.default_value.denominator = "MILLION"
    out.runtime_fraction.default_value.numerator = int(copied * 1_000_000)


def unpassed(mirrors: Iterable[Protection], ways: Iterable[Protection]) -> bool:
    """Whether a copy would miss a policy of its backend, on some way of the request that is copied."""
    needed = {checkpoint.name for mirror in mirrors for checkpoint in mirror.checkpoints}
    return any(not needed <= {checkpoint.name for checkpoint in way.checkpoints} for way in ways)


def refused(route: Resource, rule: int) -> Diagnostic:
    """Return the diagnostic of a rule that answers 500 because of its mirrors."""
    message = (
        f"RequestMirror of {route.reference} would send copies to a backend past that backend's policies: "
        "the rule answers 500"
    )
    return route.diagnostic("TW655", message, ("spec", "rules", rule), hint=HINT)
