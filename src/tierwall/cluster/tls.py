"""TLS contexts for API servers. Keys stay in memory: they never touch the disk (docs/clusters.md#keys)."""

from __future__ import annotations

import contextlib
import os
import ssl

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.kubeconfig import kubeconfig_error


def tls_context(access: ClusterAccess, certificate: bytes = b"") -> ssl.SSLContext:
    """Return the context for a server; `certificate` has a client's certificate and key as PEM."""
    if access.insecure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = _verifying_context(access.authority.read())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate:
        _load_certificate(context, certificate)
    return context


def _verifying_context(authority: bytes) -> ssl.SSLContext:
    try:
        # With the data of an authority, those of the system are not trusted.
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    except (ssl.SSLError, ValueError) as error:
        raise kubeconfig_error(f"the certificate authority cannot be used: {error}") from None
    # kubectl takes certificates without key identifiers; Python 3.13 would refuse them.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: bytes) -> None:
    """Load a certificate and key. The ssl module reads them only from a file, so they get one that is only memory."""
    number = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    try:
        view = memoryview(certificate)
        while view:
            view = view[os.write(number, view) :]
        context.load_cert_chain(f"/proc/self/fd/{number}", password=_refuse_password)
    except ssl.SSLError as error:
        raise kubeconfig_error(f"the client certificate and key cannot be used: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.close(number)


def _refuse_password() -> str:
    # Otherwise OpenSSL would ask on the terminal.
    raise kubeconfig_error("the client key is encrypted", "use a key without a password, or a credential plugin")
