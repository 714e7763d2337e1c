"""JSON documents: sorted nowhere, stable everywhere, one form for pipes and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tierwall.core.diagnostics import Diagnostic


def dump(document: Any) -> str:
    """A document as indented JSON text."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def diagnostics(found: Iterable[Diagnostic], summary: Mapping[str, Any]) -> str:
    """What `check -o json` prints."""
    return dump({**summary, "diagnostics": [one.document() for one in found]})
