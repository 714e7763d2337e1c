"""The certificate of the webhook, and the CA in its configuration (docs/install-in-a-cluster.md#certificates).

The certificate comes from files, with the CA in a `ca.crt` beside it, or is the controller's own. Every replica looks
again and again, and at once when somebody changes the configuration: a CA that was reset is written again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path

from tierwall.cluster.connection import Connection
from tierwall.cluster.decoding import AnswerError
from tierwall.cluster.failures import ApiServerError, ClusterError, failure_reason
from tierwall.cluster.watch import watch
from tierwall.core.diagnostics import InputError
from tierwall.core.protocols import EngineReport
from tierwall.serve.certificate_files import CertificateFiles
from tierwall.serve.controller.own_certificates import OwnCertificates, publish_bundle
from tierwall.serve.controller.state import ControllerContext

CONFIGURATION = "tierwall-warnings"
_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
AUTHORITY_FILE = "ca.crt"
# How often to look at the files, or at the Secret and the configuration, in seconds.
FILES_S, SECRET_S = 5.0, 60.0
# How long to rest between two looks, to wait after a failure, and how long a watch lasts, in seconds.
_REST_S, _RETRY_S, _WATCH_S = 0.5, 2.0, 300


class WebhookCertificates:
    """Keeps the certificate of a server in force. Everything happens in one event loop."""

    def __init__(
        self,
        context: ControllerContext,
        files: tuple[str, str] | None,
        use: Callable[[bytes, bytes], None],
    ) -> None:
        """`files` are a certificate and its key; `use` gets each new pair. InputError if the files cannot be used."""
        self._context, self._use = context, use
        self._files = CertificateFiles(*files, None) if files is not None else None
        self._authority_file = Path(files[0]).with_name(AUTHORITY_FILE) if files is not None else None
        self._look = asyncio.Event()
        self._used: tuple[bytes, bytes] | None = None
        self._reported = ""

    async def keep(self) -> None:
        """Look until the task is cancelled."""
        connection = Connection(self._context.access, self._context.timeout)
        certificates = OwnCertificates(connection, self._context.release_namespace)
        watching = asyncio.create_task(self._watch(connection))
        interval = SECRET_S if self._files is None else FILES_S
        try:
            while True:
                self._look.clear()
                pause = interval if await self._renew(connection, certificates) else _RETRY_S
                # Whoever writes another CA again and again is not answered in a storm.
                await asyncio.sleep(_REST_S)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._look.wait(), pause)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await connection.close()

    async def _renew(self, connection: Connection, certificates: OwnCertificates) -> bool:
        """Take what is newest, and publish its CA; False if it must be tried again soon."""
        failure = ""
        try:
            if self._files is None:
                issued = await certificates.refresh()
                pair, authority = (issued.certificate, issued.key), issued.authority
            else:
                pair, authority = await asyncio.to_thread(self._read_files, self._files)
            if pair != self._used:
                self._use(*pair)
                self._used = pair
            if authority:
                await publish_bundle(connection, CONFIGURATION, self._context.release_namespace, authority)
        except InputError as error:
            failure = error.diagnostics[0].message
        except ApiServerError as error:
            # Without its configuration nobody asks; 422: it has changed since it was read.
            failure = "" if self._used is not None and error.code in (404, 422) else failure_reason(error)
            if error.code == 422:
                return False
        except ClusterError as error:
            failure = failure_reason(error)
        if failure and failure != self._reported:
            words = f"the certificate of the webhook cannot be renewed: {failure}"
            self._context.send_report(EngineReport(words))
        self._reported = failure
        return not failure

    def _read_files(self, files: CertificateFiles) -> tuple[tuple[bytes, bytes], bytes]:
        files.reload()
        certificate = files.certificate
        assert certificate is not None
        authority = b""
        if self._authority_file is not None:
            with suppress(OSError):
                authority = self._authority_file.read_bytes()
        return (certificate.chain, certificate.key), authority

    async def _watch(self, connection: Connection) -> None:
        """Look again when the configuration changes."""
        query = {"fieldSelector": f"metadata.name={CONFIGURATION}", "timeoutSeconds": str(_WATCH_S)}
        while True:
            try:
                async with aclosing(watch(connection, _PATH, query, _WATCH_S + 15)) as events:
                    async for _ in events:
                        self._look.set()
            except (ClusterError, AnswerError):
                await asyncio.sleep(_RETRY_S)
