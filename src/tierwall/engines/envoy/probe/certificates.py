"""Certificates made on the fly, for asking an Envoy as any caller; the keys never leave the process that made them."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tierwall.engines.envoy.config.options import Certificate

_LIFETIME = datetime.timedelta(hours=12)
# Clocks differ a little.
_EARLIER = datetime.timedelta(minutes=5)


class Authority:
    """An authority of its own that vouches for callers (SPIFFE ids) and for the server on loopback."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tierwall")])
        made = self._builder(self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = made.sign(self._key, hashes.SHA256())
        self.pem = self._certificate.public_bytes(Encoding.PEM)

    def server(self) -> Certificate:
        """A certificate for 127.0.0.1."""
        return self._issue(x509.IPAddress(ip_address("127.0.0.1")))

    def caller(self, spiffe: str) -> Certificate:
        """A certificate for a caller."""
        return self._issue(x509.UniformResourceIdentifier(spiffe))

    def context(self, caller: str | None) -> ssl.SSLContext:
        """How a caller connects; None has no certificate."""
        context = ssl.create_default_context(cadata=self.pem.decode())
        if caller is not None:
            certificate = self.caller(caller)
            # The ssl module reads certificates from files only.
            with tempfile.TemporaryDirectory(prefix="tierwall-") as folder:
                path = Path(folder) / "caller.pem"
                path.touch(mode=0o600)
                path.write_bytes(certificate.key + certificate.chain)
                context.load_cert_chain(path)
        return context

    def _issue(self, name: x509.GeneralName) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._builder(x509.Name([]), key.public_key())
        made = made.add_extension(x509.SubjectAlternativeName([name]), critical=True)
        chain = made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        return Certificate(chain, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - _EARLIER).not_valid_after(now + _LIFETIME)
