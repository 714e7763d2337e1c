"""A whole snapshot without the names of anybody: its first document and its objects (docs/clusters.md#redact)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from tierwall.core.reference import Reference
from tierwall.redact.redaction import RedactedObjects, redact
from tierwall.redact.walk import POLICY_TEST
from tierwall.resources.gaps import REPLACED
from tierwall.resources.resource import Resource
from tierwall.resources.unlisted import UnlistedKind
from tierwall.values.pattern import pattern

_REFERENCE = pattern(r"[A-Z][A-Za-z]*/[^\s,:]+")


class RedactedSnapshot(NamedTuple):
    """The redacted objects in order, the kinds that could not be read, and the namespace of the context."""

    resources: tuple[Resource, ...]
    unlisted: tuple[UnlistedKind, ...]
    namespace: str
    names: RedactedObjects


def redact_snapshot(
    resources: Sequence[Resource], unlisted: Sequence[UnlistedKind], namespace: str, others: Iterable[str] = ()
) -> RedactedSnapshot:
    """Redact what a snapshot has; `others` are more namespaces.

    Policy tests are left out: they are questions, which no cluster has.
    """
    listed = [resource for resource in resources if (resource.group, resource.kind) != POLICY_TEST]
    namespaces = {
        namespace,
        *others,
        *(name for entry in unlisted for name in (*entry.namespaces, *entry.read_namespaces)),
    }
    names = redact(listed, namespaces)
    redacted = [_renamed(resource, value) for resource, value in zip(listed, names.values, strict=True)]
    return RedactedSnapshot(
        tuple(sorted(redacted, key=lambda resource: (*resource.identity, resource.version))),
        tuple(sorted(_unlisted(entry, names) for entry in unlisted)),
        names.rename(namespace),
        names,
    )


def _renamed(resource: Resource, value: dict[str, Any]) -> Resource:
    metadata = value.get("metadata")
    name, namespace = "", ""
    if isinstance(metadata, dict):
        name, namespace = (str(metadata.get(key) or "") for key in ("name", "namespace"))
    return replace(resource, name=name, namespace=namespace if resource.namespace else "", value=value, _memo={})


def _unlisted(entry: UnlistedKind, names: RedactedObjects) -> UnlistedKind:
    """Rename what an entry names. What a server says may name anybody, so only its reason is kept."""
    message = {"unavailable": "its API did not answer"}.get(entry.reason, "")
    if entry.reason == REPLACED:
        message = _REFERENCE.sub(lambda match: str(names.rename_reference(Reference.parse(match[0]))), entry.message)
    return replace(
        entry,
        message=message,
        namespaces=tuple(sorted(map(names.rename, entry.namespaces))),
        read_namespaces=tuple(sorted(map(names.rename, entry.read_namespaces))),
    )
