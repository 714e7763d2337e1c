"""Authentication: JSON Web Tokens, API keys, names with passwords (agentgateway, "JWT", "API key", "Basic auth").

Tokens are checked by providers that Envoy takes only in the filter: a route names its requirement by a digest of
everything in it, so that no route ever meets the requirement of another. Keys and passwords are on the route, and come
from Secrets of the policy's namespace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from envoy.extensions.filters.http.api_key_auth.v3 import api_key_auth_pb2
from envoy.extensions.filters.http.basic_auth.v3 import basic_auth_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2 as jwt_pb2

from tierwall.attach.place import Place
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import CLAIMS
from tierwall.engines.envoy.config.settings.filters import MCP_TOKENS, basic_filter, jwt_filter, key_filter
from tierwall.engines.envoy.config.settings.mcp_rules import MessageFilters
from tierwall.engines.envoy.config.settings.measures import nanoseconds
from tierwall.engines.envoy.config.settings.services import ServiceCluster, endpoint
from tierwall.engines.envoy.config.settings.traffic import RouteChange, turned_on
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.engines.envoy.config.settings.values import users
from tierwall.engines.envoy.config.tls import UnreadableObject, object_data
from tierwall.gateway.model.fields import Phase
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

_DEFAULT_HEADER = {"name": "Authorization", "prefix": "Bearer "}
_PASSWORDS = ".htaccess"
# More keys or users than this would make every change of routes slow.
MAX_CREDENTIALS = 10_000
_CACHE_SECONDS, _FETCH_SECONDS = 300, 5


class TokenRequirement(NamedTuple):
    """A requirement of tokens: its name, its providers by name, and which of them must accept."""

    name: str
    providers: Mapping[str, Any]
    requirement: Any
    clusters: tuple[ServiceCluster, ...]


def token_requirement(snapshot: Snapshot, policy: Resource, value: Mapping[str, Any]) -> TokenRequirement:
    """Return what a route requires of tokens."""
    location = nested_map(value, "location")
    providers: list[Any] = []
    clusters: list[ServiceCluster] = []
    for number, provider in enumerate(list_of_maps(value.get("providers"))):
        out = jwt_pb2.JwtProvider(issuer=provider["issuer"], audiences=provider.get("audiences") or ())
        _set_token_location(out, location)
        out.payload_in_metadata = CLAIMS
        out.require_expiration = True
        jwks = nested_map(provider, "jwks")
        if "inline" in jwks:
            out.local_jwks.inline_string = jwks["inline"]
        else:
            remote = nested_map(jwks, "remote")
            cluster, url = endpoint(snapshot, policy, remote, "keys", "providers", number, "jwks", "remote")
            path = remote.get("jwksPath")
            out.remote_jwks.http_uri.uri = url if path is None else f"{url}/{str(path).lstrip('/')}"
            out.remote_jwks.http_uri.cluster = cluster.name
            out.remote_jwks.http_uri.timeout.seconds = _FETCH_SECONDS
            cached = remote.get("cacheDuration")
            seconds = _CACHE_SECONDS if cached is None else max(nanoseconds(cached) // 10**9, 1)
            out.remote_jwks.cache_duration.seconds = seconds
            clusters.append(cluster)
        providers.append(out)
    named = {_digest(provider): provider for provider in providers}
    requirement = jwt_pb2.JwtRequirement()
    # Envoy takes "any of" only for two or more.
    for name in named:
        requirement.requires_any.requirements.add(provider_name=name)
    mode = value.get("mode", "Strict")
    if mode == "Optional":
        requirement.requires_any.requirements.add().allow_missing.SetInParent()
    elif mode == "Permissive":
        requirement.requires_any.requirements.add().allow_missing_or_failed.SetInParent()
    elif len(named) == 1:
        requirement = jwt_pb2.JwtRequirement(provider_name=next(iter(named)))
    return TokenRequirement(_digest(requirement), named, requirement, tuple(clusters))


def token_change(phase: Phase, required: TokenRequirement) -> RouteChange:
    """Return the change of a route that requires tokens."""
    return turned_on(jwt_filter(phase), jwt_pb2.PerRouteConfig(requirement_name=required.name))


def mcp_token_filters(required: TokenRequirement) -> MessageFilters:
    """Return the filters for an MCP server whose clients need a token."""
    settings = {MCP_TOKENS: packed(jwt_pb2.PerRouteConfig(requirement_name=required.name))}
    return MessageFilters(settings, settings)


def token_filter(requirements: Mapping[str, TokenRequirement]) -> Any:
    """Return the filter that holds the requirements of all routes."""
    out = jwt_pb2.JwtAuthentication()
    for name in sorted(requirements):
        required = requirements[name]
        out.requirement_map[name].CopyFrom(required.requirement)
        for provider, message in required.providers.items():
            out.providers[provider].CopyFrom(message)
    return out


def _set_token_location(provider: Any, location: Mapping[str, Any]) -> None:
    if "queryParameter" in location:
        provider.from_params.append(location["queryParameter"]["name"])
    elif "cookie" in location:
        provider.from_cookies.append(location["cookie"]["name"])
    else:
        header = location.get("header", _DEFAULT_HEADER)
        provider.from_headers.add(name=header["name"], value_prefix=header.get("prefix", ""))


def _digest(message: Any) -> str:
    return blake2b(message.SerializeToString(deterministic=True), digest_size=16).hexdigest()


def api_keys(snapshot: Snapshot, policy: Resource, value: Mapping[str, Any], phase: Phase) -> RouteChange:
    """Require one of the keys in a Secret."""
    if value.get("mode") == "Permissive":
        return lambda route: None
    keys = key_list(snapshot, policy, value)
    out = api_key_auth_pb2.ApiKeyAuthPerRoute()
    out.credentials.extend(api_key_auth_pb2.Credential(key=key, client=str(n)) for n, key in enumerate(keys))
    location = nested_map(value, "location")
    if "queryParameter" in location:
        out.key_sources.add(query=location["queryParameter"]["name"])
    elif "cookie" in location:
        out.key_sources.add(cookie=location["cookie"]["name"])
    else:
        header = location.get("header", _DEFAULT_HEADER)
        out.key_sources.add(header=header["name"])
    out.forwarding.hide_credentials = True
    return turned_on(key_filter(phase), out)


def key_list(snapshot: Snapshot, policy: Resource, value: Mapping[str, Any]) -> list[str]:
    """Return the keys in the Secret of a setting."""
    data = _secret(snapshot, policy, value["secretRef"]["name"], "secretRef")
    keys = sorted(set(filter(None, (_key(text) for _, text in sorted(data.items())))))
    if not keys or len(keys) > MAX_CREDENTIALS:
        raise Unenforceable(f"the Secret has {len(keys)} keys that Envoy can check, expected 1 to {MAX_CREDENTIALS}")
    return keys


def _key(text: bytes) -> str:
    """Return the key of an entry: the text itself, or `key` of an object; empty if Envoy cannot check it."""
    try:
        raw = text.decode()
        entry = json.loads(raw) if raw.strip().startswith("{") else {"key": raw}
    except ValueError:
        return ""
    key = entry.get("key") if isinstance(entry, dict) else None
    return key if isinstance(key, str) and key.strip() and key.isprintable() else ""


def basic_users(snapshot: Snapshot, policy: Resource, value: Mapping[str, Any], phase: Phase) -> RouteChange:
    """Require the name and password of a user."""
    if "users" in value:
        lines = [str(line) for line in value["users"]]
    else:
        ref = value["secretRef"]
        data = _secret(snapshot, policy, ref["name"], "secretRef")
        key = ref.get("key", _PASSWORDS)
        if key not in data:
            raise Unenforceable(f"the Secret has no key `{key}`", "secretRef")
        lines = data[key].decode(errors="replace").splitlines()
    known = dict(users(lines))
    if not known or len(known) > MAX_CREDENTIALS:
        raise Unenforceable(f"there are {len(known)} users, expected 1 to {MAX_CREDENTIALS}")
    out = basic_auth_pb2.BasicAuthPerRoute()
    out.users.inline_string = "\n".join(f"{name}:{digest}" for name, digest in sorted(known.items()))
    return turned_on(basic_filter(phase), out)


def _secret(snapshot: Snapshot, policy: Resource, name: str, *path: str | int) -> Mapping[str, bytes]:
    data = object_data(snapshot, policy, Place("", "Secret", policy.namespace, name))
    if isinstance(data, UnreadableObject):
        raise Unenforceable(data.message, *path)
    return data
