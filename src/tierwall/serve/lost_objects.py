"""Objects that a file has lost to a typing mistake: another object of the file has their name, but not their identity.

A policy whose kind, group or namespace is misspelled is an object of another kind or namespace, and the policy is gone
(docs/semantics.md#broken-files-keep-what-they-had). A new object may be a lost one, misspelled, if it has the same name
and

* a kind that Tierwall does not know, in the same group and with a similar name;
* the same kind, in a group where Tierwall does not know it;
* the same kind and group, and a namespace that cannot be one: of another form, empty, or under a misspelled key.

A namespace that is left out is a valid edit: it is the default one.
"""

from __future__ import annotations

from collections.abc import Set
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from tierwall.resources.kinds.registry import find_kind
from tierwall.resources.resource import Identity, Resource
from tierwall.values.names import dns_label

if TYPE_CHECKING:
    from tierwall.resources.load import RetainedFile

# `name` must not pass for a misspelled `namespace`.
_SIMILAR, _VERY_SIMILAR = 0.6, 0.75
# An API has no longer words: they are not compared, which would take long.
_LONGEST_WORD = 63


class LostObjects:
    """Tells which objects a file may have lost to its new objects; `known` are those that are not new."""

    def __init__(self, file: RetainedFile, known: Set[Identity]) -> None:
        # By name, so that comparing many objects with many others costs little.
        self._unknown: dict[str, set[tuple[str, str]]] = {}
        self._displaced: set[tuple[str, str, str]] = set()
        for document in file.documents:
            for resource in document.resources:
                if resource.identity in known:
                    continue
                if find_kind(resource.api_version, resource.kind) is None:
                    self._unknown.setdefault(resource.name, set()).add((resource.group, resource.kind))
                if _has_doubtful_namespace(resource):
                    self._displaced.add((resource.group, resource.kind, resource.name))

    def may_be(self, lost: Resource) -> bool:
        """Tell whether a new object of the file may be this one, misspelled."""
        return (lost.group, lost.kind, lost.name) in self._displaced or any(
            (kind == lost.kind and group != lost.group)
            or (group == lost.group and kind != lost.kind and _is_similar(kind, lost.kind, _SIMILAR))
            for group, kind in self._unknown.get(lost.name, ())
        )


def _has_doubtful_namespace(resource: Resource) -> bool:
    metadata = resource.metadata
    if "namespace" in metadata:
        namespace = metadata["namespace"]
        return not isinstance(namespace, str) or bool(dns_label(namespace))
    return any(_is_similar(str(key), "namespace", _VERY_SIMILAR) for key in metadata)


def _is_similar(word: str, other: str, ratio: float) -> bool:
    return len(word) <= _LONGEST_WORD and SequenceMatcher(None, word.lower(), other.lower()).ratio() >= ratio
