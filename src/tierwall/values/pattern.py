"""Regular expressions that are compiled on first use.

Compiling takes longer than most uses, and a short command uses few of the patterns of its modules.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("match", "fullmatch", "search", "sub", "finditer", "findall", "split", "pattern")


class _Pattern:
    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        """Compile the pattern and store its methods, so that this is called only once."""
        compiled = re.compile(self._text, self._flags)
        vars(self).update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but compile on first use."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))
