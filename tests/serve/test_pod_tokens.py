"""Tokens of pods: only one that the API server signed, for us, bound to a pod, and still valid shows who a pod is."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tierwall.cluster.reply import ServerReply
from tierwall.serve.controller.pod_tokens import SKEW_S, PodIdentity, PodTokens, TokenError

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = rsa.generate_private_key(65537, 2048)
ISSUER = "https://kubernetes.default.svc"


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8))


class Server:
    """The documents of an API server about its tokens."""

    def __init__(self) -> None:
        self.requests = 0

    async def get(self, path: str, query: Any = None, accept: str = "") -> ServerReply:
        self.requests += 1
        if path == "/.well-known/openid-configuration":
            return ServerReply("server", json.dumps({"issuer": ISSUER}).encode())
        modulus, point = RSA_KEY.public_key().public_numbers(), EC_KEY.public_key().public_numbers()
        keys = [
            {"kty": "RSA", "kid": "rsa", "e": number(modulus.e), "n": number(modulus.n)},
            {"kty": "EC", "kid": "ec", "crv": "P-256", "x": number(point.x), "y": number(point.y)},
            {"kty": "OKP", "kid": "odd"},
        ]
        return ServerReply("server", json.dumps({"keys": keys}).encode())


def claims(**changes: Any) -> dict[str, Any]:
    bound = {
        "namespace": "shop",
        "pod": {"name": "agents-1", "uid": "u1"},
        "serviceaccount": {"name": "default", "uid": "u2"},
    }
    now = int(time.time())
    usual = {"iss": ISSUER, "aud": ["tierwall"], "nbf": now - 10, "exp": now + 600, "kubernetes.io": bound}
    return {key: value for key, value in (usual | changes).items() if value is not None}


def sign_rsa(signed: bytes, key: rsa.RSAPrivateKey = RSA_KEY) -> bytes:
    return key.sign(signed, padding.PKCS1v15(), hashes.SHA256())


def sign_ec(signed: bytes) -> bytes:
    first, second = decode_dss_signature(EC_KEY.sign(signed, ec.ECDSA(hashes.SHA256())))
    return first.to_bytes(32) + second.to_bytes(32)


def token(body: Any, head: Any = None, sign: Callable[[bytes], bytes] = sign_rsa) -> str:
    parts = (json.dumps(part).encode() for part in (head or {"alg": "RS256", "kid": "rsa"}, body))
    signed = ".".join(map(encoded, parts))
    return f"{signed}.{encoded(sign(signed.encode()))}"


def verify(text: str, server: Server | None = None) -> PodIdentity:
    return asyncio.run(PodTokens(server or Server()).verify(text))  # type: ignore[arg-type]


IDENTITY = PodIdentity("shop", "agents-1", "u1", "default")


def test_a_token_of_a_pod_shows_the_pod() -> None:
    assert verify(token(claims())) == IDENTITY
    assert verify(token(claims(aud="tierwall"))) == IDENTITY
    assert verify(token(claims(), {"alg": "ES256", "kid": "ec"}, sign_ec)) == IDENTITY


def public_pem() -> bytes:
    return RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


GOOD = token(claims())
SIGNED, _, SIGNATURE = GOOD.rpartition(".")
ACCOUNT = {"serviceaccount": {"name": "a"}}
FORGED: dict[str, str] = {
    "of another key": token(claims(), sign=lambda signed: sign_rsa(signed, OTHER_KEY)),
    "of an unknown key": token(claims(), {"alg": "RS256", "kid": "mine"}),
    "without a key": token(claims(), {"alg": "RS256"}),
    "of a key of an unknown kind": token(claims(), {"alg": "RS256", "kid": "odd"}),
    "without a signature": f"{SIGNED}.",
    "that says it needs no signature": token(claims(), {"alg": "none", "kid": "rsa"}, lambda signed: b""),
    "signed with the public key as a secret": token(
        claims(),
        {"alg": "HS256", "kid": "rsa"},
        lambda signed: hmac.new(public_pem(), signed, hashlib.sha256).digest(),
    ),
    "with the algorithm of another kind of key": token(claims(), {"alg": "ES256", "kid": "rsa"}),
    "with a signature of the wrong size": token(claims(), {"alg": "ES256", "kid": "ec"}, lambda signed: b"x" * 63),
    "whose claims were exchanged": f"{SIGNED.split('.')[0]}.{encoded(json.dumps(claims(exp=1 << 40)).encode())}."
    + SIGNATURE,
    "for the API server": token(claims(aud=[ISSUER])),
    "for nobody": token(claims(aud=None)),
    "for a map": token(claims(aud={"tierwall": 1})),
    "of another issuer": token(claims(iss="https://elsewhere")),
    "that has expired": token(claims(exp=int(time.time() - SKEW_S - 1))),
    "of tomorrow": token(claims(nbf=int(time.time()) + 86400)),
    "without an end": token(claims(exp=None)),
    "whose end is a word": token(claims(exp="never")),
    "of a ServiceAccount": token(claims(**{"kubernetes.io": {"namespace": "shop", "serviceaccount": {"name": "a"}}})),
    "without a binding": token(claims(**{"kubernetes.io": None})),
    "with a binding of another form": token(claims(**{"kubernetes.io": [1]})),
    "with a pod that has no uid": token(
        claims(
            **{"kubernetes.io": {"namespace": "n", "pod": {"name": "p", "uid": ""}, "serviceaccount": {"name": "a"}}}
        )
    ),
    "that is a list": token([]),
    "that is empty": "",
    "that is a word": "token",
    "that is not Base64": "ä.b.c",
    "that is deep": f"{encoded(b'[' * 10_000)}.x.y",
    "that is long": "x" * 100_000,
}


@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED.keys())
def test_every_other_token_shows_nothing(text: str) -> None:
    with pytest.raises(TokenError):
        verify(text)


def test_unknown_keys_do_not_make_it_ask_the_api_server_again_and_again() -> None:
    server = Server()
    tokens = PodTokens(server)  # type: ignore[arg-type]

    async def attack() -> None:
        for index in range(20):
            with pytest.raises(TokenError):
                await tokens.verify(token(claims(), {"alg": "RS256", "kid": f"key-{index}"}))

    asyncio.run(attack())
    assert server.requests == 2
