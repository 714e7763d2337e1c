"""Certificates for an API server and the authorizer to know each other by: one CA, a server's and a client's.

Keys are written readable by their owner only. What is there already is kept, so that printing the installation again
does not cut running servers off.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tierwall.core.diagnostics import Diagnostic, InputError

CLIENT = "tierwall-api-server"


def make_certificates(folder: Path, hosts: Sequence[str], days: int) -> None:
    """`ca`, `server` and `client`, each as `.crt` and `.key`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ca, ca_key = _authority(folder, days)
        _signed(folder, "server", hosts[0], hosts, ExtendedKeyUsageOID.SERVER_AUTH, ca, ca_key, days)
        _signed(folder, "client", CLIENT, (), ExtendedKeyUsageOID.CLIENT_AUTH, ca, ca_key, days)
    except (OSError, ValueError, TypeError) as why:
        raise InputError([Diagnostic("TW512", f"certificates in `{folder}` cannot be made: {why}")]) from why


def _authority(folder: Path, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if (folder / "ca.crt").exists():
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("`ca.key` is no key of an elliptic curve")
        return x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tierwall-authorizer-ca")
    builder = _builder(name, name, key, days * 10)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = builder.add_extension(x509.BasicConstraints(True, 0), True).add_extension(usage, True)
    certificate = builder.sign(key, hashes.SHA256())
    _write(folder, "ca", certificate, key)
    return certificate, key


def _signed(
    folder: Path,
    file: str,
    name: str,
    hosts: Sequence[str],
    use: x509.ObjectIdentifier,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> None:
    if (folder / f"{file}.crt").exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), ca.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(False, None), True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), False)
    _write(folder, file, builder.sign(ca_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write(folder: Path, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(folder / f"{file}.key", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(secret)
    (folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
