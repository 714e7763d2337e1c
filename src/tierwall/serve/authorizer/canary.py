"""The canary: an object that only our webhook refuses, so that its refusal proves that admission asks the webhook.

It is a ConfigMap that is created as a dry run, so it never exists. Each one has a nonce under a seal, and the refusal
repeats neither but proves knowledge of the key: nobody else can make up a refusal, and an old one does not count. Any
replica with the same key may refuse it: then admission reaches the installation that this process belongs to, and this
process learns that it is not alone.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from tierwall.serve.authorizer.bridge import AdmissionRequest

NAME = "tierwall-canary"
_NOTE = "A dry run of the Tierwall authorizer, which proves that admission asks its webhook. It is always refused."
_OTHER_KEY = "this canary comes from an authorizer with another seal key: give all replicas the same --seal-key"
_MAX_NONCE = 64
# A replica that has not been heard of for so long is gone: each sends a canary every few seconds.
REPLICA_SECONDS = 60.0


class CanarySealer:
    """Makes canaries under the newest key, and refuses those under any of `keys`. `clock` counts seconds."""

    def __init__(self, keys: Callable[[], tuple[bytes, ...]], clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        # The nonces of our last canaries: an answer may be late. And the last one that this process was asked about.
        self._nonces: deque[str] = deque(maxlen=8)
        self._refused = ""
        self._replica_at = -inf

    @property
    def has_replicas(self) -> bool:
        """Whether admission has lately asked a replica about our canary, or us about that of a replica."""
        return self._clock() - self._replica_at < REPLICA_SECONDS

    def proved(self) -> None:
        """Take note that the last canary was refused, here or by a replica."""
        if self._refused != self._nonces[-1]:
            self._replica_at = self._clock()

    def canary(self, namespace: str) -> tuple[dict[str, Any], str]:
        """Return a new canary, and the words in its refusal that prove who refused it."""
        key, nonce = self._keys()[0], secrets.token_hex(16)
        self._nonces.append(nonce)
        data = {"nonce": nonce, "seal": _mac(key, "canary", nonce), "note": _NOTE}
        metadata = {"name": NAME, "namespace": namespace}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}, _mac(
            key, "refused", nonce
        )

    def refusal(self, request: AdmissionRequest) -> str | None:
        """Return the message that refuses a canary; None if the request does not create one."""
        if request.name != NAME or request.operation != "CREATE" or request.resource.resource != "configmaps":
            return None
        data = request.object.get("data") if isinstance(request.object, Mapping) else None
        nonce, seal = (data.get("nonce"), data.get("seal")) if isinstance(data, Mapping) else (None, None)
        if not isinstance(nonce, str) or not isinstance(seal, str) or not nonce.isascii() or len(nonce) > _MAX_NONCE:
            return None
        for key in self._keys():
            if hmac.compare_digest(_mac(key, "canary", nonce).encode(), seal.encode("utf-8", "surrogatepass")):
                self._note(nonce)
                return f"tierwall canary, proof {_mac(key, 'refused', nonce)}"
        return _OTHER_KEY

    def _note(self, nonce: str) -> None:
        if nonce in self._nonces:
            self._refused = nonce
        else:
            self._replica_at = self._clock()


def _mac(key: bytes, purpose: str, nonce: str) -> str:
    return hmac.new(key, f"tierwall {purpose} {nonce}".encode(), hashlib.sha256).hexdigest()
