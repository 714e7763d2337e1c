"""The widest selectors under which a read is allowed (docs/api.md#reads).

A selector leaves some of the values of each label and field, and is allowed if no object in what it leaves is refused.
From an object that is allowed, the narrowest selector around it is widened, one label or field after the other, as
long as it is allowed; then the search goes on outside of what was found. What only a prefix, say, tells apart from
what is refused, no selector can say. The solver's smallest model is the same everywhere, and so is the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from tierwall.api.reads.proof import ReadProof
from tierwall.api.reads.selectable import NAMESPACE, SelectableField
from tierwall.api.reads.selection import Selection
from tierwall.api.reads.selector_text import ReadSelector
from tierwall.api.reads.shown_object import SelectableValue
from tierwall.core.labels import Requirement

# Selectors that are found, and objects that are looked at.
MAX_SELECTORS, MAX_OBJECTS = 16, 64
# Questions to the solver, by the size of the circuit that each looks through: a request that is refused waits for them.
MAX_WORK = 1_000_000


class SelectorChoice(msgspec.Struct, frozen=True):
    """One thing that a label or field may be, as far as selectors can tell: `texts`, if they can name it."""

    literals: tuple[int, ...]
    texts: tuple[str, ...] = ()
    # A label that is not there. A field that is not there has the text of its zero.
    is_absent: bool = False

    @property
    def is_nameless(self) -> bool:
        """Whether it has more values than a selector can name."""
        return not self.texts and not self.is_absent


Choices: TypeAlias = tuple[SelectorChoice, ...]
# What a selector leaves of each label and field.
Left: TypeAlias = Mapping[str | SelectableField, Choices]


class WidestSearch:
    """Searches the selectors of one proof. `within` is what the request fixes already: its namespace and its name."""

    def __init__(self, proof: ReadProof, within: Selection) -> None:
        self._proof = proof
        self._fixed = proof.assumptions(within)
        cone = proof.circuit.inputs_below([proof.allowed])
        known = {key: _choices(value) for key, value in proof.selectable.items() if value.matters(cone)}
        self._choices: Left = {
            key: choices
            for key, choices in known.items()
            if len(choices) > 1 and not (key == NAMESPACE and NAMESPACE in within.fields)
        }
        # Whether there are no others.
        self.is_complete = False
        self._work = MAX_WORK

    def selectors(self) -> list[ReadSelector]:
        """Return the widest selectors that were found, the shortest first."""
        selectors: dict[ReadSelector, None] = {}
        outside = list(self._fixed)
        for _ in range(MAX_OBJECTS):
            question = [*outside, self._proof.allowed]
            if not self._may_ask(sum(map(len, self._choices.values()))):
                break
            possible = self._proof.possible(question)
            if not possible:
                self.is_complete = possible is False
                break
            left = self._narrowest(question)
            if self._is_allowed(left):
                left = self._widened(left)
                if self._work < 0:
                    break
                selectors.update(dict.fromkeys(_selectors(self._choices, left)))
            if len(selectors) >= MAX_SELECTORS:
                break
            outside.append(-self._proof.circuit.all_of(self._literals(left)))
        return sorted(selectors, key=lambda selector: (len(selector.labels) + len(selector.fields), str(selector)))

    def _narrowest(self, question: list[int]) -> Left:
        """Return what the narrowest selector around an allowed object leaves, if possible one that it can name."""
        # Every literal is asked for, so that the model has them all.
        every = [choice for choices in self._choices.values() for choice in choices]
        every.sort(key=lambda choice: (not choice.texts, choice.is_nameless))
        self._proof.value_in_model([literal for choice in every for literal in choice.literals], question)
        left: dict[str | SelectableField, Choices] = {}
        for key, choices in self._choices.items():
            here = next(choice for choice in choices if any(map(self._proof.holds, choice.literals)))
            left[key] = _expressible(key, choices, (here,), here)
        return left

    def _widened(self, left: Left) -> Left:
        for key, choices in self._choices.items():
            # With all else fixed, a union is allowed if each of its parts is.
            good = [choice for choice in choices if choice in left[key] or self._is_allowed({**left, key: (choice,)})]
            left = {**left, key: _expressible(key, choices, good, left[key][0])}
        return left

    def _is_allowed(self, left: Left) -> bool:
        literals = [*self._fixed, *self._literals(left), -self._proof.allowed]
        return self._may_ask(1) and self._proof.possible(literals) is False

    def _may_ask(self, count: int) -> bool:
        """Whether there is work left for so many questions, which are counted."""
        self._work -= count * self._proof.circuit.size
        return self._work >= 0

    def _literals(self, left: Left) -> list[int]:
        return [
            -literal
            for key, choices in self._choices.items()
            for choice in choices
            if choice not in left[key]
            for literal in choice.literals
        ]


def _choices(value: SelectableValue) -> Choices:
    """Return the choices of a label or field, those that have names first."""
    choices: list[SelectorChoice] = []
    zero: list[int] = []
    is_named = True
    for part in value.parts:
        if value.field is not None and (part.region is None or value.is_in(value.field.absent, part.region)):
            zero.append(part.literal)
            is_named &= part.region is None or part.texts == frozenset((value.field.absent,))
        else:
            choices.append(SelectorChoice((part.literal,), tuple(sorted(part.texts or ())), part.region is None))
    if value.field is not None and zero:
        choices.append(SelectorChoice(tuple(zero), (value.field.absent,) if is_named else ()))
    return tuple(sorted(choices, key=lambda choice: (not choice.texts, choice.texts)))


def _expressible(
    key: str | SelectableField, choices: Choices, good: Sequence[SelectorChoice], here: SelectorChoice
) -> Choices:
    """Return the most of what is good that one selector can leave, and `here` in any case.

    A selector names texts, or leaves all but some texts: then everything that it cannot name is left.
    """
    nameless = [choice for choice in choices if choice.is_nameless]
    if all(choice in good for choice in nameless):
        return tuple(choice for choice in choices if choice in good)
    if here.is_nameless:
        return tuple(nameless)
    if here.is_absent or not isinstance(key, str):
        return (here,)
    return tuple(choice for choice in choices if choice in good and choice.texts)


def _selectors(known: Left, left: Left) -> Iterable[ReadSelector]:
    """Yield the selectors that leave just this: several where a field has one of several texts."""
    labels = [
        requirement
        for key, choices in known.items()
        if isinstance(key, str)
        for requirement in _of_label(key, choices, left[key])
    ]
    fields: list[tuple[Requirement, ...]] = [()]
    for key, choices in known.items():
        if not isinstance(key, str):
            fields = [
                (*before, *requirement) for before in fields for requirement in _of_field(key, choices, left[key])
            ]
    return [ReadSelector(tuple(labels), each) for each in fields[:MAX_SELECTORS]]


def _of_label(key: str, choices: Choices, left: Choices) -> list[Requirement]:
    if left == choices:
        return []
    if all(choice.is_absent for choice in left):
        return [Requirement(key, "DoesNotExist")]
    if all(choice.texts for choice in left):
        return [Requirement(key, "In", _texts(left))]
    excluded = _texts(choice for choice in choices if choice not in left)
    presence = [] if any(choice.is_absent for choice in left) else [Requirement(key, "Exists")]
    return [*presence, *([Requirement(key, "NotIn", excluded)] if excluded else [])]


def _of_field(field: SelectableField, choices: Choices, left: Choices) -> list[tuple[Requirement, ...]]:
    if left == choices:
        return [()]
    if len(left) == 1 and left[0].texts:
        return [(Requirement(field.name, "In", (text,)),) for text in left[0].texts]
    excluded = _texts(choice for choice in choices if choice not in left)
    return [tuple(Requirement(field.name, "NotIn", (text,)) for text in excluded)]


def _texts(choices: Iterable[SelectorChoice]) -> tuple[str, ...]:
    return tuple(sorted({text for choice in choices for text in choice.texts}))
