"""The Secrets and ConfigMaps that an Envoy's configuration needs: those of TLS, and those that settings name.

No other Secret of a cluster is ever read (docs/clusters.md#what-they-need). A policy counts if it reaches a Gateway
that is served. Selectors of Secrets do not count: they would need the right to list all Secrets.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.attach.attachment import attachment
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.engines.envoy.config import backend_tls, tls
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.settings.credentials import secrets_of_credentials
from tierwall.engines.envoy.config.settings.upstream import objects_named_by
from tierwall.resources.resource import Identity, Resource, nested_map
from tierwall.resources.snapshot import Snapshot

_FIELDS = ("apiKeyAuthentication", "basicAuthentication")


def objects_to_read(snapshot: Snapshot, options: EnvoyOptions) -> frozenset[Identity]:
    """Return the Secrets and ConfigMaps that the served Gateways and their settings need."""
    needed = {*tls.objects_to_read(snapshot, options), *backend_tls.config_maps(snapshot)}
    for policy in attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies:
        named = {*secrets_named_by(policy), *secrets_of_credentials(policy), *objects_named_by(policy)}
        if named and _reaches(snapshot, policy, options):
            needed |= named
    return frozenset(needed)


def secrets_named_by(policy: Resource) -> Iterator[Identity]:
    """Yield the Secrets that a policy names, all in its own namespace."""
    for field in _FIELDS:
        name = nested_map(policy.spec, "traffic", field, "secretRef").get("name")
        if isinstance(name, str):
            yield "", "Secret", policy.namespace, name


def _reaches(snapshot: Snapshot, policy: Resource, options: EnvoyOptions) -> bool:
    gateways = {gateway for target in attachment(snapshot, policy) for gateway in target.gateways}
    names = {f"{gateway.namespace}/{gateway.name}" for gateway in gateways}
    return bool(names if options.gateways is None else names & options.gateways)
