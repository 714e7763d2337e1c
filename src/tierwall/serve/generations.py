"""Digests over the network policies that one side has, so that another can tell whether it has the same ones.

A node's agent writes digests over the policies in force in its kernel (docs/enforce-network.md#reports), and the
controller compares them with digests over the policies that it follows. Equal digests are over equal policies: a policy
that only one of the two has read makes them differ.

One digest over everything would differ all the time where policies change all the time. So policies are divided into
parts by their uid, with a digest for each part: a policy that changes hides those of its part only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple

from tierwall.core.reference import Reference
from tierwall.network.model.policies import KINDS, SHADOW
from tierwall.resources.snapshot import Snapshot

# In so many parts policies are divided; each digest of a part has so many characters.
PARTS, DIGEST_LENGTH = 64, 16


class PolicyVersion(NamedTuple):
    """One state of a policy. Shadow mode is an annotation, and a change of it does not raise the generation."""

    uid: str
    generation: int
    is_shadow: bool = False

    @property
    def line(self) -> str:
        """The line that digests are made of."""
        return f"{self.uid} {self.generation}{' shadow' if self.is_shadow else ''}\n"


def policy_versions(snapshot: Snapshot) -> dict[Reference, PolicyVersion]:
    """Return the network policies of a cluster as they are now. Objects of files have no uid, and do not count."""
    annotation, shadow = SHADOW
    versions = {}
    for kind in KINDS:
        for resource in snapshot.of_kind(*kind):
            metadata = resource.metadata
            uid, generation, annotations = map(metadata.get, ("uid", "generation", "annotations"))
            if resource.is_live and isinstance(uid, str) and uid:
                is_shadow = isinstance(annotations, dict) and annotations.get(annotation) == shadow
                number = generation if isinstance(generation, int) else 0
                versions[resource.reference] = PolicyVersion(uid, number, is_shadow)
    return versions


def generations_digest(versions: Iterable[PolicyVersion]) -> str:
    """Return the digest over all policies, in hexadecimal digits."""
    return sha256(_text(versions)).hexdigest()


def part_of(uid: str, parts: int = PARTS) -> int:
    """Return the number of the part that a policy belongs to."""
    return int.from_bytes(sha256(uid.encode()).digest()[:4]) % parts


def part_digest(versions: Iterable[PolicyVersion]) -> str:
    """Return the digest over the policies of one part."""
    return sha256(_text(versions)).hexdigest()[:DIGEST_LENGTH]


def part_digests(versions: Iterable[PolicyVersion]) -> str:
    """Return the digests of all parts, one after the other."""
    divided: dict[int, list[PolicyVersion]] = {}
    for version in versions:
        divided.setdefault(part_of(version.uid), []).append(version)
    return "".join(part_digest(divided.get(part, ())) for part in range(PARTS))


def _text(versions: Iterable[PolicyVersion]) -> bytes:
    return "".join(sorted(version.line for version in versions)).encode()


class GenerationIndex:
    """The policies that a controller follows, by the parts of the digests that an agent has written."""

    def __init__(self, versions: Mapping[Reference, PolicyVersion], parts: int = PARTS) -> None:
        self._versions, self._parts = versions, parts
        self._divided: dict[int, dict[Reference, PolicyVersion]] = {}
        for reference, version in versions.items():
            self._divided.setdefault(part_of(version.uid, parts), {})[reference] = version
        self._digests = [part_digest(self._divided.get(part, {}).values()) for part in range(parts)]

    def policies_of(self, part: int) -> Mapping[Reference, PolicyVersion]:
        """Return the policies of a part."""
        return self._divided.get(part, {})

    def differing_parts(self, digests: str, others: Mapping[Reference, PolicyVersion | None]) -> frozenset[int]:
        """Return the parts in which digests are not over these policies.

        `others` are policies that are known to be in force in another state there, or not at all.
        """
        differing = set()
        changed: dict[int, dict[Reference, PolicyVersion | None]] = {}
        for reference, version in others.items():
            if (known := self._versions.get(reference)) is not None:
                changed.setdefault(part_of(known.uid, self._parts), {})[reference] = version
        for part in range(self._parts):
            expected = self._digests[part]
            if part in changed:
                mixed = {**self._divided[part], **changed[part]}
                expected = part_digest(version for version in mixed.values() if version is not None)
            if digests[part * DIGEST_LENGTH : (part + 1) * DIGEST_LENGTH] != expected:
                differing.add(part)
        return frozenset(differing)
