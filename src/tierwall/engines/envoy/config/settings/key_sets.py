"""JSON Web Keys that Envoy can check tokens with (RFC 7517, 7518 and 8037, as Envoy reads them).

Envoy passes over a key that it cannot use, and refuses a set without any other. So a set is looked at before Envoy gets
it: the policy that names it closes its targets, and `check` and `effective` say so, too.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.resources.resource import list_of_maps

# Of an integer as a key has it; padding is not needed.
_BASE64 = re.compile(r"[A-Za-z0-9_-]*={0,2}", re.ASCII)
_RSA_BITS = range(512, 16 * 1024 + 1)
_RSA_EXPONENTS = (3, 65_537)
_ED25519_BYTES = 32
# Protobuf, with which Envoy reads JSON, goes no deeper.
_DEEPEST = 90


class _Curve(NamedTuple):
    """A curve `y² = x³ - 3x + b` over the integers modulo `p`, and the algorithm of its signatures."""

    algorithm: str
    p: int
    b: int

    def has(self, x: int, y: int) -> bool:
        """Whether a point is on the curve."""
        in_field = 0 <= x < self.p and 0 <= y < self.p
        return in_field and (y * y - (x * x * x - 3 * x + self.b)) % self.p == 0


# NIST SP 800-186, section 3.2.1.
_CURVES: Mapping[str, _Curve] = {
    "P-256": _Curve(
        "ES256",
        2**256 - 2**224 + 2**192 + 2**96 - 1,
        0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B,
    ),
    "P-384": _Curve(
        "ES384",
        2**384 - 2**128 - 2**96 + 2**32 - 1,
        int(
            "b3312fa7e23ee7e4988e056be3f82d19181d9c6efe8141120314088f5013875ac656398d8a2ed19d2a85c8edd3ec2aef",
            16,
        ),
    ),
    "P-521": _Curve(
        "ES512",
        2**521 - 1,
        int(
            "0051953eb9618e1c9a1f929a21a0b68540eea2da725b99b315f3b8b489918ef1"
            "09e156193951ec7e937b1652c0bd3bb1bf073573df883d2c34f1ef451fd46b503f00",
            16,
        ),
    ),
}


def check_key_set(text: str, *path: str | int) -> None:
    """Raise Unenforceable if Envoy would refuse a text as a JSON Web Key Set."""
    try:
        keys = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_finite, parse_int=_finite, parse_float=_finite
        )
        # A half of a surrogate pair is not a text.
        json.dumps(keys, ensure_ascii=False).encode()
        is_shallow = _depth(keys) <= _DEEPEST
    except (ValueError, RecursionError):
        keys, is_shallow = None, False
    if not is_shallow or not isinstance(keys, dict) or not isinstance(keys.get("keys"), list) or not keys["keys"]:
        raise Unenforceable("it is not a JSON Web Key Set", *path)
    problems = [key_problem(key) for key in list_of_maps(keys["keys"])]
    if all(problems):
        why = problems[0] if problems else "none is a map"
        raise Unenforceable(f"Envoy checks no key in it: {why}", *path)


def key_problem(key: Mapping[str, Any]) -> str:
    """Return why Envoy does not check tokens with a key, or an empty string."""
    kind = key.get("kty")
    find = _PROBLEMS.get(kind) if isinstance(kind, str) else None
    if find is None:
        return f"it knows the types {', '.join(_PROBLEMS)}"
    algorithm = key.get("alg")
    return find(key, algorithm if isinstance(algorithm, str) else "")


def _ec(key: Mapping[str, Any], algorithm: str) -> str:
    name = key.get("crv", "")
    if name == "":
        by_algorithm = {curve.algorithm: name for name, curve in _CURVES.items()}
        name = by_algorithm.get(algorithm, "") if algorithm else "P-256"
    curve = _CURVES.get(name) if isinstance(name, str) else None
    if curve is None or algorithm not in ("", curve.algorithm):
        return f"`crv` must be one of {', '.join(_CURVES)}, and `alg` the one that belongs to it"
    x, y = _number(key.get("x")), _number(key.get("y"))
    return "" if x is not None and y is not None and curve.has(x, y) else "`x` and `y` do not give a point of the curve"


def _rsa(key: Mapping[str, Any], algorithm: str) -> str:
    if algorithm and not algorithm.startswith(("RS", "PS")):
        return "`alg` of an RSA key must begin with RS or PS"
    modulus, exponent = _number(key.get("n")), _number(key.get("e"))
    if exponent not in _RSA_EXPONENTS:
        return "`e` of an RSA key must be 3 or 65537"
    if modulus is None or modulus.bit_length() not in _RSA_BITS or modulus % 2 == 0:
        return f"`n` of an RSA key must be odd and have {_RSA_BITS[0]} to {_RSA_BITS[-1]} bits"
    return ""


def _okp(key: Mapping[str, Any], algorithm: str) -> str:
    if algorithm not in ("", "EdDSA") or key.get("crv") != "Ed25519":
        return "an OKP key must have the curve Ed25519"
    point = _bytes(key.get("x"))
    return "" if point is not None and len(point) == _ED25519_BYTES else "`x` of an OKP key must have 32 bytes"


def _oct(key: Mapping[str, Any], algorithm: str) -> str:
    if algorithm not in ("", "HS256", "HS384", "HS512"):
        return "`alg` of an oct key must be HS256, HS384 or HS512"
    return "" if _bytes(key.get("k")) else "`k` of an oct key must be base64url"


_PROBLEMS: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {"EC": _ec, "RSA": _rsa, "OKP": _okp, "oct": _oct}


def _number(value: object) -> int | None:
    data = _bytes(value)
    return None if data is None else int.from_bytes(data, "big")


def _bytes(value: object) -> bytes | None:
    """Return the bytes of a base64url text; None if it is not one."""
    if not isinstance(value, str) or not _BASE64.fullmatch(value):
        return None
    digits = value.rstrip("=")
    if len(digits) % 4 == 1 or (digits != value and len(value) % 4):
        return None
    return base64.urlsafe_b64decode(digits + "=" * (-len(digits) % 4))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError
    return out


def _finite(text: str) -> float:
    """Return a number as Envoy reads it."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return number


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0
