"""What `tierwall cel partial` prints of an expression of which only some variables are known."""

from __future__ import annotations

import json

from tierwall.cel.partial_evaluation import Partial, report
from tierwall.render.formats import View


def text(left: Partial, view: View) -> str:
    """The expression that is left."""
    return left.text


def line(left: Partial, view: View) -> str:
    """The same on a line of JSON, with the unknowns that remain and the outcomes that are possible."""
    return json.dumps(report(left), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace").decode()
