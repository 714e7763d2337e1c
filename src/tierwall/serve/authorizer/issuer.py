"""Sealed conditions: they are refused unless they come back as they were sent.

docs/semantics.md#conditions-come-back-as-they-left.

Some wire shapes change conditions: one type per set, no failure mode if nothing denies. These changes are made before
sealing, so that the seal fits what comes back. The key is given, or derived from the TLS private key that replicas
share, or random for a single process.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from tierwall.api.algebra.chain import Chain, ChainDecision, ChainEntry, CompleteDecision
from tierwall.api.algebra.condition import CEL_TYPE, PACKED_CEL_TYPE, ConditionalDecision, Effect, FailureMode
from tierwall.api.algebra.condition_fit import pack_condition
from tierwall.api.algebra.decision import Decision
from tierwall.api.wire.review import WireShape
from tierwall.api.wire.seal import Sealer, SealError
from tierwall.core.diagnostics import Diagnostic, InputError

# The number of keys that conditions are accepted under after the key changes. Conditions live as long as a request.
MAX_KEYS = 3
MAX_SEALED = 4096


class Issuer:
    """Sends conditions out under the newest key, and takes them back under the last few."""

    def __init__(self, key: bytes) -> None:
        self._seals: tuple[Sealer, ...] = ()
        self._keys: tuple[bytes, ...] = ()
        # Sealed answers, as long as their policies are in force.
        self._known: dict[tuple[Decision, WireShape], Decision] = {}
        self._revision = ""
        # The number of keys so far.
        self.generation = 0
        self.rekey(key)

    def rekey(self, key: bytes) -> None:
        """Seal with another key from now on."""
        self._keys = (key, *(known for known in self._keys if known != key))[:MAX_KEYS]
        self._seals = tuple(map(Sealer, self._keys))
        self._known = {}
        self.generation += 1

    def issue(self, decision: CompleteDecision, shape: WireShape, revision: str = "") -> tuple[ChainEntry, ...]:
        """Return the entries of a conditional answer as they are sent in a shape; `revision` is the policies'."""
        if revision != self._revision:
            self._known, self._revision = {}, revision
        return tuple([ChainEntry(name, self._sealed(opinion, shape)) for name, opinion in decision.entries])

    def _sealed(self, decision: Decision, shape: WireShape) -> Decision:
        """Return an authorizer's answer under the newest key. Repeated answers are sealed once."""
        # INVARIANT: bound before sealing, so that an answer sealed with an old key goes into a dict that is no longer
        # used.
        known = self._known
        key = decision, shape
        sealed = known.get(key)
        if sealed is None:
            sealed = self._seals[0].seal(_adapt_to_shape(decision, shape))
            if len(known) >= MAX_SEALED:
                known.clear()
            known[key] = sealed
        return sealed

    def take_back(self, chain: Chain, entries: Sequence[tuple[str, Decision]]) -> ChainDecision:
        """Take back conditions; SealError if they were changed or not issued under these keys."""
        for seal in self._seals[:-1]:
            try:
                return chain.recall([(name, seal.unseal(opinion)) for name, opinion in entries])
            except SealError:
                continue
        return chain.recall([(name, self._seals[-1].unseal(opinion)) for name, opinion in entries])


def _adapt_to_shape(decision: Decision, shape: WireShape) -> Decision:
    if not isinstance(decision, ConditionalDecision):
        return decision
    conditions = decision.conditions
    if shape is WireShape.KEP and {condition.type for condition in conditions.conditions} == {
        CEL_TYPE,
        PACKED_CEL_TYPE,
    }:
        conditions = replace(conditions, conditions=tuple(map(pack_condition, conditions.conditions)))
    if shape is WireShape.SERIES and not conditions.of(Effect.DENY):
        # This shape carries the failure mode only beside Deny conditions. Without any, the mode decides nothing.
        conditions = replace(conditions, failure_mode=FailureMode.DENY)
    return replace(decision, conditions=conditions)


def sealing_key(key_file: str | None, tls_key_file: str | None) -> bytes:
    """Return the given key, or one derived from the TLS private key, or a random one."""
    if key_file is not None:
        key = _read(key_file, "the sealing key").strip()
        if len(key) < 16:
            raise InputError([Diagnostic("TW511", f"the sealing key `{key_file}` needs at least 16 bytes")])
        return key
    if tls_key_file is None:
        return secrets.token_bytes(32)
    return derived_key(_read(tls_key_file, "the TLS private key"))


def derived_key(pem: bytes) -> bytes:
    """Derive a sealing key from a private key: always the same, however the file is written."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        private = serialization.load_pem_private_key(pem, None)
    except (TypeError, ValueError) as error:
        raise InputError([Diagnostic("TW512", f"the TLS private key cannot be read: {error}")]) from None
    plain = private.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return HKDF(hashes.SHA256(), 32, b"tierwall", b"conditions seal v1").derive(plain)


def _read(path: str, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError([Diagnostic("TW512", f"{what} `{path}` cannot be read: {error.strerror}")]) from error
