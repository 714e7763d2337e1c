"""Seals, which recognise an answer that comes back, and the request that it was given to, without keeping any state.

docs/semantics.md#conditions-come-back-as-they-left.

One seal covers the whole answer: the entries of the chain in their order, concrete ones included, and everything that
decides in each; the request; the revision of the policies; and the time when it expires. It is carried in the prefix of
each condition id: `<mac>.<marks>.<revision>.seal.tierwall.io/name`. The marks are the verb, the expiry, and digests of
who asks and of what is asked, so that the second phase can compare what its own review tells. Every holder of the key
accepts what another holder sealed. The seal does not cover descriptions, which may be left out on the way.

Two answers of the same policies differ in nothing but their seal, so an answer of which the rest is known need not be
read again (`split_text`). What counts is then the known rest, and the seal is compared with that.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from tierwall.api.algebra.chain import ChainEntry
from tierwall.api.algebra.condition import Condition, ConditionalDecision
from tierwall.api.algebra.decision import Decision
from tierwall.api.algebra.request import Attributes

DOMAIN = "seal.tierwall.io"
_VERBS = {"create": "c", "update": "u", "patch": "p", "delete": "d", "deletecollection": "k", "get": "g"}
_IMPERSONATION, _OTHER_VERB = "i", "o"
# The verbs that admission may see as an operation. An update may create, and a patch is an update.
_OPERATIONS = {"CREATE": "cup", "UPDATE": "up", "DELETE": "dk", "CONNECT": "gcupd"}
_MAC, _DIGEST, _REVISION = 32, 8, 12
MAX_DIGESTS = 4096
# The beginning of an id in JSON. It ends with a dot and has no character that JSON could escape.
_SEAL_TEXT = re.compile(rb'"([0-9a-f]{32})\.([a-z][0s][0-9a-f]{48})\.([0-9a-z]{1,12})\.')
# The prefix of a label key has at most 253 characters.
MAX_PREFIX = 253 - (_MAC + 1 + 50 + 1 + _REVISION + 1 + 1 + len(DOMAIN))


class SealError(ValueError):
    """An answer was not sealed with this key, not in this form, not for this request, or too long ago."""


# Group, version, resource and subresource.
RequestedResource: TypeAlias = tuple[str, str, str, str]


class ReviewFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a review of the second phase tells about its request; None for what it does not tell."""

    operation: str | None = None
    # Only who asks counts.
    user: Attributes | None = None
    # The resources that the request may be about.
    resources: tuple[RequestedResource, ...] | None = None
    group_version: tuple[str, str] | None = None
    namespace: str | None = None
    name: str | None = None
    # Whether an object told them. The object of a subresource may be of another kind and in another version.
    from_object: bool = False
    # Whether the data holds a request that is to be made as another user.
    impersonates: bool = False


class SealToken(msgspec.Struct, frozen=True):
    """The seal of one answer, as each of its ids carries it."""

    mac: str
    marks: str
    revision: str

    @property
    def verb(self) -> str:
        """One letter for the verb."""
        return self.marks[0]

    @property
    def has_subresource(self) -> bool:
        """Whether the request was about a subresource whose objects are of another kind."""
        return self.marks[1] == "s"

    @property
    def expiry(self) -> int:
        """Seconds since 1970."""
        return int(self.marks[2:10], 16)

    def digests(self) -> Iterator[str]:
        """Yield the digests: user, resource, version, namespace, name."""
        return (self.marks[start : start + _DIGEST] for start in range(10, 50, _DIGEST))


class SealedText(NamedTuple):
    """The JSON of an answer, split where its seal stands, and the seal."""

    token: SealToken
    parts: tuple[bytes, ...]


def split_text(text: bytes) -> SealedText | None:
    """Split the JSON of an answer at its first seal, wherever that stands; None if it has none."""
    match = _SEAL_TEXT.search(text)
    if match is None:
        return None
    mac, marks, revision = match.groups()
    return SealedText(SealToken(mac.decode(), marks.decode(), revision.decode()), tuple(text.split(match[0])))


class Sealer:
    """Seals and unseals answers with one key."""

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError("a sealing key needs at least 16 bytes")
        self._answer_key = hmac.digest(key, b"answers", "sha256")
        self._digest_key = hmac.digest(key, b"marks", "sha256")
        # Users, resources, namespaces and names come again and again.
        self._digests: dict[tuple[object, ...], str] = {}
        self._no_name = self._digest(("",))

    def seal(
        self, entries: Iterable[ChainEntry], attributes: Attributes, revision: str, expiry: int
    ) -> tuple[ChainEntry, ...]:
        """Seal the answer to a request; concrete entries stay as they are."""
        entries = tuple(entries)
        marks, revision = self._marks(attributes, expiry), _label(revision)
        prefix = f"{self._mac(sealed_content(entries), marks, revision)}.{marks}.{revision}"
        return tuple(ChainEntry(name, _with_ids(decision, prefix)) for name, decision in entries)

    def reseal(self, entries: Iterable[ChainEntry], sealed: Iterable[ChainEntry]) -> tuple[ChainEntry, ...]:
        """Seal what is left of an answer that was sealed, for the same request and the same time."""
        entries = tuple(entries)
        ids = (
            condition.id
            for _, decision in sealed
            if isinstance(decision, ConditionalDecision)
            for condition in decision.conditions.conditions
        )
        token, _ = _split(next(ids))
        prefix = f"{self._mac(sealed_content(entries), token.marks, token.revision)}.{token.marks}.{token.revision}"
        return tuple(ChainEntry(name, _with_ids(decision, prefix)) for name, decision in entries)

    def fits(self, content: bytes, token: SealToken) -> bool:
        """Whether a seal was put on this content (`sealed_content`) with this key."""
        return hmac.compare_digest(self._mac(content, token.marks, token.revision), token.mac)

    def check(self, token: SealToken, facts: ReviewFacts, now: float) -> None:
        """Compare a request with the one that an answer was given to; SealError if it is another, or too late."""
        if token.expiry < now:
            raise SealError("these conditions were issued too long ago")
        operation = facts.operation
        if token.verb == _IMPERSONATION and (operation is None or facts.impersonates):
            # The data are those of the request that is to be made as another user.
            return
        if operation is not None and token.verb not in _OPERATIONS.get(operation, ""):
            raise SealError(f"these conditions were issued for another verb than that of `{operation}`")
        if operation == "CONNECT" and not token.has_subresource:
            raise SealError("these conditions were issued for another resource")
        user, resource, version, namespace, name = token.digests()
        if facts.user is not None and self._digest(_user(facts.user)) != user:
            raise SealError("these conditions were issued for another user")
        if facts.from_object and token.has_subresource:
            return
        if facts.resources is not None:
            if resource not in map(self._digest, facts.resources):
                raise SealError("these conditions were issued for another resource")
        elif facts.group_version is not None and self._digest(facts.group_version) != version:
            raise SealError("these conditions were issued for another API version")
        if facts.namespace is not None and self._digest((facts.namespace,)) != namespace:
            raise SealError("these conditions were issued for another namespace")
        # A create may have had no name, and a deletecollection has none.
        if facts.name is not None and name != self._no_name and self._digest((facts.name,)) != name:
            raise SealError("these conditions were issued for another name")

    def _mac(self, content: bytes, marks: str, revision: str) -> str:
        # INVARIANT: neither the marks nor a revision has a dot, so no two answers are sealed as the same bytes.
        sealed = f"{marks}.{revision}.".encode() + content
        return hashlib.blake2b(sealed, key=self._answer_key, digest_size=_MAC // 2).hexdigest()

    def _marks(self, attributes: Attributes, expiry: int) -> str:
        verb = _VERBS.get(attributes.verb, _OTHER_VERB)
        if attributes.verb.startswith("impersonate"):
            verb = _IMPERSONATION
        resource = (attributes.group, attributes.version, attributes.resource, attributes.subresource)
        return "".join(
            (
                verb,
                "s" if attributes.subresource not in ("", "status") else "0",
                f"{expiry & 0xFFFFFFFF:08x}",
                self._digest(_user(attributes)),
                self._digest(resource),
                self._digest(resource[:2]),
                self._digest((attributes.namespace,)),
                self._digest((attributes.name,)),
            )
        )

    def _digest(self, values: tuple[object, ...]) -> str:
        digest = self._digests.get(values)
        if digest is None:
            if len(self._digests) >= MAX_DIGESTS:
                self._digests.clear()
            raw = msgspec.json.encode(values)
            digest = hashlib.blake2s(raw, key=self._digest_key, digest_size=_DIGEST // 2).hexdigest()
            self._digests[values] = digest
        return digest


def _user(attributes: Attributes) -> tuple[object, ...]:
    return attributes.user, tuple(sorted(set(attributes.groups))), attributes.uid, attributes.extra


def unsealed(entries: Iterable[ChainEntry]) -> tuple[tuple[ChainEntry, ...], SealToken]:
    """Return the entries without their seal, and the seal, which is not proved; SealError if it is not one seal."""
    token: SealToken | None = None
    plain: list[ChainEntry] = []
    for name, decision in entries:
        if isinstance(decision, ConditionalDecision):
            parts = [_split(condition.id) for condition in decision.conditions.conditions]
            if any(sealed_by != parts[0][0] for sealed_by, _ in parts) or token not in (None, parts[0][0]):
                raise SealError("these conditions are of different answers")
            token = parts[0][0]
            conditions = tuple(
                replace(condition, id=id)
                for condition, (_, id) in zip(decision.conditions.conditions, parts, strict=True)
            )
            decision = replace(decision, conditions=replace(decision.conditions, conditions=conditions))
        plain.append(ChainEntry(name, decision))
    if token is None:
        raise SealError("no condition here has a seal")
    return tuple(plain), token


def sealed_content(entries: Iterable[ChainEntry]) -> bytes:
    """Return what a seal covers of the entries of an answer: everything that decides, in order."""
    return msgspec.json.encode([_content(*entry) for entry in entries])


def _content(name: str, decision: Decision) -> list[object]:
    """Return everything that decides in an entry."""
    if not isinstance(decision, ConditionalDecision):
        return [name, str(decision.verdict)]
    conditions = decision.conditions
    return [name, str(conditions.failure_mode), sorted(map(_condition_content, conditions.conditions))]


def _condition_content(condition: Condition) -> list[str]:
    return [condition.id, str(condition.effect), condition.type, condition.text]


def _with_ids(decision: Decision, seal: str) -> Decision:
    if not isinstance(decision, ConditionalDecision):
        return decision
    conditions = tuple(replace(condition, id=_join(seal, condition.id)) for condition in decision.conditions.conditions)
    return replace(decision, conditions=replace(decision.conditions, conditions=conditions))


def _label(revision: str) -> str:
    """Return a revision as a part of a DNS name."""
    is_label = revision.isascii() and revision.isalnum() and revision.islower() | revision.isdigit()
    return revision[:_REVISION] if is_label else "0"


def _join(seal: str, id: str) -> str:
    prefix, slash, name = id.rpartition("/")
    return f"{seal}.{prefix}.{DOMAIN}/{name}" if slash else f"{seal}.{DOMAIN}/{name}"


def _split(id: str) -> tuple[SealToken, str]:
    whole, slash, name = id.rpartition("/")
    parts = whole.split(".", 3)
    rest = parts[-1]
    if not slash or len(parts) < 4 or (rest != DOMAIN and not rest.endswith(f".{DOMAIN}")):
        raise SealError("these conditions have no seal")
    mac, marks, revision = parts[:3]
    if len(mac) != _MAC or len(marks) != 50 or not whole.isascii() or not _is_hex(marks[2:10]):
        raise SealError("these conditions have no seal")
    prefix = rest.removesuffix(DOMAIN).removesuffix(".")
    return SealToken(mac, marks, revision), f"{prefix}/{name}" if prefix else name


def _is_hex(text: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in text)
