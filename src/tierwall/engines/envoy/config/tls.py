"""TLS of listeners: the server certificate from Secrets, and the authorities for client certificates.

The SPIFFE id in the URI SAN of its certificate identifies a caller. A Gateway names the authorities in
`spec.tls.frontend` (Gateway API), by port or for all ports. Options apply where a Gateway or listener names none. A
listener whose certificate cannot be used is not opened: it must not serve under another identity.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from envoy.extensions.transport_sockets.tls.v3 import common_pb2, secret_pb2, tls_pb2
from msgspec import Struct

from tierwall.attach.backend import is_permitted
from tierwall.attach.listener import Listener, gateway_listeners
from tierwall.attach.place import GATEWAY, Place
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config import listener_problem
from tierwall.engines.envoy.config.fence import ObjectFence
from tierwall.engines.envoy.config.listener_problem import ListenerProblem
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.options import Certificate, EnvoyOptions
from tierwall.resources.resource import Identity, Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot

BAD_CERTIFICATE, NO_AUTHORITY = "TW653", "TW654"
_READ = (("", "Secret"), ("", "ConfigMap"))


class ListenerTls(Struct, frozen=True):
    """TLS of a listener: its certificate, the client authority if any, and whether clients need a certificate."""

    certificate: Certificate
    authority: bytes | None
    required: bool

    @property
    def identifies(self) -> bool:
        """Whether clients may show a certificate."""
        return self.authority is not None

    @property
    def digest(self) -> str:
        """A digest of the certificate, the key and the authority."""
        parts = (*self.certificate, self.authority or b"")
        return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()[:16]


def listener_tls(
    snapshot: Snapshot, gateway: Resource, listener: Listener, options: EnvoyOptions, problems: list[Diagnostic]
) -> ListenerTls | ListenerProblem:
    """Return the TLS of an HTTPS listener, or why it is unusable, which also becomes a diagnostic."""
    certificate = _certificate(snapshot, listener, options)
    authority = _authority(snapshot, gateway, listener, options)
    unusable = [problem for problem in (certificate, authority) if isinstance(problem, ListenerProblem)]
    problems += [_problem(BAD_CERTIFICATE, problem.message, listener) for problem in unusable]
    if isinstance(certificate, ListenerProblem):
        return certificate
    if isinstance(authority, ListenerProblem):
        return authority
    bundle, required = authority
    if bundle is None:
        message = f"{listener} does not name an authority for client certificates: callers have no identity there"
        problems.append(_problem(NO_AUTHORITY, message, listener))
    return ListenerTls(certificate, bundle, required)


def _certificate(snapshot: Snapshot, listener: Listener, options: EnvoyOptions) -> Certificate | ListenerProblem:
    refs = list(list_of_maps(nested_map(listener.value, "tls").get("certificateRefs")))
    if not refs:
        return options.certificate or ListenerProblem(
            listener_problem.INVALID_CERTIFICATE, f"{listener} does not name a certificate"
        )
    place = _place(refs[0], "Secret", listener.owner.namespace)
    data = object_data(snapshot, listener.owner, place)
    words = f"certificate of {listener} cannot be used: "
    if isinstance(data, UnreadableObject):
        reason = listener_problem.INVALID_CERTIFICATE if data.is_permitted else listener_problem.NOT_PERMITTED
        return ListenerProblem(reason, words + data.message)
    certificate = Certificate(data.get("tls.crt", b""), data.get("tls.key", b""))
    if problem := certificate_problem(certificate):
        return ListenerProblem(listener_problem.INVALID_CERTIFICATE, words + problem)
    return certificate


def certificate_problem(certificate: Certificate) -> str:
    """Return why a certificate cannot be used, or an empty string."""
    try:
        chain = x509.load_pem_x509_certificates(certificate.chain)
    except ValueError:
        return "`tls.crt` is not a PEM certificate"
    try:
        key = load_pem_private_key(certificate.key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return "`tls.key` is not an unencrypted PEM private key"
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        fits = chain[0].public_key().public_bytes(*form) == key.public_key().public_bytes(*form)
    except (ValueError, UnsupportedAlgorithm):
        return "its public key cannot be read"
    return "" if fits else "`tls.key` is not the key of `tls.crt`"


def _authority(
    snapshot: Snapshot, gateway: Resource, listener: Listener, options: EnvoyOptions
) -> tuple[bytes | None, bool] | ListenerProblem:
    """Return the authorities, and whether clients must have a certificate; or why an authority cannot be read."""
    validation = _validation(gateway, listener.port)
    refs = list(list_of_maps(validation.get("caCertificateRefs")))
    required = validation.get("mode") != "AllowInsecureFallback"
    if not refs:
        return options.client_authority, options.client_authority is not None
    words = f"authority for client certificates on {listener} cannot be used: "
    bundles = b""
    for ref in refs:
        place = _place(ref, "ConfigMap", gateway.namespace)
        data = object_data(snapshot, gateway, place)
        if isinstance(data, UnreadableObject):
            if not data.is_permitted:
                return ListenerProblem(listener_problem.NOT_PERMITTED, words + data.message, True)
            is_known = place.key in _READ
            reason = listener_problem.INVALID_AUTHORITY if is_known else listener_problem.INVALID_AUTHORITY_KIND
            return ListenerProblem(reason, words + data.message, True)
        bundle = data.get("ca.crt", b"")
        try:
            x509.load_pem_x509_certificates(bundle)
        except ValueError:
            return ListenerProblem(
                listener_problem.INVALID_AUTHORITY, f"{words}`ca.crt` is not a PEM certificate", True
            )
        bundles += bundle if bundle.endswith(b"\n") else bundle + b"\n"
    return bundles, required


def _validation(gateway: Resource, port: int) -> Mapping[str, Any]:
    frontend = nested_map(gateway.spec, "tls", "frontend")
    chosen = next(
        (entry.get("tls") for entry in list_of_maps(frontend.get("perPort")) if entry.get("port") == port), None
    )
    for settings in (chosen, frontend.get("default")):
        validation = settings.get("validation") if isinstance(settings, dict) else None
        if isinstance(validation, dict):
            return validation
    return {}


def _place(ref: Mapping[str, Any], kind: str, namespace: str) -> Place:
    return Place(
        str(ref.get("group") or ""),
        str(ref.get("kind") or kind),
        str(ref.get("namespace") or namespace),
        str(ref.get("name")),
    )


def referenced_identities(gateway: Resource, listener: Listener) -> Iterator[Identity]:
    """Yield the Secrets and ConfigMaps that a listener refers to."""
    for ref in list_of_maps(nested_map(listener.value, "tls").get("certificateRefs")):
        yield _place(ref, "Secret", listener.owner.namespace)[:4]
    for ref in list_of_maps(_validation(gateway, listener.port).get("caCertificateRefs")):
        yield _place(ref, "ConfigMap", gateway.namespace)[:4]


def objects_to_read(snapshot: Snapshot, options: EnvoyOptions) -> frozenset[Identity]:
    """Return the Secrets and ConfigMaps that the TLS of served Gateways needs, as far as grants permit it.

    No other Secret of a cluster is ever read (docs/clusters.md#what-they-need).
    """
    needed: set[Identity] = set()
    fence = ObjectFence()
    for gateway in snapshot.of_kind(*GATEWAY):
        if options.gateways is None or f"{gateway.namespace}/{gateway.name}" in options.gateways:
            # What is wrong with a Gateway is said by the compilation.
            needed |= fence.guard(gateway, "", partial(_objects_of, snapshot, gateway)) or set()
    return frozenset(needed)


def _objects_of(snapshot: Snapshot, gateway: Resource) -> set[Identity]:
    needed: set[Identity] = set()
    for listener in gateway_listeners(snapshot, gateway):
        if listener.protocol != "HTTPS":
            continue
        # Only the first certificate is used.
        certificates = list(list_of_maps(nested_map(listener.value, "tls").get("certificateRefs")))[:1]
        authorities = list_of_maps(_validation(gateway, listener.port).get("caCertificateRefs"))
        places = [(listener.owner, _place(ref, "Secret", listener.owner.namespace)) for ref in certificates]
        places += [(gateway, _place(ref, "ConfigMap", gateway.namespace)) for ref in authorities]
        needed |= {place[:4] for owner, place in places if place.key in _READ and is_permitted(snapshot, owner, place)}
    return needed


class UnreadableObject(NamedTuple):
    """A reference whose data cannot be read, and why."""

    message: str
    is_permitted: bool = True


def object_data(snapshot: Snapshot, owner: Resource, place: Place) -> dict[str, bytes] | UnreadableObject:
    """Return the data of a Secret or ConfigMap, or why it cannot be read."""
    if place.key not in _READ:
        return UnreadableObject(f"{place} is neither a Secret nor a ConfigMap")
    if not is_permitted(snapshot, owner, place):
        return UnreadableObject(f"no ReferenceGrant in namespace {place.namespace} permits {place}", is_permitted=False)
    resource = place.resource(snapshot)
    if resource is None and place.namespace == "default":
        resource = place._replace(namespace="").resource(snapshot)
    if resource is None:
        return UnreadableObject(f"{place} does not exist")
    try:
        return dict(_entries(resource))
    except (binascii.Error, ValueError):
        return UnreadableObject(f"{place} has data that is not Base64")


def _entries(resource: Resource) -> Iterator[tuple[str, bytes]]:
    is_secret = resource.kind == "Secret"
    for field, encoded in (("data", is_secret), ("binaryData", True), ("stringData", False)):
        values = resource.value.get(field)
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, str):
                yield key, base64.b64decode(value, validate=True) if encoded else value.encode()


def _problem(code: str, message: str, listener: Listener) -> Diagnostic:
    return listener.owner.diagnostic(code, message, ("spec", "listeners", listener.number))


def transport_socket(
    tls: ListenerTls, name: str, static: bool, change: Callable[[Any], None] = lambda context: None
) -> tuple[Any, dict[str, Any]]:
    """Return the socket of a listener, and the Secrets that it refers to (none if they are inlined).

    `change` makes the last changes of the DownstreamTlsContext.
    """
    context = tls_pb2.DownstreamTlsContext()
    # A resumed session would keep an identity that was checked long ago, under an authority that may be gone.
    context.disable_stateless_session_resumption = True
    context.disable_stateful_session_resumption = True
    common = context.common_tls_context
    common.alpn_protocols.extend(("h2", "http/1.1"))
    common.tls_params.tls_minimum_protocol_version = common_pb2.TlsParameters.TLSv1_2
    change(context)
    certificate, authority = (secret_pb2.Secret(name=f"{kind}/{name}") for kind in ("certificate", "authority"))
    certificate.tls_certificate.certificate_chain.inline_bytes = tls.certificate.chain
    certificate.tls_certificate.private_key.inline_bytes = tls.certificate.key
    secrets = [certificate]
    if tls.authority is not None:
        context.require_client_certificate.value = tls.required
        authority.validation_context.trusted_ca.inline_bytes = tls.authority
        secrets.append(authority)
    if static:
        common.tls_certificates.append(certificate.tls_certificate)
        if tls.authority is not None:
            common.validation_context.CopyFrom(authority.validation_context)
        return packed(context), {}
    _refer(common.tls_certificate_sds_secret_configs.add(), certificate)
    if tls.authority is not None:
        _refer(common.validation_context_sds_secret_config, authority)
    return packed(context), {secret.name: secret for secret in secrets}


def _refer(reference: Any, secret: Any) -> None:
    reference.name = secret.name
    reference.sds_config.ads.SetInParent()
    reference.sds_config.resource_api_version = "V3"
