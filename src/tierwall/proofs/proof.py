"""A proof: a claim about everything that may come (docs/prove.md). Its YAML form is `prove` of a policy test.

A proof is about one region with one claim (`never` or `always` a verdict), or about a change (`noNew`, `noLoss`).
`assume` narrows what may come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.core.labels import Selector
from tierwall.core.verdict import Verdict
from tierwall.proofs.reader import Locate, ProofReader, nowhere, shown
from tierwall.values.addresses import Span, parse_address, parse_cidr

_CLAIMS = ("never", "always")
_CHANGES = ("noNew", "noLoss")
_ASSUMPTIONS = ("namespaces", "podAddresses", "existingOnly", "hostNetwork", "objects")
DEFAULT_EFFORT = 10.0


class Claim(Struct, frozen=True):
    """`never` or `always` this verdict."""

    word: str
    verdict: Verdict

    def refuted_by(self, outcomes: frozenset[Verdict]) -> bool:
        """Whether an answer with these possible outcomes refutes the claim."""
        return self.verdict in outcomes if self.word == "never" else outcomes != {self.verdict}

    def __str__(self) -> str:
        return f"{self.word} {self.verdict}"


class Change(Struct, frozen=True):
    """`noNew`: nothing is allowed that was not before. `noLoss`: all that was allowed still is."""

    word: str
    # Files and folders with the other objects, or those of the cluster.
    against: tuple[str, ...]
    of_cluster: bool
    planes: tuple[str, ...]

    def refuted_by(self, before: frozenset[Verdict], after: frozenset[Verdict]) -> bool:
        """Whether these outcomes of one question, with the old and the new objects, can refute it."""
        allowed, other = (after, before) if self.word == "noNew" else (before, after)
        return Verdict.ALLOW in allowed and other != {Verdict.ALLOW}

    def __str__(self) -> str:
        return "opens nothing" if self.word == "noNew" else "closes nothing"


class Assumptions(Struct, frozen=True):
    """Limits of what may come. `given` is the YAML form."""

    # Every namespace that may come meets these.
    namespaces: tuple[Selector, ...] = ()
    # Pods have addresses of these alone; None leaves them free.
    pod_addresses: tuple[Span, ...] | None = None
    existing_only: bool = False
    host_network: bool = False
    # CEL about objects of the api plane.
    objects: str = ""
    given: Mapping[str, Any] = {}


class Proof(Struct, frozen=True, kw_only=True):
    """What is to be proved: a claim about a region, or a change."""

    plane: str = ""
    # As the plane has read it.
    region: Any = None
    claim: Claim | Change
    assume: Assumptions = Assumptions()
    given: Mapping[str, Any] = {}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Make a proof from its YAML form; InputError has everything that is wrong with it."""
        problems: list[Diagnostic] = []
        proof = cls.read(value, problems)
        if proof is None:
            raise InputError(problems)
        return proof

    @classmethod
    def read(cls, value: object, problems: list[Diagnostic], locate: Locate = nowhere) -> Self | None:
        """Read a proof; None after adding everything that is wrong with it to `problems`."""
        from tierwall.proofs.planes import REGIONS, given_planes, proving_plane

        before = len(problems)
        reader = ProofReader(problems, locate)
        given = reader.map(value, "`prove`", (*REGIONS, *_CLAIMS, *_CHANGES, "assume"))
        assume = _read_assumptions(given.get("assume", {}), reader.at("assume"))
        regions, changes = given_planes(given), [word for word in _CHANGES if word in given]
        claims = [word for word in _CLAIMS if word in given]
        claim: Claim | Change | None = None
        region: Any = None
        if len(regions) + len(changes) != 1:
            parts = ", ".join(f"`{word}`" for word in (*regions, *changes)) or "none"
            reader.refuse(f"expected one of {', '.join((*REGIONS, *_CHANGES))} in `prove`, found {parts}")
        elif changes:
            for word in claims:
                reader.at(word).refuse(f"`{changes[0]}` is a claim itself: leave out `{word}`")
            claim = _read_change(changes[0], given[changes[0]], reader.at(changes[0]))
        else:
            proving = proving_plane(regions[0])
            if proving is not None:
                region = proving.read_region(given[regions[0]], reader.at(regions[0]))
                for key in assume.given:
                    if key in _ASSUMPTIONS and key not in proving.ASSUMPTIONS:
                        expected = ", ".join(proving.ASSUMPTIONS)
                        reader.at("assume", key).refuse(
                            f"`{key}` means nothing to the {regions[0]} plane", f"expected {expected}"
                        )
            claim = _read_claim(claims, given, reader, proving.VERDICTS if proving is not None else tuple(Verdict))
        if len(problems) > before or claim is None:
            return None
        whole = dict(value) if isinstance(value, Mapping) else {}
        return cls(plane=regions[0] if regions else "", region=region, claim=claim, assume=assume, given=whole)

    def to_dict(self) -> dict[str, Any]:
        """Return the YAML form."""
        return dict(self.given)


def read_effort(value: object, problems: list[Diagnostic], locate: Locate = nowhere) -> float:
    """Read `proofEffort`: units of solver work, about a second of CPU each."""
    if value is None:
        return DEFAULT_EFFORT
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
        return float(value)
    message = f"expected a number above 0 as `proofEffort`, found {shown(value)}"
    problems.append(Diagnostic("TW703", message, locate(())))
    return DEFAULT_EFFORT


def _read_claim(
    claims: list[str], given: Mapping[str, Any], reader: ProofReader, verdicts: tuple[Verdict, ...]
) -> Claim | None:
    if len(claims) != 1:
        number = "both" if claims else "none"
        reader.refuse(f"expected one of never, always with a verdict in `prove`, found {number}")
        return None
    (word,) = claims
    verdict = reader.at(word).one_of(given[word], verdicts, word)
    return None if verdict is None else Claim(word, Verdict(verdict))


def _read_change(word: str, value: object, reader: ProofReader) -> Change | None:
    from tierwall.proofs.planes import REGIONS

    given = reader.map(value, f"`{word}`", ("against", "planes"))
    against = given.get("against")
    files: tuple[str, ...] = ()
    of_cluster = isinstance(against, Mapping) and dict(against) == {"cluster": True}
    if against is None and isinstance(value, Mapping):
        reader.refuse(f"expected `against` in `{word}`: the files to compare with", "or `against: {cluster: true}`")
    elif isinstance(against, Mapping) and not of_cluster:
        hint = near_miss(str(next(iter(against), "")), ("cluster",))
        reader.at("against").refuse(f"expected files or {{cluster: true}} as `against`, found {shown(against)}", hint)
    elif not of_cluster and against is not None:
        files = reader.at("against").strings(against, "against", "a file or folder, or a list of them,")
    planes = given.get("planes", list(REGIONS))
    chosen = [
        plane
        for index, name in enumerate(planes if isinstance(planes, list | tuple) else [planes])
        if (plane := reader.at("planes", index).one_of(name, REGIONS, "planes")) is not None
    ]
    return Change(word, files, of_cluster, tuple(plane for plane in REGIONS if plane in chosen))


def _read_assumptions(value: object, reader: ProofReader) -> Assumptions:
    given = reader.map(value, "`assume`", _ASSUMPTIONS)
    selectors: list[Selector] = []
    entries = given.get("namespaces", [])
    if not isinstance(entries, list | tuple):
        reader.at("namespaces").refuse(f"expected a list as `namespaces`, found {shown(entries)}")
        entries = ()
    for index, entry in enumerate(entries):
        part = reader.at("namespaces", index)
        match = part.map(entry, "`assume.namespaces`", ("match",))
        if "match" in match:
            selectors.append(part.at("match").selector(match["match"]))
        elif isinstance(entry, Mapping):
            part.refuse("expected `match` with a label selector in `assume.namespaces`")
    spans: tuple[Span, ...] | None = None
    if "podAddresses" in given:
        spans = read_blocks(given["podAddresses"], "podAddresses", reader.at("podAddresses"))
    objects = given.get("objects", "")
    if not isinstance(objects, str):
        reader.at("objects").refuse(f"expected an expression as `objects`, found {shown(objects)}")
    return Assumptions(
        tuple(selectors),
        spans,
        reader.at("existingOnly").true_or_false(given.get("existingOnly", False), "existingOnly"),
        reader.at("hostNetwork").true_or_false(given.get("hostNetwork", False), "hostNetwork"),
        objects if isinstance(objects, str) else "",
        dict(given),
    )


def read_blocks(value: object, key: str, reader: ProofReader) -> tuple[Span, ...]:
    """Read an address or a CIDR, or a list of them."""
    spans: list[Span] = []
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        reader.refuse(f"expected an address or a CIDR as `{key}`, found an empty list")
    for index, text in enumerate(values):
        address = parse_address(text)
        span = Span(address, address) if address is not None else parse_cidr(text)
        if span is None:
            part = reader.at(index) if isinstance(value, list | tuple) else reader
            part.refuse(f"expected an address or a CIDR as `{key}`, found {shown(text)}")
        else:
            spans.append(span)
    return tuple(spans)
