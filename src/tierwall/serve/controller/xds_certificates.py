"""The certificate of the xDS server and the CA of Envoys: from files that are read again, or the controller's own.

Those of its own also sign the certificates of Envoys (`envoy_certificates`), so their CA is that of both sides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ClusterError, failure_reason
from tierwall.core.diagnostics import InputError
from tierwall.core.protocols import EngineReport
from tierwall.engines.envoy.config.options import Certificate, MutualTlsAddress
from tierwall.serve.certificate_files import CertificateFiles
from tierwall.serve.cluster import first_of
from tierwall.serve.controller.issued_certificates import IssuedCertificates
from tierwall.serve.controller.own_certificates import OwnCertificates

# How often files are read again, and how long to wait after a failure, in seconds.
FILES_S, RETRY_S = 5.0, 2.0


class XdsCertificates:
    """The certificates in force. `changed` is called when there are others."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        files: CertificateFiles | None,
        changed: Callable[[], None],
        send_report: Callable[[EngineReport], None],
    ) -> None:
        """`namespace` is that of the Secret with the controller's own certificates, which is not read with files."""
        self._files, self._changed, self._send_report = files, changed, send_report
        self._own = OwnCertificates(connection, namespace) if files is None else None
        # The controller's own certificates; None before they were read, and with files.
        self.issued: IssuedCertificates | None = None
        self._last_failure = ""

    def address(self, host: str, port: int) -> MutualTlsAddress | None:
        """Return an address with the certificates in force; None before they were read."""
        if self._files is not None:
            assert self._files.certificate is not None
            assert self._files.authority is not None
            return MutualTlsAddress(host, port, self._files.certificate, self._files.authority)
        if self.issued is None:
            return None
        certificate = Certificate(self.issued.certificate, self.issued.key)
        return MutualTlsAddress(host, port, certificate, self.issued.authority)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the certificates up to date until `stop` is set."""
        if self._own is None:
            while not await first_of(None, stop, FILES_S):
                self._reload()
            return
        while self.issued is None and not stop.is_set():
            try:
                self._take(await self._own.refresh())
            except (ClusterError, ValueError) as error:
                self._say(error)
                await first_of(None, stop, RETRY_S)
        if self.issued is not None:
            keeping = asyncio.ensure_future(self._own.keep(self.issued, self._replace, self._say))
            stopping = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait((keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
                if keeping.done():
                    keeping.result()
            finally:
                keeping.cancel()
                stopping.cancel()

    def _take(self, issued: IssuedCertificates) -> None:
        self.issued, self._last_failure = issued, ""
        self._changed()

    async def _replace(self, issued: IssuedCertificates) -> None:
        self._take(issued)

    def _reload(self) -> None:
        assert self._files is not None
        try:
            if not self._files.reload():
                return
        except InputError as error:
            self._send_report(EngineReport("the last certificate of the xDS server stays in force", error.diagnostics))
            return
        self._changed()

    def _say(self, error: Exception) -> None:
        failure = failure_reason(error)
        if failure != self._last_failure:
            self._last_failure = failure
            self._send_report(EngineReport(f"the controller's certificates cannot be read or renewed: {failure}"))
