"""Tokens with which pods show who they are: ServiceAccount tokens of Kubernetes that are bound to a pod.

The API server publishes the keys that sign them, and every ServiceAccount may read those (ClusterRole
`system:service-account-issuer-discovery`), so no further rights are needed. A token that is valid may be that of a pod
which is gone: whoever asks must look for the pod (`envoy_certificates`).
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from tierwall.cluster.connection import Connection
from tierwall.errors import TierwallError

AUDIENCE = "tierwall"
MAX_TOKEN = 16 * 1024
# Keys are read again after so long, and for a token with an unknown key, but not more often than that, in seconds.
KEYS_S, UNKNOWN_KEY_S = 300.0, 10.0
# Clocks may differ by this much, in seconds.
SKEW_S = 30.0

_CURVES: Mapping[str, tuple[ec.EllipticCurve, hashes.HashAlgorithm, str]] = {
    "P-256": (ec.SECP256R1(), hashes.SHA256(), "ES256"),
    "P-384": (ec.SECP384R1(), hashes.SHA384(), "ES384"),
    "P-521": (ec.SECP521R1(), hashes.SHA512(), "ES512"),
}
_RSA_HASHES: Mapping[str, hashes.HashAlgorithm] = {
    "RS256": hashes.SHA256(),
    "RS384": hashes.SHA384(),
    "RS512": hashes.SHA512(),
}


class TokenError(TierwallError):
    """A token that shows nothing."""


class PodIdentity(NamedTuple):
    """The pod of a token, and its ServiceAccount."""

    namespace: str
    pod: str
    uid: str
    service_account: str


class PodTokens:
    """Verifies tokens. Everything happens in the event loop of the connection."""

    def __init__(self, connection: Connection, audience: str = AUDIENCE) -> None:
        self._connection, self._audience = connection, audience
        self._issuer = ""
        self._keys: dict[str, Any] = {}
        self._read = float("-inf")

    async def verify(self, token: str) -> PodIdentity:
        """Return the pod of a token; TokenError if it shows nothing, ClusterError if the keys cannot be read."""
        if len(token) > MAX_TOKEN:
            raise TokenError(f"a token of more than {MAX_TOKEN} characters")
        signed, _, signature = token.rpartition(".")
        header, _, claims = signed.partition(".")
        head, body = _document(header), _document(claims)
        key = await self._key(str(head.get("kid", "")))
        _check_signature(key, str(head.get("alg", "")), signed.encode(), _decoded(signature))
        return self._identity(body, time.time())

    async def _key(self, name: str) -> Any:
        age = time.monotonic() - self._read
        if age >= KEYS_S or (name not in self._keys and age >= UNKNOWN_KEY_S):
            configuration = await self._document("/.well-known/openid-configuration")
            keys = await self._document("/openid/v1/jwks")
            self._issuer = str(configuration["issuer"])
            self._keys = {str(entry.get("kid", "")): _public_key(entry) for entry in keys["keys"]}
            self._read = time.monotonic()
        if self._keys.get(name) is None:
            raise TokenError("the API server has no such key")
        return self._keys[name]

    async def _document(self, path: str) -> Any:
        return json.loads((await self._connection.get(path, accept="*/*")).content)

    def _identity(self, claims: Mapping[str, Any], now: float) -> PodIdentity:
        audiences = claims.get("aud")
        audiences = [audiences] if isinstance(audiences, str) else audiences
        if not isinstance(audiences, list) or self._audience not in audiences:
            raise TokenError(f"the token is not for `{self._audience}`")
        if claims.get("iss") != self._issuer:
            raise TokenError("the token is of another issuer")
        begin, end = claims.get("nbf", 0), claims.get("exp")
        if not isinstance(begin, int | float) or not isinstance(end, int | float):
            raise TokenError("the token has no times")
        if not begin - SKEW_S <= now < end + SKEW_S:
            raise TokenError("the token has expired, or is not valid yet")
        bound = claims.get("kubernetes.io")
        try:
            pod, account = bound["pod"], bound["serviceaccount"]  # type: ignore[index]
            parts = bound["namespace"], pod["name"], pod["uid"], account["name"]  # type: ignore[index]
        except (KeyError, TypeError):
            raise TokenError("the token is not bound to a pod") from None
        if not all(isinstance(part, str) and part for part in parts):
            raise TokenError("the token is not bound to a pod")
        return PodIdentity(*parts)


def _check_signature(key: Any, algorithm: str, signed: bytes, signature: bytes) -> None:
    """Raise TokenError unless a key has signed this, with an algorithm of its kind."""
    try:
        if isinstance(key, rsa.RSAPublicKey) and algorithm in _RSA_HASHES:
            key.verify(signature, signed, padding.PKCS1v15(), _RSA_HASHES[algorithm])
            return
        if isinstance(key, ec.EllipticCurvePublicKey):
            curve, digest, expected = next(entry for entry in _CURVES.values() if entry[0].name == key.curve.name)
            size = (curve.key_size + 7) // 8
            if algorithm == expected and len(signature) == 2 * size:
                first, second = (int.from_bytes(part) for part in (signature[:size], signature[size:]))
                key.verify(encode_dss_signature(first, second), signed, ec.ECDSA(digest))
                return
    except InvalidSignature:
        raise TokenError("the signature is wrong") from None
    raise TokenError("the token is not signed as its key signs")


def _public_key(entry: Mapping[str, Any]) -> Any:
    """Return a key of a key set; None for one of another kind."""
    try:
        if entry.get("kty") == "RSA":
            return rsa.RSAPublicNumbers(_number(entry["e"]), _number(entry["n"])).public_key()
        if entry.get("kty") == "EC" and entry.get("crv") in _CURVES:
            curve = _CURVES[entry["crv"]][0]
            return ec.EllipticCurvePublicNumbers(_number(entry["x"]), _number(entry["y"]), curve).public_key()
    except (KeyError, ValueError, TokenError):
        return None
    return None


def _number(text: str) -> int:
    return int.from_bytes(_decoded(text))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, TypeError):
        raise TokenError("not a token") from None


def _document(part: str) -> dict[str, Any]:
    try:
        value = json.loads(_decoded(part))
    except (ValueError, RecursionError):
        raise TokenError("not a token") from None
    if not isinstance(value, dict):
        raise TokenError("not a token")
    return value
