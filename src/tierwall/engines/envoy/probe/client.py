"""A client that can call an Envoy as any caller, with certificates made on the fly."""

from __future__ import annotations

import datetime
import http.client
import json
import ssl
import tempfile
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tierwall.engines.envoy.config.options import Certificate
from tierwall.engines.private import write_private
from tierwall.tool.protocol import (
    COMPLETE,
    LISTEN,
    METHOD_HEADER,
    NAME_HEADER,
    TASK_METHODS,
    VERSION_HEADER,
    WITH_SESSIONS,
    decoded_name,
    encoded_name,
    name_of,
)
from tierwall.tool.request import ToolRequest

_LIFETIME = datetime.timedelta(hours=12)
# Clocks may differ a little.
_EARLIER = datetime.timedelta(minutes=5)
_HOST = "tierwall.test"
_TASK, _CLIENT = "any-task", {"name": "tierwall", "version": "1"}


class CertificateAuthority:
    """An authority that issues certificates to callers (SPIFFE ids) and to the server on loopback."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tierwall")])
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.pem = self._certificate.public_bytes(Encoding.PEM)

    def server(self) -> Certificate:
        """Issue a certificate for 127.0.0.1."""
        return self._issue(x509.IPAddress(ip_address("127.0.0.1")))

    def caller(self, spiffe: str) -> Certificate:
        """Issue a certificate for a caller."""
        return self._issue(x509.UniformResourceIdentifier(spiffe))

    def context(self, caller: str | None) -> ssl.SSLContext:
        """Return the TLS context of a caller; None connects without a certificate."""
        context = ssl.create_default_context(cadata=self.pem.decode())
        if caller is not None:
            certificate = self.caller(caller)
            # The ssl module only reads certificates from files.
            with tempfile.TemporaryDirectory(prefix="tierwall-") as folder:
                path = Path(folder) / "caller.pem"
                write_private(path, certificate.key + certificate.chain)
                context.load_cert_chain(path)
        return context

    def _issue(self, name: x509.GeneralName) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name([]), key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=True)
        chain = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        return Certificate(chain, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - _EARLIER).not_valid_after(now + _LIFETIME)


class Client:
    """Sends requests as any caller, over persistent connections; `ports` are the ports for `plain` HTTP and `tls`."""

    def __init__(self, authority: CertificateAuthority, ports: Mapping[str, int]) -> None:
        self._authority = authority
        self._ports = ports
        self._open: dict[str | None, http.client.HTTPConnection] = {}

    def send(self, request: ToolRequest, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request with additional headers; return the status code, headers and body of the answer."""
        body = json.dumps(_message(request)).encode() if request.method is not None else b""
        headers = {**headers, "host": request.host or _HOST}
        if body:
            headers |= {"content-type": "application/json", "accept": "application/json, text/event-stream"}
            headers |= _mcp_headers(request)
        headers |= request.headers
        if body or request.http_method in ("POST", "PUT", "PATCH"):
            headers["content-length"] = str(len(body))
        connection = self._open.pop(request.caller, None) or self._connect(request.caller)
        connection.putrequest(request.http_method, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        reply = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        if answer.will_close:
            connection.close()
        else:
            self._open[request.caller] = connection
        return reply

    def close(self) -> None:
        """Close all connections."""
        for connection in self._open.values():
            connection.close()

    def _connect(self, caller: str | None) -> http.client.HTTPConnection:
        if caller is None:
            return http.client.HTTPConnection("127.0.0.1", self._ports["plain"], timeout=10)
        context = self._authority.context(caller)
        return http.client.HTTPSConnection("127.0.0.1", self._ports["tls"], timeout=10, context=context)


def _message(request: ToolRequest) -> dict[str, Any]:
    """Return the JSON-RPC message that a client of the question's protocol version sends."""
    params: dict[str, Any] = {}
    if request.method == LISTEN:
        wanted = {"toolsListChanged": True} if request.uri is None else {"resourceSubscriptions": [request.uri]}
        params["notifications"] = wanted
    elif request.method == COMPLETE:
        if request.named is not None:
            kind, key = ("ref/prompt", "name") if request.uri is None else ("ref/resource", "uri")
            params = {"ref": {"type": kind, key: request.named}, "argument": {"name": "any", "value": ""}}
    elif request.method in TASK_METHODS:
        params["taskId"] = _task(request)
    else:
        params |= {"name": request.tool} if request.tool is not None else {}
        params |= {"uri": request.uri} if request.uri is not None else {}
    if request.arguments is not None:
        params["arguments"] = request.arguments
    if is_stateless(request):
        about = {"protocolVersion": request.headers[VERSION_HEADER], "clientCapabilities": {}, "clientInfo": _CLIENT}
        params["_meta"] = {f"io.modelcontextprotocol/{key}": value for key, value in about.items()}
    return {"jsonrpc": "2.0", "id": 1, "method": request.method, "params": params}


def _task(request: ToolRequest) -> str:
    """Return the id of the task that a request is about: a question has none, but its headers may."""
    return decoded_name(request.headers.get(NAME_HEADER, "")) or _TASK


def is_stateless(request: ToolRequest) -> bool:
    """Whether the question's headers name a protocol version whose messages name it, too."""
    return request.headers.get(VERSION_HEADER, WITH_SESSIONS[0]) not in WITH_SESSIONS


def _mcp_headers(request: ToolRequest) -> dict[str, str]:
    """Return the headers that repeat the body, in the versions that have them."""
    if request.method is None or not is_stateless(request):
        return {}
    name = _task(request) if request.method in TASK_METHODS else name_of(request.method, request.tool, request.uri)
    return {METHOD_HEADER: request.method} | ({NAME_HEADER: encoded_name(name)} if name is not None else {})
