"""The certificates that a controller makes for itself: a CA, and a serving certificate under it.

Everything is in one Secret, which the replicas share. A pure function says what the Secret should hold at a time, so
replicas that look at the same Secret want the same, and a replica that loses a race takes what the other has written.

A new CA is announced a day before anything is signed by it: whoever trusts a bundle that is a day old still trusts what
is served. The old CA stays in the bundle until it expires, because client certificates under it may still be in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

AUTHORITY_LIFE = timedelta(days=730)
SERVING_LIFE = timedelta(days=90)
CLIENT_LIFE = timedelta(days=1)
# How long a new CA is in the bundle before anything is signed by it.
ANNOUNCED = timedelta(days=1)
# Clocks of others may be behind by this much.
SKEW = timedelta(minutes=5)

# The keys of the Secret. `ca.crt` is the bundle: the CA that signs comes first.
BUNDLE, SIGNING_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
NEXT_AUTHORITY, NEXT_KEY = "next-ca.crt", "next-ca.key"

SecretData = Mapping[str, bytes]


class CertificateRequestError(ValueError):
    """A request for a certificate that cannot be used."""


class IssuedCertificates(Struct, frozen=True):
    """The certificate and key that a process serves with, and the CAs that it trusts and signs by: PEM."""

    authority: bytes
    certificate: bytes
    key: bytes
    signing_key: bytes

    def sign_client(self, request: bytes, uri: str, now: datetime, life: timedelta = CLIENT_LIFE) -> bytes:
        """Return a client certificate for the key of a request, whose name is a URI. Other wishes in it do not count.

        CertificateRequestError if it is not a signed request for an EC or RSA key.
        """
        try:
            wanted = x509.load_pem_x509_csr(request)
            is_signed = wanted.is_signature_valid
            key = wanted.public_key()
        except (ValueError, TypeError, InvalidSignature) as error:
            raise CertificateRequestError(f"not a PEM certificate request: {error}") from None
        if not is_signed:
            raise CertificateRequestError("the request is not signed by its own key")
        signer = _Authority.load(self.authority, self.signing_key)
        name = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
        return signer.sign(key, "tierwall client", name, ExtendedKeyUsageOID.CLIENT_AUTH, now, life)


def issued(data: SecretData) -> IssuedCertificates:
    """Return what a Secret holds; ValueError if it is not what `renewed` returns."""
    try:
        return IssuedCertificates(data[BUNDLE], data[CERTIFICATE], data[KEY], data[SIGNING_KEY])
    except KeyError as error:
        raise ValueError(f"the Secret has no {error}") from None


def renewed(data: SecretData, names: Sequence[str], now: datetime) -> SecretData:
    """Return what the Secret should hold at a time; the same object if it needs no change.

    A Secret without a usable CA is filled anew. `names` are the DNS names of the serving certificate.
    """
    try:
        signer = _Authority.load(data[BUNDLE], data[SIGNING_KEY])
    except (KeyError, ValueError):
        signer = None
    if signer is None or signer.certificate.not_valid_after_utc <= now:
        signer = _Authority.make(now)
        return {BUNDLE: signer.pem, SIGNING_KEY: signer.key_pem, **_serving(signer, names, now)}
    changed = dict(data)
    following = _following(data)
    if following is None and _is_due(signer.certificate, now):
        following = _Authority.make(now)
        changed[NEXT_AUTHORITY], changed[NEXT_KEY] = following.pem, following.key_pem
    elif following is not None and following.certificate.not_valid_before_utc + SKEW + ANNOUNCED <= now:
        previous, signer, following = signer, following, None
        del changed[NEXT_AUTHORITY], changed[NEXT_KEY]
        changed[SIGNING_KEY] = signer.key_pem
        changed[BUNDLE] = signer.pem + previous.pem
        changed |= _serving(signer, names, now)
    changed[BUNDLE] = _bundle(signer, following, changed[BUNDLE], now)
    if not _is_usable(changed, signer, names, now):
        changed |= _serving(signer, names, now)
    return changed if changed != data else data


def _following(data: SecretData) -> _Authority | None:
    try:
        return _Authority.load(data[NEXT_AUTHORITY], data[NEXT_KEY])
    except (KeyError, ValueError):
        return None


def _bundle(signer: _Authority, following: _Authority | None, old: bytes, now: datetime) -> bytes:
    """Return the CAs to trust: the one that signs, the next one, and the ones before that have not expired."""
    trusted = [signer.certificate, *([following.certificate] if following else [])]
    for certificate in x509.load_pem_x509_certificates(old):
        if certificate not in trusted and certificate.not_valid_after_utc > now:
            trusted.append(certificate)
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in trusted)


def _serving(signer: _Authority, names: Sequence[str], now: datetime) -> dict[str, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([*map(x509.DNSName, names)])
    use = ExtendedKeyUsageOID.SERVER_AUTH
    certificate = signer.sign(key.public_key(), names[0], alternatives, use, now, SERVING_LIFE)
    return {CERTIFICATE: certificate, KEY: _key_pem(key)}


def _is_usable(data: SecretData, signer: _Authority, names: Sequence[str], now: datetime) -> bool:
    """Whether the serving certificate has its key, its names, this signer, and a third of its life left."""
    try:
        certificate = x509.load_pem_x509_certificate(data[CERTIFICATE])
        key = serialization.load_pem_private_key(data[KEY], None)
        certificate.verify_directly_issued_by(signer.certificate)
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (KeyError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    has_names = alternatives.get_values_for_type(x509.DNSName) == list(names)
    return has_names and key.public_key() == certificate.public_key() and not _is_due(certificate, now)


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether two thirds of a certificate's life are over."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begin + (end - begin) * 2 / 3


class _Authority(Struct, frozen=True):
    """A CA that can sign."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, now: datetime) -> _Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        # Two CAs must not have the same name: some clients look issuers up by it alone.
        name = _name(f"tierwall {x509.random_serial_number():x}"[:40])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = _builder(name, name, key.public_key(), now, AUTHORITY_LIFE)
        builder = builder.add_extension(x509.BasicConstraints(True, 0), True).add_extension(usage, True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, bundle: bytes, key_pem: bytes) -> _Authority:
        """Load the first CA of a bundle with its key; ValueError if they do not belong together."""
        certificate = x509.load_pem_x509_certificates(bundle)[0]
        try:
            key = serialization.load_pem_private_key(key_pem, None)
        except TypeError as error:
            raise ValueError(str(error)) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError("the key is not that of the CA")
        return cls(certificate, key)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self.key)

    def sign(
        self,
        key: CertificatePublicKeyTypes,
        common_name: str,
        names: x509.SubjectAlternativeName,
        use: x509.ObjectIdentifier,
        now: datetime,
        life: timedelta,
    ) -> bytes:
        """Return a certificate for a key. It does not outlive the CA."""
        life = min(life, self.certificate.not_valid_after_utc - now)
        builder = _builder(_name(common_name), self.certificate.subject, key, now, life)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(issuer, False).add_extension(x509.BasicConstraints(False, None), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False).add_extension(names, False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
