"""All strings of the objects that are replaced, by what they are (docs/clusters.md#redact)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from tierwall.core.reference import Reference
from tierwall.redact.addresses import AddressTranslator, address_translator
from tierwall.redact.expressions import ExpressionAnalysis
from tierwall.redact.fields import TextType
from tierwall.redact.insight import KeptNames
from tierwall.redact.stand_ins import stand_ins
from tierwall.redact.strings import FULL_MATCH, NAMES, NameCheck
from tierwall.redact.walk import KEPT_NAMES, ObjectWalk
from tierwall.redact.words import (
    NameTranslator,
    addresses_of,
    before_high_separators,
    dashed_names_of,
    kept_tokens_of,
    tokens_of,
)
from tierwall.resources.resource import Resource
from tierwall.resources.validity import InstalledDefinition

_KEPT = (TextType.WORD, TextType.KEPT, TextType.TOOL)
_HEADERS = frozenset((TextType.HEADER, TextType.HOST))


class NameReader:
    """Reads the strings of objects; `translator` makes the stand-ins of those that are not kept."""

    def __init__(
        self,
        resources: Sequence[Resource],
        namespaces: Iterable[str],
        definitions: Mapping[tuple[str, str], InstalledDefinition],
    ) -> None:
        self.values: dict[TextType, set[str]] = {sort: set() for sort in TextType}
        self.values[TextType.NAMESPACE].update(namespaces)
        self.expressions: dict[str, tuple[ExpressionAnalysis, Reference]] = {}
        # Tests on names that do not stand in expressions, and the objects that have them.
        self.patterns: dict[NameCheck, Reference] = {}
        # By the addresses that are kept.
        self._translators: dict[frozenset[str], AddressTranslator] = {}
        self._at: Reference | None = None
        walk = ObjectWalk(self._read, definitions)
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
        elif sort is TextType.PATTERN:
            if self._at is not None:
                self.patterns.setdefault(NameCheck(FULL_MATCH, text, _HEADERS, -1), self._at)
        elif sort not in _KEPT:
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

    def _addresses(self, kept: frozenset[str]) -> AddressTranslator:
        if kept not in self._translators:
            addresses = {address for text in self.replaced for address in addresses_of(text)}
            text = "\n".join(sorted(self.replaced))
            key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()
            self._translators[kept] = address_translator(addresses, key, kept)
        return self._translators[kept]

    def translator(self, kept: KeptNames) -> NameTranslator:
        """Return the translator of all names that are not kept."""
        labels = frozenset(self.values[TextType.LABEL_VALUE] | self.values[TextType.NAMESPACE])
        scalars = {token for text in self.values[TextType.SCALAR] for token in tokens_of(text)}
        fixed = {token for text in self.replaced for token in kept_tokens_of(text)} | kept.tokens | scalars
        tokens = {token for text in self.replaced for token in tokens_of(text)} - kept.tokens - scalars
        translated = self._addresses(frozenset(kept.addresses))
        whole = (self.values[TextType.SECRET] | self.values[TextType.ARN]) - kept.texts
        bases = {token for text in self.replaced for token in before_high_separators(text)}
        dashed: set[str] = set()
        firsts: set[str] = set()
        while True:
            table = stand_ins(tokens | whole | dashed, fixed, bases)
            unchanged = self._unchanged | kept.texts
            result = NameTranslator(table, translated, labels, whole, dashed, unchanged, self.replaced)
            long = {text for text in self.replaced if text not in whole and result.is_too_long(text)}
            if not long:
                return result
            # All names with the same first part are treated alike: only then they keep their order.
            more = {first for text in long for first, _ in dashed_names_of(text)} - firsts
            firsts |= more
            dashed = {
                name
                for text in self.replaced
                for first, name in dashed_names_of(text)
                if first in firsts and kept.tokens.isdisjoint(tokens_of(name))
            }
            whole |= set() if more else long
