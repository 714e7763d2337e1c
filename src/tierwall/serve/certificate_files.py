"""The certificate, key and client CA that options name, read again when they change.

A new one counts for new connections at once, and the connections under the old one are drained. Files that cannot be
read or do not fit together, as while they are written, leave the old ones in force.
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.envoy.config.options import Certificate
from tierwall.engines.envoy.config.tls import BAD_CERTIFICATE, certificate_problem


class CertificateFiles:
    """Files of a certificate, its key, and the CA of clients; InputError says why they cannot be used."""

    def __init__(self, certificate: str | None, key: str | None, client_ca: str | None) -> None:
        self._paths = certificate, key, client_ca
        # A pipe can be read only once.
        self._can_change = all(Path(path).is_file() for path in self._paths if path is not None)
        self._contents = [_content(path) for path in self._paths]
        self.certificate, self.authority = self._usable()

    def reload(self) -> bool:
        """Read the files again; False if they have not changed. After an InputError, the old ones stay."""
        if not self._can_change:
            return False
        before, self._contents = self._contents, [_content(path) for path in self._paths]
        if self._contents == before:
            return False
        usable = self._usable()
        if usable == (self.certificate, self.authority):
            return False
        self.certificate, self.authority = usable
        return True

    def _usable(self) -> tuple[Certificate | None, bytes | None]:
        (chain_path, key_path, ca_path), (chain, key, ca) = self._paths, self._contents
        return _certificate(chain_path, chain, key_path, key), _authority(ca_path, ca)


def _content(path: str | None) -> bytes | str | None:
    """Return what is in a file, or as a text why it cannot be read."""
    try:
        return Path(path).read_bytes() if path is not None else None
    except OSError as error:
        return error.strerror or str(error)


def _certificate(
    chain_path: str | None, chain: bytes | str | None, key_path: str | None, key: bytes | str | None
) -> Certificate | None:
    if chain_path is None or key_path is None:
        return None
    certificate = Certificate(_readable(chain_path, chain), _readable(key_path, key))
    if problem := certificate_problem(certificate):
        named = problem.replace("tls.crt", chain_path).replace("tls.key", key_path)
        raise _unusable(f"the certificate cannot be used: {named}")
    return certificate


def _authority(path: str | None, content: bytes | str | None) -> bytes | None:
    if path is None:
        return None
    authority = _readable(path, content)
    try:
        x509.load_pem_x509_certificates(authority)
    except ValueError:
        raise _unusable(f"the CA certificates cannot be used: `{path}` is not a PEM certificate") from None
    return authority


def _readable(path: str, content: bytes | str | None) -> bytes:
    if isinstance(content, str):
        raise _unusable(f"`{path}` cannot be read: {content}")
    return content or b""


def _unusable(message: str) -> InputError:
    return InputError([Diagnostic(BAD_CERTIFICATE, message)])
