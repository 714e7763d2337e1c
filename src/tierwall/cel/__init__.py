"""CEL, the Common Expression Language as Kubernetes speaks it: parsed, printed, checked, evaluated, also partially.

Depends on nothing else of the project.
"""

from __future__ import annotations

from tierwall.cel.environment import Environment
from tierwall.cel.errors import CheckError, ParseError
from tierwall.cel.failure import CostExceeded, EvaluationError, Failure
from tierwall.cel.program import Program, compile, program

__all__ = [
    "CheckError",
    "CostExceeded",
    "Environment",
    "EvaluationError",
    "Failure",
    "ParseError",
    "Program",
    "compile",
    "program",
]
