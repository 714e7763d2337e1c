"""BackendTLSPolicy (Gateway API): TLS to the ports of a Service, and whose certificate to expect.

A policy with the name of the port comes before one for the whole Service, then the older one. A policy that cannot be
used closes the backend: requests must not go out in the clear, nor to anybody. No definition of the kind is built in,
so that types are checked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tierwall.attach.place import GATEWAY_API
from tierwall.engines.envoy.config.app_protocol import service_port
from tierwall.engines.envoy.config.backend_addresses import NAME
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.engines.envoy.config.settings.upstream import ClusterChange, tls
from tierwall.resources.resource import Identity, Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

BACKEND_TLS_POLICY = (GATEWAY_API, "BackendTLSPolicy")
HINT = "correct the BackendTLSPolicy, or delete it if the backend has no TLS"


def policy_of(snapshot: Snapshot, backend: Resource, port: int) -> Resource | None:
    """Return the policy about a backend, if any."""
    behind = service_port(snapshot, backend, port)
    about = policies_about(snapshot, *behind) if behind is not None else []
    return about[0][0] if about else None


def policies_about(snapshot: Snapshot, service: Resource, number: int) -> list[tuple[Resource, str | None]]:
    """Return the policies about a port of a Service, each with the port's name if it names that; the first counts."""
    names = [str(entry.get("name")) for entry in list_of_maps(service.spec.get("ports")) if entry.get("port") == number]
    about = [
        ("sectionName" not in ref, policy.seniority, policy, ref.get("sectionName"))
        for policy in snapshot.in_namespace(*BACKEND_TLS_POLICY, service.namespace)
        for ref in list_of_maps(policy.spec.get("targetRefs"))
        if (ref.get("group", ""), ref.get("kind"), ref.get("name")) == ("", "Service", service.name)
        and ref.get("sectionName", None) in (None, *names)
    ]
    return [(policy, section) for *_, policy, section in sorted(about, key=lambda each: each[:2])]


def tls_change(snapshot: Snapshot, policy: Resource, http2: bool) -> ClusterChange:
    """Return what a policy changes in the cluster of a backend; raise Unenforceable if it cannot be used."""
    validation = nested_map(policy.spec, "validation")
    host = validation.get("hostname")
    if not isinstance(host, str) or not NAME.fullmatch(host):
        raise Unenforceable(f"`validation.hostname` is `{host}`, not a host name")
    authorities = list(_authorities(validation))
    if bool(authorities) == (validation.get("wellKnownCACertificates") == "System"):
        raise Unenforceable("`validation` needs `caCertificateRefs` or `wellKnownCACertificates: System`")
    value = {
        "sni": host,
        "caCertificateRefs": authorities,
        "verifySubjectAltNames": list(_names(validation)),
        "alpnProtocols": ["h2"] if http2 else [],
    }
    return tls(snapshot, policy, value)


def _authorities(validation: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for number, ref in enumerate(list_of_maps(validation.get("caCertificateRefs"))):
        kind = ref.get("group", ""), ref.get("kind")
        if kind != ("", "ConfigMap") or not isinstance(ref.get("name"), str):
            words = f"`caCertificateRefs` names a {kind[1]}, and only ConfigMaps are read"
            raise Unenforceable(words, "caCertificateRefs", number)
        yield {"kind": "ConfigMap", "name": ref["name"]}


def _names(validation: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of which the certificate must have one; without any, the host name counts."""
    for entry in list_of_maps(validation.get("subjectAltNames")):
        name = entry.get("uri") if entry.get("type") == "URI" else entry.get("hostname")
        if not isinstance(name, str) or not name or (entry.get("type") == "URI") != ("://" in name):
            raise Unenforceable(f"`{name}` in `subjectAltNames` is neither a host name nor a URI")
        yield name


def config_maps(snapshot: Snapshot) -> Iterator[Identity]:
    """Yield the ConfigMaps that policies name, which are to be read with them."""
    for policy in snapshot.of_kind(*BACKEND_TLS_POLICY):
        for ref in list_of_maps(nested_map(policy.spec, "validation").get("caCertificateRefs")):
            if (ref.get("group", ""), ref.get("kind")) == ("", "ConfigMap") and isinstance(ref.get("name"), str):
                yield "", "ConfigMap", policy.namespace, ref["name"]
