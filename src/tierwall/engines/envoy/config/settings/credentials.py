"""Credentials for backends (agentgateway, "Backend authentication"): keys that requests to a backend get.

They are put into the request behind everything else, in the cluster of the backend, so that no other backend sees
them. What the client sent in their place is dropped, also if there is nothing to put there: a backend that expects
the gateway's credential must not take the client's for it. agentgateway sends an empty one if a Secret is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2

from tierwall.attach.place import Place
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.engines.envoy.config.settings.upstream import ClusterChange, add_filter
from tierwall.engines.envoy.config.tls import UnreadableObject, object_data
from tierwall.resources.resource import Identity, Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

_DEFAULT = {"header": {"name": "Authorization", "prefix": "Bearer "}}
_API_KEY = {"name": "x-api-key"}
_ANTHROPIC_TOKEN = "sk-ant-oat"
_KEY, _BEARER = "Authorization", "Bearer "
# Kinds of credentials that Tierwall cannot get (docs/gateway.md#obeyed-by-run).
_FROM_ELSEWHERE = ("aws", "azure", "gcp", "oauthTokenExchange", "crossAppAccess", "jwtSign")


class CredentialChange(NamedTuple):
    """The change of a cluster whose backend wants credentials, and those that could not be had."""

    change: ClusterChange
    problems: tuple[Unenforceable, ...]


def credentials(
    snapshot: Snapshot, policy: Resource, value: Mapping[str, Any], is_anthropic: bool = False
) -> CredentialChange:
    """Put the credentials into requests; remove what the client sent where one could not be had.

    Anthropic takes keys in a header of its own, unless the location is given.
    """
    written = header_mutation_pb2.HeaderMutation()
    removed = header_mutation_pb2.HeaderMutation()
    problems: list[Unenforceable] = []
    for kind in _FROM_ELSEWHERE:
        header = nested_map(nested_map(value, kind, "location") or _location(value), "header")
        if kind in value and header:
            removed.mutations.request_mutations.add().remove = header["name"]
    for location, credential in _credentials(snapshot, policy, value):
        header = nested_map(location, "header")
        if is_anthropic and location is _DEFAULT:
            is_key = not str(credential).startswith(_ANTHROPIC_TOKEN)
            header, other = (_API_KEY, header) if is_key else (header, _API_KEY)
            removed.mutations.request_mutations.add().remove = other["name"]
        if not header:
            # The table of settings closes the place (tierwall.gateway.model.enforcement).
            continue
        sent = _sendable(f"{header.get('prefix', '')}{credential}", ()) if isinstance(credential, str) else credential
        if isinstance(sent, Unenforceable):
            removed.mutations.request_mutations.add().remove = header["name"]
            words = f"{sent}; a header `{header['name']}` of the client is removed"
            problems.append(Unenforceable(words, *sent.path))
            continue
        step = written.mutations.request_mutations.add().append
        step.append_action = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        step.header.key, step.header.value = header["name"], sent.replace("%", "%%")
    # Two credentials may have one header: one that is missing does not remove the other.
    removed.MergeFrom(written)
    return CredentialChange(lambda cluster: add_filter(cluster, "tierwall.credentials", removed), tuple(problems))


def _location(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return nested_map(value, "location") or _DEFAULT


def _credentials(
    snapshot: Snapshot, policy: Resource, value: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], str | Unenforceable]]:
    """Yield the place of each credential, and its text or why it cannot be had."""
    if "key" in value:
        yield _location(value), _sendable(str(value["key"]), ("key",))
    if "secretRef" in value:
        yield _location(value), _text(snapshot, policy, value["secretRef"], "secretRef")
    for number, credential in enumerate(list_of_maps(value.get("credentials"))):
        path = "credentials", number, "secretRef"
        yield nested_map(credential, "location"), _text(snapshot, policy, credential["secretRef"], *path)


def _text(snapshot: Snapshot, policy: Resource, ref: Mapping[str, Any], *path: str | int) -> str | Unenforceable:
    """Return the text of a key of a Secret; of its `Authorization` without `Bearer`, which the location adds."""
    data = object_data(snapshot, policy, Place("", "Secret", policy.namespace, ref["name"]))
    if isinstance(data, UnreadableObject):
        return Unenforceable(data.message, *path)
    key = ref.get("key", _KEY)
    if key not in data:
        return Unenforceable(f"the Secret has no key `{key}`", *path)
    text = data[key].decode(errors="replace").strip()
    return _sendable(text.removeprefix(_BEARER).strip() if "key" not in ref else text, path)


def _sendable(text: str, path: tuple[str | int, ...]) -> str | Unenforceable:
    if text and text.isprintable():
        return text
    return Unenforceable("Envoy cannot put this credential into a header", *path)


def secrets_of_credentials(policy: Resource) -> Iterator[Identity]:
    """Yield the Secrets whose keys a policy gives to backends."""
    value = nested_map(policy.spec, "backend", "auth")
    for ref in (value.get("secretRef"), *(entry.get("secretRef") for entry in list_of_maps(value.get("credentials")))):
        if isinstance(ref, dict) and isinstance(ref.get("name"), str):
            yield "", "Secret", policy.namespace, ref["name"]
