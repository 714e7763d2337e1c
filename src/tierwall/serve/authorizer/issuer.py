"""Sealed answers: they are refused unless they come back as they were sent, in time, and for the same request.

docs/semantics.md#conditions-come-back-as-they-left.

Some wire shapes change conditions: one type per set, no failure mode if nothing denies, no name of a single authorizer.
These changes are made before sealing, so that the seal fits what comes back. The key is given, or derived from the TLS
private key that replicas share, or random for a single process.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from tierwall.api.algebra.chain import Chain, ChainDecision, ChainEntry, CompleteDecision
from tierwall.api.algebra.condition import (
    CEL_TYPE,
    CEL_TYPES,
    PACKED_CEL_TYPE,
    ConditionalDecision,
    Effect,
    FailureMode,
)
from tierwall.api.algebra.condition_fit import pack_condition
from tierwall.api.algebra.decision import DENY, Decision
from tierwall.api.algebra.request import Attributes
from tierwall.api.wire.answer import ConditionsReview
from tierwall.api.wire.review import WireShape
from tierwall.api.wire.seal import (
    MAX_PREFIX,
    ReviewFacts,
    SealedText,
    Sealer,
    SealError,
    SealToken,
    sealed_content,
    split_text,
    unsealed,
)
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.serve.authorizer.policies import GRACE_SECONDS

# The number of keys that conditions are accepted under after the key changes. Conditions live as long as a request.
MAX_KEYS = 3
# The time for a request to reach admission, on top of the time that API servers may keep an answer for.
REQUEST_SECONDS = 120.0
# Answers of one period expire together, so that equal answers stay equal and can be kept.
PERIOD_SECONDS = 300
# The number of answers that came back to remember, without their seals, and the length of their texts. One policy and
# one user have few: requests about other objects differ in the seal alone.
MAX_KNOWN, MAX_KNOWN_BYTES = 1024, 1 << 14


class IssuedEntries(NamedTuple):
    """The entries of an answer under seal, and until when it may be given to others who ask the same."""

    entries: tuple[ChainEntry, ...]
    fresh_until: float


class Issuer:
    """Sends conditions out under the newest key, and takes them back under the last few.

    `lifetime`: how many seconds an API server may keep an answer for. `clock` gives seconds since 1970.
    """

    def __init__(self, key: bytes, lifetime: float = GRACE_SECONDS, clock: Callable[[], float] = time.time) -> None:
        self._seals: tuple[Sealer, ...] = ()
        self._keys: tuple[bytes, ...] = ()
        self._lifetime = lifetime + REQUEST_SECONDS
        self.clock = clock
        # By shape and text without seals. INVARIANT: nothing here depends on a key, and each had a seal that fitted.
        self._known: dict[tuple[WireShape, tuple[bytes, ...]], _KnownAnswer] = {}
        # The number of keys so far.
        self.generation = 0
        self.rekey(key)

    def rekey(self, key: bytes) -> None:
        """Seal with another key from now on."""
        self._keys = (key, *(known for known in self._keys if known != key))[:MAX_KEYS]
        self._seals = tuple(map(Sealer, self._keys))
        self.generation += 1

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The last few keys, newest first."""
        return self._keys

    def issue(
        self, decision: CompleteDecision, attributes: Attributes, shape: WireShape, revision: str
    ) -> IssuedEntries:
        """Return the answer to a request as it is sent in a shape; `revision` is the policies'."""
        entries = [ChainEntry(name, _adapt_to_shape(opinion, shape)) for name, opinion in decision.entries]
        if shape is WireShape.SERIES and len(entries) == 1 and not decision.has_outer_entries:
            # A map that stands alone has no name there.
            entries = [ChainEntry("", entries[0].decision)]
        fresh_until = (self.clock() // PERIOD_SECONDS + 1) * PERIOD_SECONDS
        sealed = self._seals[0].seal(entries, attributes, revision, int(fresh_until + self._lifetime))
        return IssuedEntries(sealed, fresh_until)

    def reissue(self, left: Sequence[ChainEntry], sealed: Sequence[ChainEntry], shape: WireShape) -> IssuedEntries:
        """Return what is left of an answer that was taken back, as it is sent in a shape."""
        entries = [ChainEntry(name, _adapt_to_shape(opinion, shape)) for name, opinion in left]
        return IssuedEntries(self._seals[0].reseal(entries, sealed), 0.0)

    def take_back(self, chain: Chain, review: ConditionsReview, facts: ReviewFacts) -> tuple[ChainDecision, str]:
        """Take an answer back: the decision, and the revision of its policies.

        SealError if it was changed, has expired, was given to another request, or was not issued under these keys.
        WireError if it is not an answer at all.
        """
        text = split_text(review.text)
        known = None if text is None else self._known.get((review.shape, text.parts))
        if known is None or text is None:
            entries, token = unsealed(review.entries)
            answer = _KnownAnswer(entries)
        else:
            answer, token = known, text.token
        sealer = next((sealer for sealer in self._seals if sealer.fits(answer.content, token)), None)
        if sealer is None:
            raise SealError("these conditions were not issued here, or were changed on the way")
        if known is None and text is not None and len(review.text) <= MAX_KNOWN_BYTES:
            self._remember(review.shape, text, token, answer)
        sealer.check(token, facts, self.clock())
        if answer.chain is not chain:
            answer.chain, answer.decision = chain, chain.recall(answer.entries)
        return answer.decision, token.revision

    def _remember(self, shape: WireShape, text: SealedText, token: SealToken, answer: _KnownAnswer) -> None:
        """Remember an answer whose seal is proved, if every id in its text begins with that seal and nothing else."""
        if text.token == token and len(text.parts) == answer.conditions + 1:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[shape, text.parts] = answer


class _KnownAnswer:
    """An answer without its seal: its entries, what a seal covers of them, and what they mean to the chain in force."""

    def __init__(self, entries: tuple[ChainEntry, ...]) -> None:
        self.entries, self.content = entries, sealed_content(entries)
        self.conditions = sum(
            len(decision.conditions.conditions) for _, decision in entries if isinstance(decision, ConditionalDecision)
        )
        self.chain: Chain | None = None
        self.decision = ChainDecision(verdict=DENY)


def _adapt_to_shape(decision: Decision, shape: WireShape) -> Decision:
    if not isinstance(decision, ConditionalDecision):
        return Decision(decision.verdict)
    conditions = decision.conditions
    if any(len(condition.id.rpartition("/")[0]) > MAX_PREFIX for condition in conditions.conditions):
        return Decision(decision.failure)
    if shape is WireShape.KEP:
        types = {condition.type for condition in conditions.conditions}
        if types == {CEL_TYPE, PACKED_CEL_TYPE}:
            conditions = replace(conditions, conditions=tuple(map(pack_condition, conditions.conditions)))
        elif len(types) > 1:
            return Decision(decision.failure)
    if shape is WireShape.SERIES:
        is_cel = all(condition.type in CEL_TYPES for condition in conditions.conditions)
        if not conditions.of(Effect.DENY) or not is_cel:
            # This shape carries the failure mode only in the type of CEL, beside Deny conditions. Without any of these,
            # the mode decides nothing; with other types the stricter one holds.
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
