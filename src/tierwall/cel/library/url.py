"""URLs as Go's net/url reads them (apiserver pkg/cel/library/urls.go; RFC 3986 with Go's exceptions).

Strings are handled as UTF-8 bytes, each standing for the character of the same code, as in Go.
"""

from __future__ import annotations

import ipaddress
import re
from typing import ClassVar

import msgspec

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import cost
from tierwall.cel.library.table import Overload, is_parsed_by, member_overloads
from tierwall.cel.types import BOOL, STRING, Type, list_of, map_of
from tierwall.cel.values import OpaqueValue
from tierwall.values.pattern import pattern

_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
_RESERVED = frozenset("$&+,/:;=?@")
_PATH = _UNRESERVED | (_RESERVED - {"?"})
_HOST = _UNRESERVED | frozenset("!$&'()*+,;=:[]<>\"")
_USER = _UNRESERVED | (_RESERVED - frozenset("@/?:"))
_FRAGMENT = _UNRESERVED | _RESERVED | frozenset("!()*")
_ENCODED = frozenset("!$&'()*+,;=:@[]%")
_USERINFO = _UNRESERVED | frozenset(":!$&'()*+,;=%@")
_ESCAPE = pattern(r"%([0-9A-Fa-f]{2})?")
_SCHEME = pattern(r"([A-Za-z][A-Za-z0-9+.-]*):")
_PORT = pattern(r"(:[0-9]*)?")
_CONTROL = pattern(r"[\x00-\x1f\x7f]")
_MAX_PARAMETERS = 10_000


class URL(OpaqueValue, msgspec.Struct, frozen=True, gc=False):
    """A URL, in the parts that Go's net/url gives."""

    cel_type: ClassVar[str] = "kubernetes.URL"
    reader: ClassVar[str] = "url"
    text: str
    scheme: str
    host: str
    escaped_path: str
    query: str

    def same(self, other: URL) -> bool:
        """Compare by text."""
        return self.text == other.text

    def notation(self) -> str:
        """Return the URL as Go writes it back."""
        return self.text


URL_TYPE = Type(URL.cel_type)


class _InvalidURL(Exception):
    """The string is not a URL; the message says why."""


def _escape(text: str, kept: frozenset[str]) -> str:
    return "".join(char if char in kept else f"%{ord(char):02X}" for char in text)


def _unescape(text: str) -> str:
    def byte(match: re.Match[str]) -> str:
        if match[1] is None:
            raise _InvalidURL(f"invalid URL escape `{text[match.start() : match.start() + 3]}`")
        return chr(int(match[1], 16))

    return _ESCAPE.sub(byte, text)


def _unescape_host(text: str, zone: bool = False) -> str:
    for match in _ESCAPE.finditer(text):
        code = match[1]
        if code is None or code == "25":
            continue
        char = chr(int(code, 16))
        if (zone and char != " " and char not in _HOST) or (not zone and char < "\x80"):
            raise _InvalidURL(f"invalid URL escape `%{code}`")
    for char in _ESCAPE.sub("", text):
        if char < "\x80" and char not in _HOST:
            raise _InvalidURL(f"invalid character `{char}` in host name")
    return _unescape(text)


def _host(scheme: str, text: str) -> str:
    opening = text.rfind("[")
    if opening > 0:
        raise _InvalidURL("invalid IP-literal")
    if opening == 0:
        closing = text.rfind("]")
        if closing < 0:
            raise _InvalidURL("missing `]` in host")
        port = text[closing + 1 :]
        if not _PORT.fullmatch(port):
            raise _InvalidURL(f"invalid port `{port}` after host")
        name = text[1:closing]
        zone = name.find("%25")
        if zone >= 0:
            name = _unescape_host(name[:zone]) + _unescape_host(name[zone:], zone=True)
        else:
            name = _unescape_host(name)
        try:
            ipaddress.IPv6Address(name)
        except ValueError:
            raise _InvalidURL("invalid host") from None
        return f"[{name}]{port}"
    colon = text.find(":")
    if colon >= 0:
        if scheme not in ("http", "https"):
            colon = text.rfind(":")
        if not _PORT.fullmatch(text[colon:]):
            raise _InvalidURL(f"invalid port `{text[colon:]}` after host")
    return _unescape_host(text)


def _authority(scheme: str, text: str) -> tuple[str, str]:
    """Return the user information as it is written back, with its `@`, and the host."""
    at = text.rfind("@")
    host = _host(scheme, text[at + 1 :])
    if at < 0:
        return "", host
    user = text[:at]
    if not all(char in _USERINFO for char in user):
        raise _InvalidURL("invalid userinfo")
    name, colon, password = user.partition(":")
    return f"{_escape(_unescape(name), _USER)}{colon}{_escape(_unescape(password), _USER)}@", host


def _parse(raw: str, via_request: bool) -> URL:
    if _CONTROL.search(raw):
        raise _InvalidURL("invalid control character in URL")
    fragment = ""
    if not via_request:
        raw, _, fragment = raw.partition("#")
    if raw == "" and via_request:
        raise _InvalidURL("empty url")
    if raw == "*":
        return URL("*", "", "", "*", "")
    if raw.startswith(":"):
        raise _InvalidURL("missing protocol scheme")
    match = _SCHEME.match(raw)
    scheme, rest = (match[1].lower(), raw[match.end() :]) if match else ("", raw)
    rest, question, query = rest.partition("?")
    opaque = user = host = ""
    omit_host = False
    if not rest.startswith("/"):
        if scheme:
            opaque, rest = rest, ""
        elif via_request:
            raise _InvalidURL("invalid URI for request")
        elif ":" in rest.partition("/")[0]:
            raise _InvalidURL("first path segment in URL cannot contain colon")
    if opaque or (scheme and not rest.startswith("/")):
        escaped = ""
    else:
        if rest.startswith("//") and (scheme or (not via_request and not rest.startswith("///"))):
            authority, slash, path = rest[2:].partition("/")
            rest = slash + path
            user, host = _authority(scheme, authority)
        elif scheme and rest.startswith("/"):
            omit_host = True
        escaped = _escaped(rest, _PATH)
    text = f"{scheme}:" if scheme else ""
    if opaque:
        text += opaque
    else:
        if (scheme or host or user) and not (omit_host and not host and not user) and (host or escaped or user):
            text += "//" + user + _escape(host, _HOST)
        if not text and ":" in escaped.partition("/")[0]:
            text += "./"
        text += escaped
    text += question + query if query or question else ""
    if fragment:
        text += "#" + _escaped(fragment, _FRAGMENT)
    return URL(text, scheme, host, escaped, query)


def _escaped(text: str, kept: frozenset[str]) -> str:
    """Return the string as written if it is a valid encoding, else encoded again."""
    plain = _unescape(text)
    return text if all(char in _ENCODED or char in kept for char in text) else _escape(plain, kept)


def _bytes(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def _text(raw: str) -> str:
    return raw.encode("latin-1").decode("utf-8", "replace")


def parse(text: str) -> URL:
    """`url(text)`: an absolute URI or an absolute path."""
    raw = _bytes(text)
    try:
        _parse(raw, via_request=True)
        return _parse(raw, via_request=False)
    except _InvalidURL as error:
        raise EvaluationError(f"URL parse error during conversion from string: {_text(str(error))}") from None


def request_uri_problem(text: str) -> str | None:
    """Return the reason why the string is not a request URI; None if it is one."""
    try:
        _parse(_bytes(text), via_request=True)
    except _InvalidURL as error:
        return _text(str(error))
    return None


def _split_port(host: str) -> tuple[str, str]:
    colon = host.rfind(":")
    port = ""
    if colon >= 0 and _PORT.fullmatch(host[colon:]):
        host, port = host[:colon], host[colon + 1 :]
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, port


def query(url: URL) -> dict[str, list[str]]:
    """Return the parameters of the query; those that cannot be decoded are left out."""
    result: dict[str, list[str]] = {}
    if url.query.count("&") >= _MAX_PARAMETERS:
        return result
    for pair in url.query.split("&"):
        if not pair or ";" in pair:
            continue
        key, _, value = pair.partition("=")
        try:
            name, item = _unescape(key.replace("+", " ")), _unescape(value.replace("+", " "))
        except _InvalidURL:
            continue
        result.setdefault(_text(name), []).append(_text(item))
    return result


def _get_cost(url: URL) -> int:
    return 1 + len(url.text) // 1000


_member = member_overloads(URL_TYPE)

OVERLOADS: tuple[Overload, ...] = (
    Overload("url", (STRING,), URL_TYPE, parse, cost=cost.scan),
    # Kubernetes charges 1 whatever the length.
    Overload("isURL", (STRING,), BOOL, is_parsed_by(parse), cost=lambda text: max(cost.scan(text), 1)),
    _member("getScheme", (), STRING, lambda url: url.scheme, cost=_get_cost),
    _member("getHost", (), STRING, lambda url: _text(url.host), cost=_get_cost),
    _member("getHostname", (), STRING, lambda url: _text(_split_port(url.host)[0]), cost=_get_cost),
    _member("getPort", (), STRING, lambda url: _split_port(url.host)[1], cost=_get_cost),
    _member("getEscapedPath", (), STRING, lambda url: _text(url.escaped_path), cost=_get_cost),
    _member("getQuery", (), map_of(STRING, list_of(STRING)), query, cost=_get_cost),
)
