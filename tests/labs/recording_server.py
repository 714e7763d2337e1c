"""An HTTPS server that records who asks: headers, the client's certificate, and the name of the server."""

from __future__ import annotations

import datetime
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A certificate authority, with the PEM of what it signs."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        certificate = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        self.pem = certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The key of the authority."""
        return _pem(self._key)

    def issue(self, name: str, *hosts: str, groups: tuple[str, ...] = ()) -> tuple[bytes, bytes]:
        """Return a certificate and its key, of a server, or of a client in some groups."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        subject += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        builder = self._builder(x509.Name(subject), key)
        if hosts:
            import ipaddress

            names: list[x509.GeneralName] = [
                x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
                for host in hosts
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class RecordedRequest:
    """One request: its path, its headers, and the common name of the client's certificate."""

    def __init__(self, path: str, headers: list[tuple[str, str]], client: str, server_name: str) -> None:
        self.path, self.headers, self.client, self.server_name = path, headers, client, server_name

    def identity(self) -> tuple[Any, ...]:
        """Return everything that says who asks."""
        said = sorted(
            (name.lower(), value)
            for name, value in self.headers
            if name.lower() == "authorization" or name.lower().startswith("impersonate-")
        )
        return tuple(said), self.client, self.server_name


class RecordingServer:
    """Answers every request with `answer(request)`: a status and a body."""

    def __init__(self, folder: Path, authority: Authority, *hosts: str) -> None:
        self.requests: list[RecordedRequest] = []
        self.answer: Any = lambda request: (200, b"{}")
        certificate, key = authority.issue("server", *(hosts or ("127.0.0.1",)))
        (folder / "server.pem").write_bytes(certificate + key)
        (folder / "authority.pem").write_bytes(authority.pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        context.load_verify_locations(folder / "authority.pem")
        context.verify_mode = ssl.CERT_OPTIONAL
        names: dict[int, str] = {}
        context.sni_callback = lambda sock, name, _: names.__setitem__(id(sock), name or "")
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                connection = self.connection
                assert isinstance(connection, ssl.SSLSocket)
                peer: Any = connection.getpeercert() or {}
                client = dict(pair[0] for pair in peer.get("subject", ())).get("commonName", "")
                request = RecordedRequest(self.path, self.headers.items(), client, names.get(id(connection), ""))
                recorder.requests.append(request)
                status, body = recorder.answer(request)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # A client that goes away is not worth a word.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> RecordingServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
