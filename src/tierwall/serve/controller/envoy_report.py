"""Reports about the Envoys of one Gateway: what each holds, by the replica that it is connected to.

An Envoy is connected to one replica, and only the leader writes statuses. So each replica puts its reports into Leases
of the release namespace (docs/fleet.md#what-envoys-hold), which the leader reads. A report has a digest of eight
characters for each generation of an object that an Envoy holds: ten thousand policies take 80 kB.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import blake2b, sha256
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from tierwall.resources.resource import Resource

# The uid and generation of an object.
Generation: TypeAlias = tuple[str, int]

LABEL, LABEL_VALUE = "tierwall.io/report", "envoys"
GATEWAY_ANNOTATION, REPORT_ANNOTATION = "tierwall.io/gateway", "tierwall.io/envoys"
DIGEST_SIZE = 8
# How many refused policies a report names, and how much it says about each, in characters.
MAX_REFUSED, MAX_WORDS = 50, 500
# All annotations of an object may have 256 KiB.
MAX_REPORT = 240 << 10
# Stands for Envoys whose report would be longer: they may hold anything, so they count as holding nothing.
_TOO_MANY = "of a replica, whose report would be too long,"


def generation_of(resource: Resource) -> Generation:
    """Return the uid and generation of an object; an object that was never stored has neither."""
    uid, generation = resource.metadata.get("uid"), resource.metadata.get("generation")
    return uid if isinstance(uid, str) else "", generation if type(generation) is int else 0


def generation_digest(generation: Generation) -> str:
    """Return the digest that stands for a generation of an object in reports."""
    uid, number = generation
    return urlsafe_b64encode(blake2b(f"{uid} {number}".encode(), digest_size=6).digest()).decode()


class EnvoyReport(Struct, frozen=True, kw_only=True):
    """A replica's report about the Envoys of one Gateway that are connected to it."""

    # The digests of what each Envoy holds, by its node id.
    held: Mapping[str, frozenset[str]] = {}
    # Envoys that have just connected and have not said yet what they hold.
    arriving: frozenset[str] = frozenset()
    # The engine's words about the generations that it closed, by digest.
    refused: Mapping[str, str] = {}
    # What an Envoy refuses although nothing that is open is at fault, such as a port that it cannot open.
    problems: tuple[str, ...] = ()


class _Group(Struct, frozen=True):
    """Envoys that hold the same."""

    envoys: tuple[str, ...]
    held: str


class _ReportDocument(Struct, frozen=True, omit_defaults=True):
    groups: tuple[_Group, ...] = ()
    arriving: tuple[str, ...] = ()
    refused: Mapping[str, str] = {}
    problems: tuple[str, ...] = ()


def encode_report(report: EnvoyReport) -> str:
    """Return a report as the text of an annotation; equal reports give the same text.

    Whoever runs the Envoys of a Gateway chooses how many there are and how they are called. A report that an API server
    would refuse must not keep the reports of other Gateways from being written.
    """
    groups: dict[str, list[str]] = {}
    for envoy, digests in sorted(report.held.items()):
        groups.setdefault("".join(sorted(digests)), []).append(envoy)
    refused = dict(sorted((key, words[:MAX_WORDS]) for key, words in report.refused.items())[:MAX_REFUSED])
    document = _ReportDocument(
        tuple(_Group(tuple(envoys), held) for held, envoys in groups.items()),
        tuple(sorted(report.arriving)),
        refused,
        tuple(words[:MAX_WORDS] for words in report.problems[:MAX_REFUSED]),
    )
    text = msgspec.json.encode(document)
    if len(text) > MAX_REPORT:
        text = msgspec.json.encode(_ReportDocument((_Group((_TOO_MANY,), ""),)))
    return text.decode()


def decode_report(text: str) -> EnvoyReport:
    """Return the report in an annotation; ValueError if it is not a report."""
    document = msgspec.json.decode(text, type=_ReportDocument)
    held = {
        envoy: frozenset(group.held[start : start + DIGEST_SIZE] for start in range(0, len(group.held), DIGEST_SIZE))
        for group in document.groups
        for envoy in group.envoys
    }
    return EnvoyReport(
        held=held,
        arriving=frozenset(document.arriving),
        refused=document.refused,
        problems=document.problems,
    )


def report_lease_name(identity: str, gateway: str = "") -> str:
    """Return the name of a replica's Lease: of its report about a Gateway, or without one of its heartbeat."""
    return f"tierwall-envoys-{sha256(f'{identity} {gateway}'.encode()).hexdigest()[:24]}"


def report_metadata(gateway: str, report: str) -> dict[str, Any]:
    """Return labels and annotations of the Lease of a report; without a Gateway, of the replica's heartbeat."""
    metadata: dict[str, Any] = {"labels": {LABEL: LABEL_VALUE}}
    if gateway:
        metadata["annotations"] = {GATEWAY_ANNOTATION: gateway, REPORT_ANNOTATION: report}
    return metadata
