"""Credentials for backends (agentgateway, "Backend authentication"): keys that requests to a backend get.

They are put into the request behind everything else, in the cluster of the backend, so that no other backend sees
them. What the client sent in their place is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2

from tierwall.attach.place import Place
from tierwall.engines.envoy.config.header_changes import is_protected
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.engines.envoy.config.settings.upstream import ClusterChange, add_filter
from tierwall.engines.envoy.config.tls import UnreadableObject, object_data
from tierwall.resources.resource import Identity, Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

_DEFAULT = {"header": {"name": "Authorization", "prefix": "Bearer "}}
_KEY, _BEARER = "Authorization", "Bearer "


def credentials(snapshot: Snapshot, policy: Resource, value: Mapping[str, Any]) -> ClusterChange:
    """Return the change of a cluster whose backend wants credentials."""
    out = header_mutation_pb2.HeaderMutation()
    for location, text, path in _credentials(snapshot, policy, value):
        header = nested_map(location, "header")
        if not header:
            raise Unenforceable("Envoy puts credentials only into headers", *path)
        if is_protected(header["name"]) or not text or not text.isprintable():
            raise Unenforceable(f"Envoy cannot put this credential into header `{header['name']}`", *path)
        step = out.mutations.request_mutations.add().append
        step.append_action = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        written = f"{header.get('prefix', '')}{text}".replace("%", "%%")
        step.header.key, step.header.value = header["name"], written
    return lambda cluster: add_filter(cluster, "tierwall.credentials", out)


def _credentials(
    snapshot: Snapshot, policy: Resource, value: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], str, tuple[str | int, ...]]]:
    """Yield the place of each credential, its text, and the path of what sets it."""
    location = nested_map(value, "location") or _DEFAULT
    if "key" in value:
        yield location, str(value["key"]), ("key",)
    if "secretRef" in value:
        yield location, _text(snapshot, policy, value["secretRef"], "secretRef"), ("secretRef",)
    for number, credential in enumerate(list_of_maps(value.get("credentials"))):
        path = "credentials", number, "secretRef"
        yield nested_map(credential, "location"), _text(snapshot, policy, credential["secretRef"], *path), path


def _text(snapshot: Snapshot, policy: Resource, ref: Mapping[str, Any], *path: str | int) -> str:
    """Return the text of a key of a Secret; of its `Authorization` without `Bearer`, which the location adds."""
    data = object_data(snapshot, policy, Place("", "Secret", policy.namespace, ref["name"]))
    if isinstance(data, UnreadableObject):
        raise Unenforceable(data.message, *path)
    key = ref.get("key", _KEY)
    if key not in data:
        raise Unenforceable(f"the Secret has no key `{key}`", *path)
    text = data[key].decode(errors="replace").strip()
    return text.removeprefix(_BEARER).strip() if "key" not in ref else text


def secrets_of_credentials(policy: Resource) -> Iterator[Identity]:
    """Yield the Secrets whose keys a policy gives to backends."""
    value = nested_map(policy.spec, "backend", "auth")
    for ref in (value.get("secretRef"), *(entry.get("secretRef") for entry in list_of_maps(value.get("credentials")))):
        if isinstance(ref, dict) and isinstance(ref.get("name"), str):
            yield "", "Secret", policy.namespace, ref["name"]
