"""Names that are kept because expressions look inside them (docs/clusters.md#redact).

A test such as `startsWith("te")` is tried on every name and on its stand-in. Names on which the two differ are kept,
with all of their parts wherever they stand, until nothing differs. Where nothing is known about what an expression
does with a name, all names that it can see are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

import msgspec

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library.regex import compile_pattern
from tierwall.core.reference import Reference
from tierwall.core.words import join_names
from tierwall.redact.expressions import ExpressionAnalysis
from tierwall.redact.fields import TextType
from tierwall.redact.strings import FULL_MATCH, LOWER, NAMES, NameCheck
from tierwall.redact.words import NameTranslator, addresses_of, tokens_of

_MAX_ROUNDS = 5
_MAX_LISTED = 1_000  # names in a sentence
_MAX_EXPRESSION = 120  # characters of an expression in a sentence


class KeptNames(msgspec.Struct):
    """The parts of names that are kept, and why. Constants of `checks` stand as they were written."""

    tokens: set[str] = msgspec.field(default_factory=set)
    # Whole texts that are kept as they are.
    texts: set[str] = msgspec.field(default_factory=set)
    addresses: set[str] = msgspec.field(default_factory=set)
    checks: set[NameCheck] = msgspec.field(default_factory=set)
    reasons: dict[tuple[str, Reference], set[str]] = msgspec.field(default_factory=dict)
    # Objects that concern all namespaces because of the namespace that they are in.
    roots: dict[Reference, str] = msgspec.field(default_factory=dict)

    def keep_text(self, text: str) -> None:
        """Keep a text, and its parts wherever they stand."""
        self.texts.add(text)
        self.tokens.update(tokens_of(text))
        self.addresses.update(addresses_of(text))

    def keep(self, names: Iterable[str], text: str, reference: Reference) -> None:
        """Keep some names because of an expression of an object."""
        because = self.reasons.setdefault((text, reference), set())
        for name in names:
            self.tokens.update(tokens_of(name))
            self.addresses.update(addresses_of(name))
            because.add(name)

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence for each expression, and one for each namespace that has a meaning of its own."""
        first = {namespace: reference for reference, namespace in reversed(self.roots.items())}
        return (
            *(
                _sentence(text, reference, names)
                for (text, reference), names in sorted(
                    self.reasons.items(), key=lambda item: (str(item[0][1]), item[0][0])
                )
                if any(tokens_of(name) or addresses_of(name) for name in names)
            ),
            *(
                f"{first[namespace]}: it concerns all namespaces because of its own, so `{namespace}` is kept"
                for namespace in sorted(first)
            ),
        )


def keep_names(
    values: Mapping[TextType, Set[str]],
    expressions: Mapping[str, tuple[ExpressionAnalysis, Reference]],
    translator: Callable[[KeptNames], NameTranslator],
    patterns: Mapping[NameCheck, Reference],
    roots: Mapping[Reference, str],
) -> KeptNames:
    """Return what has to be kept so that every expression gives the same result for names and for their stand-ins.

    `patterns` are tests of other rules on names. `roots` are objects whose namespace has a meaning of its own.
    """
    kept = KeptNames(roots=dict(roots))
    kept.tokens.update(token for namespace in roots.values() for token in tokens_of(namespace))
    checks: list[tuple[NameCheck, Set[str], str, Reference]] = [
        (check, _names(values, check.types), check.constant, reference) for check, reference in patterns.items()
    ]
    for text, (analysis, reference) in expressions.items():
        for strings in analysis.classes:
            types = strings.types & NAMES
            if types and (strings.is_opaque or TextType.KEPT in strings.types):
                kept.keep({*_names(values, types), *strings.constants.values()}, text, reference)
        checks += ((check, _names(values, check.types), text, reference) for check in analysis.checks)
    for attempt in range(_MAX_ROUNDS if checks else 0):
        translate = translator(kept).translate
        differing = [
            (check, names if attempt == _MAX_ROUNDS - 1 else different, text, reference)
            for check, names, text, reference in checks
            if (different := _differing(check, names, translate, check in kept.checks))
        ]
        if not differing:
            break
        for check, names, text, reference in differing:
            kept.checks.add(check)
            kept.keep(names, text, reference)
            if check.function not in ("matches", FULL_MATCH, LOWER):
                kept.keep((check.constant,), text, reference)
    return kept


def _names(values: Mapping[TextType, Set[str]], types: Iterable[TextType]) -> Set[str]:
    return frozenset().union(*(values[sort] for sort in types))


def _differing(check: NameCheck, names: Set[str], translate: Callable[[str], str], is_kept: bool) -> set[str]:
    """Return the names for which a test has another result than for their stand-ins."""
    if check.function == LOWER:
        return {
            name for name in names if not (_is_lower(name) and _is_lower(translate(name))) and translate(name) != name
        }
    before = _test(check.function, check.constant)
    constant = translate(check.constant) if check.keeps_parts and not is_kept else check.constant
    after = _test(check.function, constant)
    if before is None or after is None:
        return set()  # it fails for every name
    return {name for name in names if before(name) != after(translate(name))}


def _is_lower(name: str) -> bool:
    return name == name.lower()


def _test(function: str, constant: str) -> Callable[[str], bool] | None:
    match function:
        case "startsWith":
            return lambda name: name.startswith(constant)
        case "endsWith":
            return lambda name: name.endswith(constant)
        case "contains":
            return lambda name: constant in name
    try:
        compiled = compile_pattern(constant)
    except EvaluationError:
        return None
    search = compiled.fullmatch if function == FULL_MATCH else compiled.search
    return lambda name: search(name.encode("utf-8", "surrogatepass")) is not None


def _sentence(text: str, reference: Reference, names: Set[str]) -> str:
    shown = text if len(text) <= _MAX_EXPRESSION else f"{text[:_MAX_EXPRESSION]}…"
    ordered = sorted(name for name in names if tokens_of(name) or addresses_of(name))
    listed = join_names([f"`{name}`" for name in ordered], _MAX_LISTED)
    return f"{reference}: `{shown}` looks inside names, so these are kept: {listed}"
