"""What a developer sees who owns one namespace: its objects, what belongs to no namespace, and nothing of the others.

KEP-2091, "Risks and Mitigation": a developer must learn that an admin policy overrides a NetworkPolicy of theirs
without being able to read the rest of the cluster.
"""

from __future__ import annotations

from tierwall.core.diagnostics import Diagnostic, UnknownName, near_miss, no_such_name
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


def seen_from(snapshot: Snapshot, namespace: str) -> Snapshot:
    """The snapshot without the objects of other namespaces; UnknownName if nothing is in the namespace."""
    known = {_home(resource) for resource in snapshot} - {""}
    if namespace not in known:
        words = f"nothing is in namespace `{namespace}`"
        raise UnknownName([no_such_name(words, near_miss(namespace, known))])
    return Snapshot.of(resource for resource in snapshot if _home(resource) in ("", namespace))


def concerns(finding: Diagnostic, namespace: str) -> bool:
    """Whether it is about an object of the namespace, or about the text that was read."""
    subject = finding.reference
    if subject is None:
        return True
    return namespace == (subject.name if subject.kind == "Namespace" else subject.namespace)


def _home(resource: Resource) -> str:
    if resource.group == "" and resource.kind == "Namespace":
        return resource.name
    return resource.namespace
