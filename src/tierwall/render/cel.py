"""The output of `tierwall cel`: values as lines of JSON, and residual expressions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tierwall.core.unprintable import printable_json
from tierwall.render.formats import View

if TYPE_CHECKING:
    from tierwall.cel.partial_evaluation import PartialResult


def json_line(value: object) -> str:
    """Return one line of JSON. A lone surrogate, which CEL allows and UTF-8 does not, becomes a question mark."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace").decode()
    return printable_json(text)


def residual(result: PartialResult, view: View) -> str:
    """Return the residual expression."""
    return result.text


def residual_line(result: PartialResult, view: View) -> str:
    """Return one line of JSON: the residual expression, the remaining unknowns and the possible outcomes."""
    from tierwall.cel.partial_evaluation import partial_report

    return json_line(partial_report(result))
