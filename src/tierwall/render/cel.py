"""What `tierwall cel` prints: values as lines of JSON, and what is left where only some variables are known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tierwall.render.formats import View

if TYPE_CHECKING:
    from tierwall.cel.partial_evaluation import Partial


def json_line(value: object) -> str:
    """One line of JSON; a lone surrogate, which CEL may have and UTF-8 may not, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace").decode()


def residual(left: Partial, view: View) -> str:
    """The expression that is left."""
    return left.text


def residual_line(left: Partial, view: View) -> str:
    """The same on a line of JSON, with the unknowns that remain and the outcomes that are possible."""
    from tierwall.cel.partial_evaluation import report

    return json_line(report(left))
