"""The checks of `tierwall check`, by plane. A check is imported and run only if there are objects for it.

To add a check, write a function from a snapshot to diagnostics and add a line here.

A developer who owns one namespace sees its objects and cluster-scoped ones, not those of other namespaces. KEP-2091,
"Risks and Mitigation": a developer must learn that an admin policy overrides a NetworkPolicy of theirs without being
able to read the rest of the cluster.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic, UnknownName, near_miss, unknown_name_diagnostic
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.core.protocols import Progress

_NETWORK = ("networking.k8s.io", "policy.networking.k8s.io")
_ROUTES = ("gateway.networking.k8s.io", "gateway.networking.x-k8s.io")
_SETTINGS = ("agentgateway.dev",)
_ACCESS = ("agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io")
_AUTHORIZATION = ("apiserver.config.k8s.io", "rbac.authorization.k8s.io", "tierwall.io")


class Check(Struct, frozen=True):
    """A check of one plane, as `module:function` below `analyze`.

    `groups` are the API groups of the objects that it checks; without such objects it is skipped. No groups means all.
    """

    plane: str
    target: str
    groups: tuple[str, ...] = ()
    # Whether the function wants to know that the snapshot is what the owner of one namespace sees.
    takes_namespace: bool = False

    def findings(self, snapshot: Snapshot, namespace: str | None = None) -> Iterator[Diagnostic]:
        """Yield the findings of this check; `namespace` is the only one whose objects the snapshot has."""
        if not self.groups or not snapshot.groups.isdisjoint(self.groups):
            module, _, name = self.target.partition(":")
            function = getattr(importlib.import_module(f"tierwall.analyze.{module}"), name)
            yield from function(snapshot, namespace) if self.takes_namespace else function(snapshot)


CHECKS = (
    Check("admit", "admission:admission_findings"),
    Check("network", "network_kept:kept_network_findings", _NETWORK, takes_namespace=True),
    Check("gateway", "attachment:unattached_policies", (*_SETTINGS, *_ACCESS)),
    Check("gateway", "attachment:unattached_routes", _ROUTES),
    Check("gateway", "attachment:childless_routes", _ROUTES, takes_namespace=True),
    Check("gateway", "gateway:ineffective_settings", _SETTINGS),
    Check("gateway", "gateway:widened_authorization", _SETTINGS),
    Check("gateway", "gateway:lost_halves", _SETTINGS),
    Check("gateway", "gateway:broken_expression_findings", _SETTINGS),
    Check("gateway", "gateway:profile_differences", _SETTINGS),
    Check("tool", "tool:policy_findings", _ACCESS),
    Check("tool", "tool:level_findings", _ACCESS),
    Check("tool", "tool:name_findings", _ACCESS),
    Check("tool", "path:path_findings", _ACCESS),
    Check("api", "api:api_findings", _AUTHORIZATION),
)


def check(snapshot: Snapshot, progress: Progress | None = None, namespace: str | None = None) -> Iterator[Diagnostic]:
    """Yield the findings of all checks, in no particular order. `progress` is called after each check.

    With a `namespace`, the snapshot is what its owner sees (`visible_from`).
    """
    for number, entry in enumerate(CHECKS, 1):
        yield from entry.findings(snapshot, namespace)
        if progress is not None:
            progress(f"check {entry.target.partition(':')[0]}", number, len(CHECKS))


def visible_from(snapshot: Snapshot, namespace: str) -> Snapshot:
    """Return the snapshot without the objects of other namespaces. Raise UnknownName if the namespace is empty."""
    known = {_home(resource) for resource in snapshot} - {""}
    if namespace not in known:
        message = f"nothing is in namespace `{namespace}`"
        raise UnknownName([unknown_name_diagnostic(message, near_miss(namespace, known))])
    seen = (resource for resource in snapshot if _home(resource) in ("", namespace))
    return Snapshot.of(seen, backend_ref_grants=snapshot.backend_ref_grants)


def concerns(finding: Diagnostic, namespace: str) -> bool:
    """Whether a finding is about an object of the namespace, or about a file and not an object."""
    subject = finding.reference
    if subject is None:
        return True
    return namespace == (subject.name if subject.kind == "Namespace" else subject.namespace)


def _home(resource: Resource) -> str:
    if resource.group == "" and resource.kind == "Namespace":
        return resource.name
    return resource.namespace
