"""Objects that are defined twice: the later definition counts, and a warning names both places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tierwall.core.diagnostics import MAX_OF_FILE, Diagnostic
from tierwall.resources.document import Document, SourceText
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot


class RepeatedObjects:
    """The objects of a load that are defined twice. A warning is made once, however often the files are loaded."""

    def __init__(self) -> None:
        self._known: dict[tuple[Resource, Resource], Diagnostic] = {}

    def warnings(self, snapshot: Snapshot, *layers: Iterable[Resource]) -> list[Diagnostic]:
        """Return the warnings about objects of a snapshot. An object of one layer may replace one of another."""
        before, self._known = self._known, {}
        of_file: Counter[SourceText | None] = Counter()
        surplus: dict[SourceText | None, Resource] = {}
        for pair in (pair for layer in layers for pair in _replacements(layer, snapshot)):
            source = pair[1].origin.source if isinstance(pair[1].origin, Document) else None
            of_file[source] += 1
            if of_file[source] <= MAX_OF_FILE:
                self._known[pair] = before.get(pair) or _defined_twice(*pair)
            else:
                surplus[source] = pair[1]
        warnings = list(self._known.values())
        for source, resource in surplus.items():
            others = of_file[source] - MAX_OF_FILE
            message = f"{others:,} more objects of this file are defined twice"
            warnings.append(Diagnostic("TW007", message, resource.position(), count=others))
        return warnings


def _replacements(resources: Iterable[Resource], snapshot: Snapshot) -> Iterator[tuple[Resource, Resource]]:
    """Yield each pair of an object and the later one that replaces it in a snapshot."""
    first: dict[Identity, Resource] = {}
    for resource in resources:
        identity = *snapshot.key_of(resource), resource.namespace, resource.name
        earlier = first.get(identity)
        first[identity] = resource
        # Policy tests are not cluster objects: two tests with one name do not replace each other.
        if earlier is not None and resource.name and resource.kind != "PolicyTest":
            yield earlier, resource


def _defined_twice(earlier: Resource, resource: Resource) -> Diagnostic:
    before = earlier.position()
    place = f", first at {before.without_column}" if before is not None else ""
    message = f"{resource.reference} is defined twice{place}; the later one counts"
    return resource.diagnostic("TW007", message, related=(("defined here before", before),))
