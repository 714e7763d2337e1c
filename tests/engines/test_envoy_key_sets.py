"""Key sets that Envoy refuses are found before it gets them: random ones, and what a real Envoy says of each kind."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.randomness import seeds
from tierwall.engines.envoy.config.settings.key_sets import check_key_set
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.engines.envoy.control.process import find_envoy

Object = dict[str, Any]
JWT = "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
MANAGER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"


def text(number: int) -> str:
    return encoded(number.to_bytes((number.bit_length() + 7) // 8 or 1, "big"))


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def ec_key(curve: ec.EllipticCurve, name: str, algorithm: str) -> Object:
    point = ec.generate_private_key(curve).public_key().public_numbers()
    return {"kty": "EC", "crv": name, "alg": algorithm, "x": text(point.x), "y": text(point.y)}


RSA = rsa.generate_private_key(65537, 2048).public_key().public_numbers()
ED25519 = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw()
GOOD: tuple[Object, ...] = (
    ec_key(ec.SECP256R1(), "P-256", "ES256"),
    ec_key(ec.SECP384R1(), "P-384", "ES384"),
    ec_key(ec.SECP521R1(), "P-521", "ES512"),
    {"kty": "RSA", "n": text(RSA.n), "e": text(RSA.e), "alg": "RS256"},
    {"kty": "OKP", "crv": "Ed25519", "x": encoded(ED25519), "alg": "EdDSA"},
    {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"},
)
NO_MODULUS = text((1 << 511) + 2), text((1 << 510) + 1), text((1 << 16_384) + 1)
NUMBERS = (None, 1, "", "A", "AA", "AA=", "AA==", "AQAB", "Aw", "a+/b", text((1 << 511) + 1), *NO_MODULUS)
WORDS = ("EC", "RSA", "oct", "OKP", "ES256", "ES384", "RSX", "HS512", "EdDSA", "P-256", "P-384", "P-521", "X25519")
NAMES = ("kty", "alg", "crv", "x", "y", "n", "e", "k")
# What JSON has and Envoy refuses, or the other way round.
ODD = ('"a": NaN', '"a": 1e999', '"a": "\\ud800"', '"a": 1' + "0" * 400, '"a": ' + "[" * 200 + "]" * 200, '"a": 01')


def random_set(dice: Random) -> str:
    keys: list[object] = []
    for _ in range(dice.choice((1, 1, 2))):
        key = dict(dice.choice(GOOD))
        for name in dice.sample(NAMES, dice.choice((0, 1, 1, 2))):
            key.pop(name, None)
            if dice.random() < 0.8:
                key[name] = dice.choice((*NUMBERS, *WORDS))
        keys.append(key)
    out = json.dumps({"keys": keys if dice.random() < 0.95 else dice.choice(([], [1], {}, None))})
    return f"{out[:-1]}, {dice.choice(ODD)}}}" if dice.random() < 0.15 else out


def is_taken(keys: str) -> bool:
    try:
        check_key_set(keys)
    except Unenforceable:
        return False
    return True


def envoy_takes(keys: list[str], folder: Path) -> bool:
    """Whether a real Envoy takes a configuration with all of these key sets."""
    providers = {
        str(number): {"issuer": "i", "local_jwks": {"inline_string": each}} for number, each in enumerate(keys)
    }
    requirements = [{"match": {"prefix": "/"}, "requires": {"provider_name": name}} for name in providers]
    filters = [
        {"name": "jwt", "typed_config": {"@type": JWT, "providers": providers, "rules": requirements}},
        {"name": "router", "typed_config": {"@type": ROUTER}},
    ]
    manager = {"@type": MANAGER, "stat_prefix": "s", "route_config": {}, "http_filters": filters}
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{"name": "manager", "typed_config": manager}]}],
    }
    file = folder / "bootstrap.json"
    file.write_text(json.dumps({"static_resources": {"listeners": [listener]}}))
    command = [*find_envoy().command(file), "--mode", "validate"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.engine
@pytest.mark.usefixtures("needs_envoy")
def test_envoy_takes_a_key_set_if_and_only_if_it_is_thought_to(tmp_path: Path) -> None:
    sets = [random_set(Random(seed)) for seed in seeds(200)]
    taken = [each for each in sets if is_taken(each)]
    assert len(sets) / 4 < len(taken) < len(sets) * 3 / 4
    assert envoy_takes(taken, tmp_path)
    refused = [each for each in sets if not is_taken(each)]
    assert [each for each in refused[:8] if envoy_takes([each], tmp_path)] == []


@pytest.mark.parametrize("key", GOOD, ids=[key["kty"] + key.get("crv", "") for key in GOOD])
def test_one_good_key_is_enough(key: Object) -> None:
    assert is_taken(json.dumps({"keys": [{"kty": "EC"}, 1, key]}))
    assert is_taken(json.dumps({"keys": [{name: value for name, value in key.items() if name != "alg"}]}))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ({"kty": "DSA"}, "it knows the types EC, RSA, OKP, oct"),
        ({**GOOD[0], "crv": "P-999"}, "`crv` must be one of P-256, P-384, P-521"),
        ({**GOOD[0], "alg": "ES384"}, "and `alg` the one that belongs to it"),
        ({**GOOD[0], "x": "AA"}, "`x` and `y` do not give a point of the curve"),
        ({**GOOD[3], "e": "AA"}, "`e` of an RSA key must be 3 or 65537"),
        ({**GOOD[3], "n": NO_MODULUS[0]}, "`n` of an RSA key must be odd"),
        ({**GOOD[4], "x": "AA"}, "`x` of an OKP key must have 32 bytes"),
        ({**GOOD[5], "k": "+"}, "`k` of an oct key must be base64url"),
    ],
)
def test_what_is_wrong_with_a_key_is_said(key: Object, words: str) -> None:
    with pytest.raises(Unenforceable, match=f"^Envoy checks no key in it: .*{words}"):
        check_key_set(json.dumps({"keys": [key]}))
