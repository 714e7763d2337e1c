"""The certificate and the client CA that options name for Gateways without their own, read again when they change.

A new one counts for new connections at once, and the connections under the old one are drained. Files that cannot be
read or do not fit together, as while they are written, leave the old ones in force.
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.envoy.config.options import Certificate
from tierwall.engines.envoy.config.tls import BAD_CERTIFICATE, certificate_problem


class GatewayFiles:
    """Files of a certificate, its key, and the CA of clients; InputError says why they cannot be used."""

    def __init__(self, certificate: str | None, key: str | None, client_ca: str | None) -> None:
        self._paths = certificate, key, client_ca
        self._contents = self._read()
        self.certificate = read_certificate(certificate, key)
        self.authority = read_authority(client_ca)

    def reload(self) -> bool:
        """Read the files again; False if they have not changed. After an InputError, the old ones stay."""
        before, self._contents = self._contents, self._read()
        if self._contents == before:
            return False
        certificate, key, client_ca = self._paths
        new = read_certificate(certificate, key), read_authority(client_ca)
        if new == (self.certificate, self.authority):
            return False
        self.certificate, self.authority = new
        return True

    def _read(self) -> list[bytes | None]:
        contents: list[bytes | None] = []
        for path in self._paths:
            try:
                contents.append(Path(path).read_bytes() if path is not None else None)
            except OSError:
                contents.append(None)
        return contents


def read_certificate(chain: str | None, key: str | None) -> Certificate | None:
    """Return a certificate with its key; None without paths. InputError says why it cannot be used."""
    if chain is None or key is None:
        return None
    certificate = Certificate(_bytes(chain), _bytes(key))
    if problem := certificate_problem(certificate):
        named = problem.replace("tls.crt", chain).replace("tls.key", key)
        raise _unusable(f"the certificate cannot be used: {named}")
    return certificate


def read_authority(path: str | None) -> bytes | None:
    """Return CA certificates; None without a path. InputError for a file without certificates."""
    if path is None:
        return None
    authority = _bytes(path)
    try:
        x509.load_pem_x509_certificates(authority)
    except ValueError:
        raise _unusable(f"the CA certificates cannot be used: `{path}` is not a PEM certificate") from None
    return authority


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unusable(f"`{path}` cannot be read: {error.strerror}") from None


def _unusable(message: str) -> InputError:
    return InputError([Diagnostic(BAD_CERTIFICATE, message)])
