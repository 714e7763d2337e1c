"""A client that asks an Envoy as any caller, with certificates made on the fly; keys never leave this process."""

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
from tierwall.tool.request import ToolRequest

_LIFETIME = datetime.timedelta(hours=12)
# Clocks differ a little.
_EARLIER = datetime.timedelta(minutes=5)
_HOST = "tierwall.test"


class CertificateAuthority:
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


class Client:
    """Sends requests as any caller, over connections that are kept; `ports` are those of `plain` HTTP and of `tls`."""

    def __init__(self, authority: CertificateAuthority, ports: Mapping[str, int]) -> None:
        self._authority = authority
        self._ports = ports
        self._open: dict[str | None, http.client.HTTPConnection] = {}

    def send(self, request: ToolRequest, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        """The answer to a request with some headers more: status code, headers and body."""
        body = json.dumps(_message(request)).encode() if request.method is not None else b""
        headers = {**headers, "host": request.host or _HOST}
        if body:
            headers |= {"content-type": "application/json", "accept": "application/json, text/event-stream"}
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
        """Close the connections."""
        for connection in self._open.values():
            connection.close()

    def _connect(self, caller: str | None) -> http.client.HTTPConnection:
        if caller is None:
            return http.client.HTTPConnection("127.0.0.1", self._ports["plain"], timeout=10)
        context = self._authority.context(caller)
        return http.client.HTTPSConnection("127.0.0.1", self._ports["tls"], timeout=10, context=context)


def _message(request: ToolRequest) -> dict[str, Any]:
    """The JSON-RPC message of a request."""
    params: dict[str, Any] = {}
    if request.tool is not None:
        params["name"] = request.tool
    if request.uri is not None:
        params["uri"] = request.uri
    if request.arguments is not None:
        params["arguments"] = request.arguments
    return {"jsonrpc": "2.0", "id": 1, "method": request.method, "params": params}
