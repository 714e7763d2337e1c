"""Finds the objects that a question names, and reports names that do not exist with the nearest one that does.

Problems are collected, so that the user learns of all mistakes at once (`core.diagnostics.input_error`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tierwall.core.diagnostics import Diagnostic, near_miss, unknown_name_diagnostic
from tierwall.core.reference import Reference
from tierwall.core.words import as_given
from tierwall.resources.gaps import missing
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot


class ResourceFinder:
    """Finds the objects that a question names and appends every mistake to `problems`."""

    def __init__(self, snapshot: Snapshot, problems: list[Diagnostic]) -> None:
        self.snapshot = snapshot
        self.problems = problems

    def report_invalid(self, message: str, hint: str = "") -> None:
        """Report a value that is not valid."""
        self.problems.append(Diagnostic("TW703", message, hint=hint))

    def report_missing(self, message: str, hint: str = "") -> None:
        """Report a name that does not exist."""
        self.problems.append(unknown_name_diagnostic(message, hint))

    def report_unknown(self, what: str, hint: str, kinds: Iterable[KindKey], namespace: str) -> None:
        """Report a name that no object of some kinds has, as far as they could be read."""
        self.report_missing(*missing(self.snapshot, what, hint, kinds, namespace))

    def report_unknown_reference(self, what: str, hint: str, value: str) -> None:
        """Report a reference that names no object, as far as objects of its kind could be read."""
        try:
            reference = Reference.parse(value)
        except ValueError:
            self.report_missing(f"there is no {what}", hint)
            return
        unlisted = ((entry.group, entry.kind) for entry in self.snapshot.unlisted if entry.kind == reference.kind)
        self.report_unknown(what, hint, unlisted, reference.namespace)

    def by_name(
        self,
        key: str,
        value: object,
        kinds: Iterable[KindKey],
        form: str = "`namespace/name`",
        *,
        one_only: bool = False,
    ) -> Resource | None:
        """Return the object called `namespace/name`.

        If objects of several kinds have that name, return the first, or report the ambiguity if `one_only`.
        """
        kinds = tuple(kinds)
        if not isinstance(value, str) or value.count("/") != 1 or not all(value.split("/")):
            self.report_invalid(f"expected {form} as `{key}`, found {as_given(value)}")
            return None
        namespace, _, name = value.partition("/")
        gets = (self.snapshot.get(*kind, namespace, name) for kind in kinds)
        objects = [resource for resource in gets if resource is not None]
        kind_name = kinds[0][1]
        if not objects:
            known = (f"{known.namespace}/{known.name}" for kind in kinds for known in self.snapshot.of_kind(*kind))
            self.report_unknown(f"{kind_name} `{value}`", near_miss(value, known), kinds, namespace)
            return None
        if one_only and len(objects) > 1:
            choices = " or ".join(f"`{resource.kind}.{resource.group}/{value}`" for resource in objects)
            self.report_invalid(f"{kind_name} `{value}` is ambiguous: both groups have one", f"say {choices}")
        return objects[0]

    def by_reference(self, key: str, value: object, kinds: Mapping[str, KindKey]) -> Resource | None:
        """Return the object that `Kind/namespace/name` refers to, if its kind is one of `kinds`."""
        try:
            reference = Reference.parse(value) if isinstance(value, str) else None
        except ValueError:
            reference = None
        if reference is None or not reference.namespace or reference.section:
            self.report_invalid(f"expected `Kind/namespace/name` as `{key}`, found {as_given(value)}")
            return None
        if reference.kind not in kinds:
            message = f"expected one of {', '.join(kinds)} as kind of `{key}`, found `{reference.kind}`"
            self.report_invalid(message, near_miss(reference.kind, kinds))
            return None
        resource = self.snapshot.get(*kinds[reference.kind], reference.namespace, reference.name)
        if resource is None:
            known = (str(known.reference) for kind in kinds.values() for known in self.snapshot.of_kind(*kind))
            hint = near_miss(str(reference), known)
            self.report_unknown(str(reference), hint, (kinds[reference.kind],), reference.namespace)
        return resource

    def by_any_reference(self, value: str | Reference) -> Resource | None:
        """Return the object that a reference names, of any kind."""
        try:
            reference = value if isinstance(value, Reference) else Reference.parse(str(value))
        except ValueError as error:
            self.report_invalid(str(error))
            return None
        resource = self.snapshot.find(reference)
        if resource is None:
            known = (str(known.reference) for known in self.snapshot)
            self.report_unknown_reference(str(reference), near_miss(str(reference), known), str(reference))
        return resource

    def by_reference_among(
        self, word: str, value: str, objects: Iterable[Resource], others: str = "is another kind of object"
    ) -> list[Resource]:
        """Return the objects that a reference names, of every group unless it gives one.

        `word` says what they are, and `others` why objects that exist are not among them.
        """
        by_reference: dict[Reference, list[Resource]] = {}
        for resource in objects:
            for reference in {resource.reference, resource.reference._replace(group=resource.group)}:
                by_reference.setdefault(reference, []).append(resource)
        known = [str(reference) for reference in by_reference if not reference.group]
        try:
            reference = Reference.parse(value)
        except ValueError:
            same_name = next((f"did you mean `{text}`?" for text in known if text.endswith(f"/{value}")), "")
            self.report_invalid(f"expected `Kind/namespace/name` as {word}, found {as_given(value)}", same_name)
            return []
        named = by_reference.get(reference, [])
        if not named and self.snapshot.find(reference) is not None:
            self.report_invalid(f"{value} {others}")
        elif not named:
            self.report_unknown_reference(f"{word} `{value}`", near_miss(value, known), value)
        return named


def name_hint(value: object, known: Iterable[str], word: str) -> str:
    """Return a hint for a name inside an object: the nearest name that exists, else all. `word` is their plural."""
    names = list(dict.fromkeys(known))
    return near_miss(str(value), names) or (
        f"use one of its {word}: {', '.join(names)}" if names else f"it has no {word}"
    )
