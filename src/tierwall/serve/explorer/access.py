"""The rules about who may look (docs/explorer.md#safety): a token, the names of this server, no requests for others.

A page of another origin must neither read nor cause anything, even if it runs in the browser of somebody who may look:
`Host` is checked against DNS rebinding, `Sec-Fetch-Site` and `Origin` against requests from elsewhere.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping

from msgspec import Struct

from tierwall.explore.change import MAX_BYTES

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Of these, no browser sends two, and which of two counts would be a guess.
SINGLE_HEADERS = ("host", "origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest", "content-type")
# The only address that takes a body.
CHANGE = "/change"


class Refusal(Struct, frozen=True):
    """The reason why a request is not answered, and its status."""

    status: int
    words: str


class Access(Struct, frozen=True):
    """The rules of one server. `hosts` are the values of `Host` that mean it."""

    token: str
    port: int
    hosts: frozenset[str]
    is_tls: bool = False

    @classmethod
    def of(cls, host: str, port: int, names: Iterable[str] = (), is_tls: bool = False) -> Access:
        """Make the rules of a server with a new token; `names` are those of `--host`."""
        address = f"[{host}]" if ":" in host else host
        hosts = {f"{address}:{port}", f"localhost:{port}"}
        for name in names:
            hosts |= {name.lower(), f"{name.lower()}:{port}"}
        # Browsers leave the port out if it is that of the scheme.
        if port == (443 if is_tls else 80):
            hosts |= {address, "localhost"}
        return cls(secrets.token_urlsafe(24), port, frozenset(hosts), is_tls)

    @property
    def cookie(self) -> str:
        """The name of the cookie: two explorers on one machine do not disturb each other."""
        return f"tierwall-{self.port}"

    @property
    def set_cookie(self) -> str:
        """The header that makes the token a cookie."""
        return f"{self.cookie}={self.token}; HttpOnly; SameSite=Lax; Path=/" + ("; Secure" if self.is_tls else "")

    def is_token(self, text: str) -> bool:
        """Whether a text is the token, in constant time."""
        return hmac.compare_digest(text.encode(errors="replace"), self.token.encode())

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is refused, whoever sends it; None if only the token is left to check."""
        if headers.get("host", "").lower() not in self.hosts:
            return Refusal(403, "this server does not go by that name: see --host")
        site = headers.get("sec-fetch-site")
        is_navigation = (
            method == "GET"
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        if site not in (None, "same-origin", "none") and not is_navigation:
            return Refusal(403, "requests from other sites are not answered")
        if "content-length" in headers and "transfer-encoding" in headers:
            return Refusal(400, "a body has one length")
        if method == "POST" and path == CHANGE:
            return self._refused_change(headers)
        if method not in ("GET", "HEAD"):
            return Refusal(405, "this address only answers GET")
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return Refusal(400, "only POST /change takes a body")
        return None

    def _refused_change(self, headers: Mapping[str, str]) -> Refusal | None:
        scheme = "https" if self.is_tls else "http"
        origin = headers.get("origin")
        # A form of a page without a referrer has no origin to name, but the browser knows where it comes from.
        if origin == "null" and headers.get("sec-fetch-site") == "same-origin":
            origin = None
        if origin is not None and origin.lower() != f"{scheme}://{headers['host'].lower()}":
            return Refusal(403, "changes are not taken from other sites")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > MAX_BYTES:
            return Refusal(413, f"a change has at most {MAX_BYTES >> 20} MB")
        return None

    def has_token(self, cookies: str) -> bool:
        """Whether the cookies of a request have the token.

        Other servers of this machine share their cookies with this one, whatever their ports are: what they wrote into
        theirs, or under this name, must keep nobody out.
        """
        pairs = (pair.partition("=") for pair in cookies.split(";"))
        return any(name.strip() == self.cookie and self.is_token(value.strip()) for name, _, value in pairs)
