"""Label selectors by Kubernetes' rules (apimachinery `metav1.LabelSelector`).

An empty selector selects everything. `NotIn` and `DoesNotExist` hold for an object without the key; `In` and `Exists`
do not. All requirements must hold. Selectors are values: their order of requirements does not matter for equality and
hashing, so they can be interned and grouped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class SelectorError(ValueError):
    """The selector is malformed; `path` says where, relative to the selector."""

    def __init__(self, message: str, path: tuple[str | int, ...]) -> None:
        super().__init__(message)
        self.path = path


class Requirement(NamedTuple):
    """`key operator values`; values are sorted and unique."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a set of labels meets this requirement."""
        if self.operator == "In":
            return labels.get(self.key) in self.values
        if self.operator == "NotIn":
            return self.key not in labels or labels[self.key] not in self.values
        return (self.key in labels) is (self.operator == "Exists")

    def __str__(self) -> str:
        if self.operator == "In" and len(self.values) == 1:
            return f"{self.key}={self.values[0]}"
        if self.operator in ("In", "NotIn"):
            return f"{self.key} {'in' if self.operator == 'In' else 'notin'} ({','.join(self.values)})"
        return self.key if self.operator == "Exists" else f"!{self.key}"


class Selector(NamedTuple):
    """Requirements that must all hold, sorted and unique; without any, everything is selected."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a set of labels is selected."""
        for requirement in self.requirements:
            # Every decision calls this, and almost every requirement is an `In`.
            if requirement.operator == "In":
                if labels.get(requirement.key) not in requirement.values:
                    return False
            elif not requirement.matches(labels):
                return False
        return True

    @property
    def keys(self) -> frozenset[str]:
        """The label keys that this selector depends on."""
        return frozenset(requirement.key for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))

    @classmethod
    def parse(cls, value: object) -> Selector:
        """Parse `matchLabels` and `matchExpressions` of a selector; raise SelectorError if it is malformed."""
        if value is None:
            return EVERYTHING
        if not isinstance(value, Mapping):
            raise SelectorError("expected a label selector", ())
        unknown = next((key for key in value if key not in ("matchLabels", "matchExpressions")), None)
        if unknown is not None:
            raise SelectorError(f"expected `matchLabels` or `matchExpressions`, found `{unknown}`", (unknown,))
        requirements: set[Requirement] = set()
        match_labels: Any = {} if value.get("matchLabels") is None else value["matchLabels"]
        if not isinstance(match_labels, Mapping):
            raise SelectorError("expected a map of labels", ("matchLabels",))
        for key, label in match_labels.items():
            if not isinstance(label, str):
                raise SelectorError("expected a string", ("matchLabels", key))
            requirements.add(Requirement(key, "In", (label,)))
        expressions: Any = () if value.get("matchExpressions") is None else value["matchExpressions"]
        if not isinstance(expressions, list | tuple):
            raise SelectorError("expected a list of requirements", ("matchExpressions",))
        for index, expression in enumerate(expressions):
            requirements.add(_requirement(expression, ("matchExpressions", index)))
        return cls(tuple(sorted(requirements)))


EVERYTHING = Selector()


def _requirement(value: object, path: tuple[str | int, ...]) -> Requirement:
    if not isinstance(value, Mapping):
        raise SelectorError("expected a requirement with `key` and `operator`", path)
    key, operator, values = value.get("key"), value.get("operator"), value.get("values") or []
    if not isinstance(key, str) or not key:
        raise SelectorError("expected a label key", (*path, "key"))
    if operator not in OPERATORS:
        raise SelectorError(
            f"expected one of {', '.join(OPERATORS)} as `operator`, found `{operator}`", (*path, "operator")
        )
    if not isinstance(values, list | tuple) or not all(isinstance(item, str) for item in values):
        raise SelectorError("expected a list of strings", (*path, "values"))
    if operator in ("In", "NotIn") and not values:
        raise SelectorError(f"`{operator}` needs at least one value", (*path, "values"))
    if operator in ("Exists", "DoesNotExist") and values:
        raise SelectorError(f"`{operator}` takes no values", (*path, "values"))
    return Requirement(key, operator, tuple(sorted(set(values))))
