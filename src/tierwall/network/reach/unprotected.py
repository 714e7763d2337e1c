"""Pods that no policy protects, for each direction, and pods to which policies cannot apply.

A pod is unprotected in a direction if no policy of any tier that has rules for the direction selects it: everything is
allowed by default. Pods on their host's network are never under policy (docs/semantics.md#only-pods-are-under-policy).
"""

from __future__ import annotations

from msgspec import Struct

from tierwall.network.model.rules import EGRESS, INGRESS
from tierwall.network.reach.classes import EndpointClass, EndpointClasses
from tierwall.network.reach.naming import EndpointNames, NamedEndpoints
from tierwall.network.reach.spaces import mask_of

HOST_NETWORK = "hostNetwork"


class UnprotectedPods(Struct, frozen=True):
    """Pods that no policy protects in a direction, or pods on their host's network; `of` counts all pods."""

    # "ingress", "egress" or "hostNetwork".
    where: str
    count: int
    of: int
    pods: NamedEndpoints

    def __str__(self) -> str:
        if self.where == HOST_NETWORK:
            where = "its node" if self.count == 1 else "their nodes"
            return f"no policy applies to {_count(self.count)} on the network of {where}: {self.pods}"
        if self.count == self.of:
            return f"no policy protects {self.where} of any pod"
        return f"no policy protects {self.where} of {self.count:,} of {_count(self.of)}: {self.pods}"


def unprotected_pods(classes: EndpointClasses, names: EndpointNames | None = None) -> tuple[UnprotectedPods, ...]:
    """Return what is unprotected: ingress, egress, host network, each only if there are such pods."""
    model = classes.model
    pods = [pod_class for pod_class in classes.all if pod_class.representative.kind == "pod"]
    under_policy = [pod_class for pod_class in pods if pod_class.representative.under_policy]
    # INVARIANT: policies tell the pods of a class apart in nothing, so one pod stands for all of them.
    selected: dict[str, list[EndpointClass]] = {
        str(direction).lower(): [
            pod_class for pod_class in under_policy if not model.stack(pod_class.representative, direction)
        ]
        for direction in (INGRESS, EGRESS)
    }
    selected[HOST_NETWORK] = [pod_class for pod_class in pods if not pod_class.representative.under_policy]
    names, total = names or EndpointNames(classes), _members(under_policy)
    return tuple(
        UnprotectedPods(
            where,
            _members(members),
            total if where != HOST_NETWORK else _members(pods),
            names.describe(mask_of(pod_class.bit for pod_class in members), classes.under_policy),
        )
        for where, members in selected.items()
        if members
    )


def _members(classes: list[EndpointClass]) -> int:
    return sum(len(pod_class.members) for pod_class in classes)


def _count(number: int) -> str:
    return f"{number:,} pod" if number == 1 else f"{number:,} pods"
