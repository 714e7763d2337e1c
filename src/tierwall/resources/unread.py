"""Documents of the given folders that were not read, by form (docs/reference/sources.md#what-is-not-an-object).

`check` alone shows them. The forms are in `resources.forms`, which is imported when a document is not an object.
"""

from __future__ import annotations

from tierwall.core.answer import Omission
from tierwall.core.source import Position
from tierwall.resources.document import Document, SourceText

UNREAD = "unread"


def document_form(document: Document) -> str:
    """Return the form of a document that is not an object; empty for an object, and for what should be one.

    Should be an object: what has one of `apiVersion` and `kind`, and everything in a file that the user named.
    """
    value = document.value
    api_version = kind = None
    if isinstance(value, dict):
        api_version, kind = value.get("apiVersion"), value.get("kind")
        if api_version and kind and kind != "Kustomization" and kind != "Component":
            return ""
    from tierwall.resources.forms import KUSTOMIZATION, OTHER, form_of, is_kustomization

    if api_version and kind:
        return KUSTOMIZATION if is_kustomization(api_version, kind) else ""
    form = form_of(value, document.source)
    return "" if form == OTHER and (api_version or kind or document.source.is_named) else form


class UnreadSet:
    """Counts what was not read, by form."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, Position] = {}

    def add(self, form: str, source: SourceText, offset: int = 0, count: int = 1) -> None:
        """Count documents of a form, the first of which is at an offset of a file."""
        self._counts[form] = self._counts.get(form, 0) + count
        if form not in self._first:
            self._first[form] = source.position(offset)

    @property
    def omissions(self) -> tuple[Omission, ...]:
        """The omissions, in the order of forms."""
        if not self._counts:
            return ()
        from tierwall.resources.forms import effect_of

        return tuple(
            Omission(reason=UNREAD, form=form, count=count, effect=effect_of(form), at=self._first[form])
            for form, count in sorted(self._counts.items())
        )
