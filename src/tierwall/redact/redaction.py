"""Objects without the names of anybody: what `tierwall snapshot --redact` writes (docs/clusters.md#redact).

Names, namespaces, label keys and values, users, hosts and addresses have stand-ins. Equal stays equal, names keep their
order, addresses their structure, so every question about the stand-ins has the answer that the question about the names
has. Where an expression looks inside a name, what it hangs on is kept, and a sentence says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from tierwall.cel.syntax.printer import literal_text
from tierwall.core.reference import Reference
from tierwall.redact.addresses import address_translator
from tierwall.redact.admission import restore_admission
from tierwall.redact.expressions import NAMES, ExpressionAnalysis
from tierwall.redact.fields import TextType
from tierwall.redact.insight import KeptNames, keep_names
from tierwall.redact.stand_ins import stand_ins
from tierwall.redact.walk import KEPT_NAMES, ObjectWalk
from tierwall.redact.words import NameTranslator, addresses_of, kept_tokens_of, tokens_of
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import DEFINITION


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
    names = _NameReader(listed, namespaces)
    kept = keep_names(names.values, names.expressions, names.translator)
    translator = names.translator(kept)
    walk = ObjectWalk(_Replacements(names, kept, translator).replace)
    values = [walk.copy(resource) for resource in listed]
    definitions = Snapshot.of([resource for resource in listed if (resource.group, resource.kind) == DEFINITION])
    restored = [
        sentence
        for resource, value in zip(listed, values, strict=True)
        for sentence in restore_admission(definitions, resource, value)
    ]
    return RedactedObjects(values, (*kept.sentences, *restored), translator)


class _NameReader:
    """All strings of the objects that are replaced, by what they are."""

    def __init__(self, resources: Sequence[Resource], namespaces: Iterable[str]) -> None:
        self.values: dict[TextType, set[str]] = {sort: set() for sort in TextType}
        self.values[TextType.NAMESPACE].update(namespaces)
        self.expressions: dict[str, tuple[ExpressionAnalysis, Reference]] = {}
        self._at: Reference | None = None
        walk = ObjectWalk(self._read)
        for resource in resources:
            self._at = resource.reference
            walk.copy(resource)
        self._unchanged = frozenset(
            resource.name for resource in resources if (resource.group, resource.kind) in KEPT_NAMES
        )
        self.backends = frozenset(resource.name for resource in resources if resource.kind == "XBackend")
        for analysis, _ in self.expressions.values():
            self._read_constants(analysis)
        self.replaced = frozenset().union(*(self.values[sort] for sort in NAMES))
        # Names that are made of others, and that only expressions see.
        accounts = [resource for resource in resources if (resource.group, resource.kind) == ("", "ServiceAccount")]
        self.values[TextType.USER].update(
            f"system:serviceaccount:{account.namespace}:{account.name}" for account in accounts
        )
        self.values[TextType.GROUP].update(f"system:serviceaccounts:{name}" for name in self.values[TextType.NAMESPACE])

    def _read(self, sort: TextType, text: str) -> str:
        if sort is TextType.EXPRESSION:
            if text not in self.expressions and self._at is not None:
                self.expressions[text] = ExpressionAnalysis(text), self._at
        elif sort not in (TextType.KEPT, TextType.TOOL):
            self.values[sort].add(text.lower() if sort is TextType.HOST else text)
        return text

    def _read_constants(self, analysis: ExpressionAnalysis) -> None:
        if analysis.is_broken:
            self.values[TextType.SECRET].add(analysis.text)
        for strings in analysis.classes:
            for sort in strings.types & NAMES if TextType.KEPT not in strings.types else ():
                self.values[sort].update(strings.constants.values())
        self.values[TextType.OTHER].update(check.constant for check in analysis.checks if check.keeps_parts)
        self.values[TextType.LABEL_KEY].update(analysis.fields.values())

    def translator(self, kept: KeptNames) -> NameTranslator:
        """Return the translator of all names that are not kept."""
        labels = frozenset(self.values[TextType.LABEL_VALUE] | self.values[TextType.NAMESPACE])
        fixed = {token for text in self.replaced for token in kept_tokens_of(text)} | kept.tokens
        tokens = {token for text in self.replaced for token in tokens_of(text)} - kept.tokens
        addresses = {address for text in self.replaced for address in addresses_of(text)}
        key = blake2b("\n".join(sorted(self.replaced)).encode("utf-8", "surrogatepass"), digest_size=32).digest()
        translated = None if kept.has_addresses else address_translator(addresses, key)
        whole: set[str] = set(self.values[TextType.SECRET])
        while True:
            table = stand_ins(tokens | whole, fixed)
            result = NameTranslator(table, translated, labels, self._unchanged)
            long = {text for text in self.replaced if text not in whole and result.is_too_long(text)}
            if not long:
                return result
            whole |= long


class _Replacements:
    """The new text of each string."""

    def __init__(self, names: _NameReader, kept: KeptNames, translator: NameTranslator) -> None:
        self._names = names
        self._kept = kept
        self._translator = translator
        self._expressions: dict[str, str] = {}

    def replace(self, sort: TextType, text: str) -> str:
        if sort is TextType.KEPT:
            return text
        if sort is TextType.SECRET:
            return self._translator.opaque(text)
        if sort is TextType.TOOL:
            return self._tool(text)
        if sort is TextType.EXPRESSION:
            known = self._expressions.get(text)
            if known is None:
                known = self._expressions[text] = self._rewritten(self._names.expressions[text][0])
            return known
        return self._translator.translate(text.lower() if sort is TextType.HOST else text)

    def _tool(self, text: str) -> str:
        """Return a tool's name; a backend before it, or a namespace and a backend, has a stand-in."""
        parts = text.split("/")
        for length in (1, 2):
            if len(parts) > length and parts[length - 1] in self._names.backends:
                return "/".join((*map(self._translator.translate, parts[:length]), *parts[length:]))
        return text

    def _rewritten(self, analysis: ExpressionAnalysis) -> str:
        translate = self._translator.translate
        if analysis.is_broken:
            return f"{self._translator.opaque(analysis.text)} ?"  # no expression either
        changes: dict[int, str] = {}
        for strings in analysis.classes:
            for at, text in strings.constants.items() if TextType.KEPT not in strings.types else ():
                if strings.types & NAMES or text in self._names.replaced:
                    changes[at] = literal_text(translate(text))
        for check in analysis.checks:
            if check.keeps_parts and check not in self._kept.checks:
                changes[check.at] = literal_text(translate(check.constant))
        for at, field in analysis.fields.items():
            changes[at] = _as_field(translate(field))
        return analysis.rewrite({at: new for at, new in changes.items() if at >= 0})


def _as_field(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else f"`{name}`"
