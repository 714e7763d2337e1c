"""TLS contexts for API servers. Keys stay in memory: they never touch the disk (docs/clusters.md#keys).

Certificates are judged as kubectl judges them: any certificate of the authority is trusted, be it a root or not, names
stand in the certificate's list of names, never in its common name, and key identifiers may be missing.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from typing import Any

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.kubeconfig import kubeconfig_error
from tierwall.cluster.pem import certificates


class _TlsConnection(ssl.SSLObject):
    """A connection that reads all records that have arrived, not one at a time.

    An API server sends each event of a watch in a record of its own, and each read passes through all layers of httpx.
    """

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        """Read what has arrived, up to so many bytes. The end of the connection comes with the next read."""
        first = super().read(size, buffer)
        if buffer is not None:
            return first
        records, left = [first], size - len(first)
        with contextlib.suppress(ssl.SSLWantReadError):
            while left > 0 and records[-1]:
                records.append(super().read(left))
                left -= len(records[-1])
        return b"".join(records)


class ServerContext(ssl.SSLContext):
    """A context for one server: its name is sent and checked, whatever the address or the proxy on the way."""

    server_name: str = ""
    sslobject_class = _TlsConnection

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a connection."""
        return super().wrap_bio(incoming, outgoing, server_side, self.server_name or server_hostname, session)


def server_context(access: ClusterAccess, certificate: bytes = b"") -> ssl.SSLContext:
    """Return the context for a server; `certificate` has a client's certificate and key as PEM."""
    context = ServerContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = access.server_name
    _trust(context, access, alone=True)
    if certificate:
        load_certificate(context, certificate)
    return context


def proxy_context(access: ClusterAccess) -> ssl.SSLContext:
    """Return the context for an https proxy: the authorities of the system and that of the cluster are trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(context, access, alone=False)
    return context


def _trust(context: ssl.SSLContext, access: ClusterAccess, alone: bool) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return
    context.hostname_checks_common_name = False
    # Python 3.13 would refuse certificates without key identifiers.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if access.authority:
        _load_authority(context, access)
    if not alone or not access.authority:
        context.load_default_certs()


def _load_authority(context: ssl.SSLContext, access: ClusterAccess) -> None:
    """Trust the certificates of the authority. As with Go, those that cannot be read do not count."""
    count = 0
    for certificate in certificates(access.authority.read()):
        with contextlib.suppress(ssl.SSLError, UnicodeDecodeError):
            context.load_verify_locations(cadata=certificate.decode("ascii"))
            count += 1
    if not count:
        file = access.authority.file
        place = f"`{file}`" if file is not None else "`certificate-authority-data`"
        raise kubeconfig_error(f"{place} has no certificate that can be used", "expected PEM: `-----BEGIN CERTIFICATE`")


def load_certificate(context: ssl.SSLContext, certificate: bytes) -> None:
    """Load a certificate and key. The ssl module reads them only from a file, so they get one that is only memory."""
    try:
        number = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    except OSError as error:
        raise kubeconfig_error(f"there is no memory for the client key: {error.strerror}") from None
    try:
        view = memoryview(certificate)
        while view:
            view = view[os.write(number, view) :]
        context.load_cert_chain(f"/proc/self/fd/{number}", password=_refuse_password)
    except ssl.SSLError as error:
        reason = (
            "the key belongs to another certificate" if error.reason == "KEY_VALUES_MISMATCH" else "they are not PEM"
        )
        raise kubeconfig_error(f"the client certificate and its key cannot be used: {reason}") from None
    except OSError as error:
        raise kubeconfig_error(f"the client key cannot be loaded from memory: {error.strerror}") from None
    finally:
        os.close(number)


def _refuse_password() -> str:
    # Otherwise OpenSSL would ask on the terminal.
    raise kubeconfig_error("the client key is encrypted", "use a key without a password, or a credential plugin")
