"""The new text of each string, and names in texts that are kept (docs/clusters.md#redact)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tierwall.cel.syntax.printer import literal_text
from tierwall.core.reference import Reference
from tierwall.core.words import join_names
from tierwall.redact.expressions import ExpressionAnalysis
from tierwall.redact.fields import TextType
from tierwall.redact.insight import KeptNames
from tierwall.redact.names import NameReader
from tierwall.redact.strings import NAMES, StringClass
from tierwall.redact.walk import ObjectWalk
from tierwall.redact.words import NameTranslator, tokens_of
from tierwall.resources.resource import Resource

_ARN = "arn:aws:iam::000000000000:role/"
# Names of somebody or something. Labels and other texts have too many words that everybody has.
_TELLING = (TextType.NAME, TextType.NAMESPACE, TextType.USER, TextType.GROUP, TextType.HOST)
_MIN_NAME = 3
_MAX_SENTENCES = 20
_MAX_TEXT = 120


class TextTranslator:
    """Replaces the strings of objects, and notes the names in strings that it keeps."""

    def __init__(self, names: NameReader, kept: KeptNames, translator: NameTranslator) -> None:
        self._names = names
        self._kept = kept
        self._translator = translator
        self._expressions: dict[str, str] = {}
        self._telling = frozenset(
            token
            for sort in _TELLING
            for text in names.values[sort]
            for token in tokens_of(text)
            if len(token) >= _MIN_NAME and not token.isdecimal() and translator.translate(token) != token
        )
        self._at: Reference | None = None
        # The names in a text that is kept, with the first object that has the text.
        self._told: dict[str, tuple[Reference, tuple[str, ...]]] = {}

    def of(self, resource: Resource, walk: ObjectWalk) -> dict[str, Any]:
        """Return the value of a redacted object."""
        self._at = resource.reference
        return walk.copy(resource)

    @property
    def sentences(self) -> Iterator[str]:
        """One sentence for each text that is kept and has names in it."""
        for text, (reference, names) in list(self._told.items())[:_MAX_SENTENCES]:
            shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
            listed = join_names([f"`{name}`" for name in names])
            yield f"{reference}: `{shown}` is kept, although there are names in it: {listed}"
        if (more := len(self._told) - _MAX_SENTENCES) > 0:
            yield f"names are in {more:,} more texts that are kept"

    def replace(self, sort: TextType, text: str) -> str:
        """Return the new text of a string."""
        match sort:
            case TextType.WORD | TextType.SCALAR:
                return text
            case TextType.KEPT | TextType.PATTERN:
                self._note(text)
                return text
            case TextType.SECRET:
                return self._translator.opaque(text)
            case TextType.ARN:
                return text if text in self._kept.texts else _ARN + self._translator.opaque(text)
            case TextType.TOOL:
                return self._tool(text)
            case TextType.EXPRESSION:
                known = self._expressions.get(text)
                if known is None:
                    known = self._expressions[text] = self._rewritten(self._names.expressions[text][0])
                return known
        return self._translator.translate(text.lower() if sort is TextType.HOST else text)

    def _note(self, text: str) -> None:
        if text not in self._told and self._at is not None:
            names = tuple(dict.fromkeys(token for token in tokens_of(text) if token in self._telling))
            if names:
                self._told[text] = self._at, names

    def _tool(self, text: str) -> str:
        """Return a tool's name; a backend before it, or a namespace and a backend, has a stand-in."""
        parts = text.split("/")
        for length in (1, 2):
            if len(parts) > length and parts[length - 1] in self._names.backends:
                self._note("/".join(parts[length:]))
                return "/".join((*map(self._translator.translate, parts[:length]), *parts[length:]))
        self._note(text)
        return text

    def _rewritten(self, analysis: ExpressionAnalysis) -> str:
        translate = self._translator.translate
        if analysis.is_broken:
            return f"{self._translator.opaque(analysis.text)} ?"  # no expression either
        changes: dict[int, str] = {}
        others: dict[int, str] = {}
        for strings in analysis.classes:
            others |= {at: constant for _, constant, at in strings.checks if at >= 0}
            others |= strings.constants if not strings.types else {}
            for at, text in strings.constants.items() if TextType.KEPT not in strings.types else ():
                if strings.types & NAMES or (text in self._names.replaced and not _is_looked_into(strings)):
                    changes[at] = literal_text(translate(text))
        for check in analysis.checks:
            if check.keeps_parts and check not in self._kept.checks:
                changes[check.at] = literal_text(translate(check.constant))
        for at, field in analysis.fields.items():
            changes[at] = _as_field(translate(field))
        for at, text in others.items():
            if at not in changes:
                self._note(text)
        return analysis.rewrite({at: new for at, new in changes.items() if at >= 0})


def _is_looked_into(strings: StringClass) -> bool:
    return strings.is_opaque or bool(strings.checks)


def _as_field(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else f"`{name}`"
