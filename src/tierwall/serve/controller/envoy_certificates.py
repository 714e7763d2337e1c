"""Signs the client certificates of Envoys: a pod sends a key's request with its token, and gets a certificate.

The certificate names one Gateway. A pod may have it if it runs in the namespace of that Gateway and has the Gateway's
label. Whoever may create pods in a namespace may have the certificates of its Gateways, then: the trust boundary is the
namespace (docs/fleet.md#who-is-trusted). A token of another namespace is never enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tierwall.cluster.failures import ClusterError
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.fleet import gateway_uri
from tierwall.serve.controller.gateway_class import GATEWAY_LABEL, full_name, served_gateways, short_name
from tierwall.serve.controller.issued_certificates import CertificateRequestError, IssuedCertificates
from tierwall.serve.controller.pod_tokens import PodIdentity, PodTokens, TokenError
from tierwall.serve.https_server import HttpsServer

PATH = "/certificate"
# The largest request, in bytes, and how long a handshake, headers or a body may take, in seconds.
MAX_BODY, SECONDS = 64 * 1024, 10.0
MAX_CONNECTIONS = 256
_ENDED = ("Succeeded", "Failed")


class CertificateRequest(Struct, forbid_unknown_fields=True):
    """The request of a pod: the Gateway, `namespace/name`, and a certificate signing request as PEM."""

    gateway: str
    request: str


_DECODER = msgspec.json.Decoder(CertificateRequest)


def pod_problem(snapshot: Snapshot, identity: PodIdentity, gateway: str, namespaces: Collection[str] | None) -> str:
    """Return why a pod may not have the certificate of a Gateway; empty if it may."""
    served = {full_name(served): served for served in served_gateways(snapshot, namespaces)}.get(gateway)
    if served is None or served.namespace != identity.namespace:
        # Nothing is told about Gateways of other namespaces.
        return f"there is no Gateway `{gateway}` of this controller in the namespace of the pod"
    pod = snapshot.get("", "Pod", identity.namespace, identity.pod)
    if pod is None or pod.metadata.get("uid") != identity.uid:
        return "the pod of the token does not exist"
    if (pod.value.get("status") or {}).get("phase") in _ENDED:
        return "the pod of the token has ended"
    if pod.spec.get("serviceAccountName", identity.service_account) != identity.service_account:
        return "the token is of another ServiceAccount than the pod's"
    if pod.labels.get(GATEWAY_LABEL) != short_name(served.name):
        return f"the pod has no label `{GATEWAY_LABEL}: {short_name(served.name)}`"
    return ""


class EnvoyCertificates:
    """Answers pods over HTTPS."""

    def __init__(
        self,
        tokens: PodTokens,
        issued: Callable[[], IssuedCertificates | None],
        snapshot: Callable[[], Snapshot],
        namespaces: Collection[str] | None,
    ) -> None:
        """`issued` and `snapshot` return what is in force now."""
        self._tokens, self._issued, self._snapshot, self._namespaces = tokens, issued, snapshot, namespaces
        self.app = Starlette(routes=[Route(PATH, self._answer, methods=["POST"])])
        self._server = HttpsServer(self.app, SECONDS, MAX_CONNECTIONS)

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port; InputError if the address cannot be used."""
        self._server.listen(host, port)
        self.renew()
        return self._server.port

    def renew(self) -> None:
        """Use the certificate in force from the next handshake on."""
        issued = self._issued()
        assert issued is not None, "there are certificates before anybody listens"
        self._server.use(issued.certificate, issued.key)

    async def stop(self) -> None:
        """Finish open requests and stop."""
        await self._server.stop()

    async def _answer(self, request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return _refusal(401, "send the token of the pod as `Authorization: Bearer`")
        if int(request.headers.get("content-length") or MAX_BODY + 1) > MAX_BODY:
            return _refusal(413, f"expected at most {MAX_BODY} bytes")
        try:
            # Nobody is known yet, and whoever sends nothing more must not keep a place.
            async with asyncio.timeout(SECONDS):
                body = await request.body()
        except TimeoutError:
            return _refusal(408, f"the request did not arrive within {SECONDS:g} s")
        except ClientDisconnect:
            return _refusal(400, "the request did not arrive as a whole")
        try:
            wish = _DECODER.decode(body)
            identity = await self._tokens.verify(token.strip())
        except msgspec.DecodeError as error:
            return _refusal(400, f"expected a Gateway and a request: {error}")
        except TokenError as error:
            return _refusal(401, str(error))
        except (ClusterError, ValueError, KeyError):
            return _refusal(503, "the keys of tokens cannot be read from the API server")
        if problem := pod_problem(self._snapshot(), identity, wish.gateway, self._namespaces):
            return _refusal(403, problem)
        issued = self._issued()
        assert issued is not None
        try:
            pem = issued.sign_client(wish.request.encode(), gateway_uri(wish.gateway), datetime.now(UTC))
        except CertificateRequestError as error:
            return _refusal(400, str(error))
        return JSONResponse({"certificate": pem.decode(), "authority": issued.authority.decode()})


def _refusal(status: int, message: str) -> Response:
    # The rest of the request may not have been read, so the connection cannot be used again.
    return JSONResponse({"error": message}, status, {"connection": "close"})
