"""Failures of an API server: it does not answer, cannot be trusted, or refuses (docs/clusters.md#when-it-fails).

Every failure is one sentence with the address of the server, and a hint where one helps. Sentences never hold what was
sent: it has the credential in it.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic
from tierwall.errors import TierwallError

# The most characters of a server's own words.
_MAX_WORDS = 500

# The codes of OpenSSL for certificates that do not lead to a trusted authority, or are for another name.
_UNKNOWN_AUTHORITY = {2, 7, 18, 19, 20, 21, 24, 27, 79}
_OTHER_NAME = {62, 64}
_NOT_YET_VALID, _EXPIRED = 9, 10
# What OpenSSL says of a server that answers in plain text.
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL")
_CHECK_SERVER = "check `server` of the cluster in the kubeconfig"


class ApiStatus(Struct, frozen=True):
    """The `Status` object of a failed request, or an event of a watch."""

    reason: str | None = ""
    message: str | None = ""
    code: int | None = 0


class ClusterError(TierwallError):
    """Something cannot be read from an API server."""

    hint = ""

    def diagnostic(self) -> Diagnostic:
        """Return the error for users."""
        return Diagnostic("TW042", str(self), hint=self.hint)


class ApiServerError(ClusterError):
    """The API server has answered with a failure."""

    def __init__(self, code: int, reason: str, message: str, server: str = "") -> None:
        self.code, self.reason, self.message = code, reason, message
        name = f"the API server at {server}" if server else "the API server"
        if code == 401:
            super().__init__(f"{name} does not accept the credential: {message or 'Unauthorized'}")
            self.hint = "log in again, or check the user of the context in the kubeconfig"
        elif code == 403:
            super().__init__(f"{name} refuses: {message or 'Forbidden'}")
        else:
            super().__init__(f"{name} answers with {code} {reason or 'failure'}: {message}")
        if code == 400 and "HTTPS server" in message:
            self.hint = "write `https://` in `server` of the cluster in the kubeconfig"

    @classmethod
    def of(cls, code: int, phrase: str, content_type: str, body: bytes, server: str) -> ApiServerError:
        """Return the error of an answer. Its body is a Status, or text, or the page of a proxy."""
        try:
            status = msgspec.json.decode(body, type=ApiStatus)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            is_page = "html" in content_type or body.lstrip()[:1] == b"<"
            status = ApiStatus(message="" if is_page else body[: 4 * _MAX_WORDS].decode("utf-8", "replace"))
        message = " ".join((status.message or "").split())[:_MAX_WORDS]
        return cls(code, (status.reason or "")[:100], message or phrase[:100], server)


class UnreachableError(ClusterError):
    """The API server has not answered, or not as an API server."""

    def __init__(self, server: str, problem: str, hint: str = "", verb: str = "does not answer") -> None:
        super().__init__(f"the API server at {server} {verb}: {problem}")
        self.server, self.verb, self.problem, self.hint = server, verb, problem, hint


def is_refusal(error: Exception) -> bool:
    """Whether the server says that this user may not: it is there, and will hardly change its mind."""
    return isinstance(error, ApiServerError) and error.code in (401, 403)


def failure_reason(error: Exception) -> str:
    """Return the reason of a failure in one line, without the address."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    problem = getattr(error, "problem", None) or getattr(error, "message", None) or str(error) or type(error).__name__
    return " ".join(str(problem)[:300].split())


def shared_reason(error: Exception) -> str:
    """Return the reason of a failure in the same words for every kind: a server's refusal names the kind."""
    is_forbidden = isinstance(error, ApiServerError) and error.code == 403
    return "this user may not list and watch them" if is_forbidden else failure_reason(error)


def address_of(url: str) -> str:
    """Return an address without path, user and password, to be shown."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def no_answer_within(server: str, timeout: float | None) -> UnreachableError:
    """Return the error of a server that took too long."""
    limit = f"no answer within {timeout:g} s" if timeout else "no answer"
    return UnreachableError(server, limit, "check the network, or raise --request-timeout")


def not_kubernetes(server: str, problem: str) -> UnreachableError:
    """Return the error of an answer that no API server would give."""
    return UnreachableError(server, problem, _CHECK_SERVER, verb="does not answer as Kubernetes does")


def redirected(server: str, location: str) -> UnreachableError:
    """Return the error of a server that sends its callers elsewhere: credentials do not follow."""
    target = " ".join(location.split())[:200]
    return UnreachableError(
        server, f"to `{target}`, which is not followed" if target else "to nowhere", _CHECK_SERVER, "redirects"
    )


def explain(error: httpx.HTTPError, server: str, host: str, proxy: str, timeout: float | None) -> UnreachableError:
    """Return what a failure of the transport means. `host` is the name that is checked, `proxy` the address or ""."""
    if isinstance(error, httpx.TimeoutException):
        return no_answer_within(server, timeout)
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return _tls_failure(cause, server, host)
    if proxy:
        return UnreachableError(
            server,
            f"the proxy {proxy} {_proxy_problem(error, causes)}",
            "check `proxy-url` in the kubeconfig, or HTTPS_PROXY and NO_PROXY",
            verb="cannot be reached",
        )
    problem = _socket_problem(causes)
    if problem:
        hint = "check `server` of the cluster in the kubeconfig, and the network" if "name" in problem else ""
        return UnreachableError(server, problem, hint)
    if isinstance(error, httpx.RemoteProtocolError):
        return _protocol_failure(error, server)
    return UnreachableError(server, "the connection broke")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that led to it."""
    seen: set[int] = set()
    left: list[BaseException] = [error]
    while left:
        current = left.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        left += [cause for cause in (current.__context__, current.__cause__) if cause is not None]
        if isinstance(current, BaseExceptionGroup):
            left += current.exceptions


def _tls_failure(error: ssl.SSLError, server: str, host: str) -> UnreachableError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrust(error, server, host)
    reason = (error.reason or "").upper()
    if reason in _NO_TLS:
        return UnreachableError(server, "it does not speak TLS", _CHECK_SERVER)
    if "ALERT_CERTIFICATE_REQUIRED" in reason:
        return UnreachableError(
            server,
            "it wants a client certificate",
            "add `client-certificate` to the user in the kubeconfig",
            verb="refuses the connection",
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        said = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        return UnreachableError(
            server, said, "check the user of the context in the kubeconfig", verb="refuses the client certificate"
        )
    words = reason.replace("_", " ").lower() or "the connection broke"
    return UnreachableError(server, f"TLS failed: {words}")


def _distrust(error: ssl.SSLCertVerificationError, server: str, host: str) -> UnreachableError:
    code = error.verify_code
    hint = ""
    if code == _EXPIRED:
        problem, hint = "its certificate has expired", "renew it, or check the clock of this machine"
    elif code == _NOT_YET_VALID:
        problem, hint = "its certificate is not valid yet", "check the clock of this machine"
    elif code in _OTHER_NAME:
        problem = f"its certificate is not for `{host}`"
        hint = "set `tls-server-name` of the cluster in the kubeconfig to a name in the certificate"
    elif code in _UNKNOWN_AUTHORITY:
        problem = "its certificate comes from an unknown authority"
        hint = "check `certificate-authority` of the cluster in the kubeconfig"
    else:
        problem = error.verify_message
    return UnreachableError(server, problem, hint, verb="cannot be trusted")


def _socket_problem(causes: list[BaseException]) -> str:
    """Return what the system says, in plain words; an empty string if it says nothing."""
    for cause in causes:
        if isinstance(cause, socket.gaierror):
            return "its name cannot be resolved"
    for cause in causes:
        if isinstance(cause, ConnectionRefusedError):
            return "the connection is refused"
        if isinstance(cause, ConnectionResetError | BrokenPipeError):
            return "the connection was reset"
        if isinstance(cause, OSError) and cause.errno and cause.errno in errno.errorcode:
            return os.strerror(cause.errno).lower()
    return ""


def _proxy_problem(error: httpx.HTTPError, causes: list[BaseException]) -> str:
    if isinstance(error, httpx.ProxyError):
        words = " ".join(str(error).split())[:100]
        return f"answers `{words}`" if words[:3].isdecimal() else "does not let the connection through"
    problem = _socket_problem(causes)
    return f"does not answer: {problem.replace('its name', 'its own name')}" if problem else "broke the connection"


def _protocol_failure(error: httpx.RemoteProtocolError, server: str) -> UnreachableError:
    text = str(error)
    if "without sending a response" in text:
        return UnreachableError(server, "it closed the connection without an answer")
    if "incomplete" in text or "closed connection" in text:
        return UnreachableError(server, "its answer was cut short")
    return UnreachableError(server, "it does not speak HTTP/1.1", _CHECK_SERVER)
