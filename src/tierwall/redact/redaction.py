"""Objects without the names of anybody: what `tierwall snapshot --redact` writes (docs/clusters.md#redact).

Names, namespaces, label keys and values, users, hosts and addresses have stand-ins. Equal stays equal, names keep their
order, addresses their structure, so every question about the stand-ins has the answer that the question about the names
has. Where an answer hangs on a name itself, the name is kept, and a sentence says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tierwall.core.reference import Reference
from tierwall.redact.admission import admission_differences
from tierwall.redact.insight import keep_names
from tierwall.redact.names import NameReader
from tierwall.redact.texts import TextTranslator
from tierwall.redact.walk import ObjectWalk
from tierwall.redact.words import NameTranslator
from tierwall.resources.foreign import root_namespace
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import DEFINITION, installed_definitions

# Texts that are kept because of admission change other stand-ins, which may change admission again.
_MAX_ROUNDS = 4


class RedactedObjects(msgspec.Struct, frozen=True, eq=False):
    """The values of redacted objects in the given order, and sentences about what was kept although it is a name."""

    values: Sequence[dict[str, Any]]
    kept: tuple[str, ...]
    translator: NameTranslator

    def rename(self, name: str) -> str:
        """Return the stand-in of a name, namespace, user, host or address of the objects; others stay as they are."""
        return self.translator.translate(name)

    def rename_reference(self, reference: Reference) -> Reference:
        """Return the reference of the redacted object."""
        return reference._replace(namespace=self.rename(reference.namespace), name=self.rename(reference.name))


def redact(resources: Iterable[Resource], namespaces: Iterable[str] = ()) -> RedactedObjects:
    """Return redacted objects. `namespaces` are more names to replace, such as the namespace of a context."""
    listed = tuple(resources)
    snapshot = Snapshot.of([resource for resource in listed if (resource.group, resource.kind) == DEFINITION])
    definitions = installed_definitions(snapshot)
    names = NameReader(listed, namespaces, definitions)
    kept = keep_names(names.values, names.expressions, names.translator, names.patterns, _root_namespaces(listed))
    differences: dict[str, None] = {}
    for attempt in range(_MAX_ROUNDS):
        translator = names.translator(kept)
        texts = TextTranslator(names, kept, translator)
        walk = ObjectWalk(texts.replace, definitions)
        values = [texts.of(resource, walk) for resource in listed]
        judged = [
            difference
            for resource, value in zip(listed, values, strict=True)
            for difference in admission_differences(snapshot, resource, value)
        ]
        if not any(difference.text for difference in judged) or attempt == _MAX_ROUNDS - 1:
            break
        for difference in judged:
            if difference.text:
                differences[str(difference)] = None
                kept.keep_text(difference.text)
    differences |= {str(difference): None for difference in judged}
    return RedactedObjects(values, (*kept.sentences, *differences, *texts.sentences), translator)


def _root_namespaces(resources: Iterable[Resource]) -> Mapping[Reference, str]:
    """Return the objects that concern all namespaces because of the namespace that they are in, which is kept."""
    return {
        resource.reference: resource.namespace
        for resource in resources
        if resource.namespace and resource.namespace == root_namespace(resource.group, resource.kind)
    }
