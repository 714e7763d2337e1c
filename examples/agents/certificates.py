"""Certificates for the example, made on the fly: an authority, one for the Gateway, one for each agent.

An agent's certificate carries its SPIFFE id as the one URI name, as a workload's does that SPIRE or a mesh made.
"""

from __future__ import annotations

import datetime
from base64 import b64encode
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tierwall.engines.private import write_private

LIFETIME = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority that lives as long as this object."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example authority")])
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        """The authority's own certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def agent(self, namespace: str, account: str) -> Pair:
        """A certificate for the agent that runs as a ServiceAccount."""
        uri = x509.UniformResourceIdentifier(f"spiffe://cluster.local/ns/{namespace}/sa/{account}")
        return self._issue(account, [uri], ExtendedKeyUsageOID.CLIENT_AUTH)

    def server(self, *names: str) -> Pair:
        """A certificate for a server with these host names; 127.0.0.1 is one more."""
        listed: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        return self._issue(
            names[0], [*listed, x509.IPAddress(ip_address("127.0.0.1"))], ExtendedKeyUsageOID.SERVER_AUTH
        )

    def _issue(self, name: str, names: list[x509.GeneralName], purpose: x509.ObjectIdentifier) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(now + LIFETIME)


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def manifests(authority: Authority, gateway: Pair, namespace: str = "shop") -> str:
    """The Secret and the ConfigMap that the Gateway refers to."""
    authority_lines = "".join(f"    {line}\n" for line in authority.pem.decode().splitlines())
    return f"""\
apiVersion: v1
kind: Secret
metadata: {{name: agents-tls, namespace: {namespace}}}
type: kubernetes.io/tls
data:
  tls.crt: {b64encode(gateway.certificate).decode()}
  tls.key: {b64encode(gateway.key).decode()}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: agents-ca, namespace: {namespace}}}
data:
  ca.crt: |
{authority_lines}"""


def write(folder: Path, agents: list[tuple[str, str]]) -> None:
    """All of it into a folder: `tls.yaml` for Tierwall, and PEM files for the agents."""
    authority = Authority()
    contents = {"tls.yaml": manifests(authority, authority.server("localhost")).encode(), "ca.pem": authority.pem}
    for namespace, account in agents:
        pair = authority.agent(namespace, account)
        contents[f"{account}.pem"] = pair.certificate + pair.key
    for name, content in contents.items():
        write_private(folder / name, content)
