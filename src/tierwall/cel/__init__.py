"""CEL: parse, print, check, evaluate, compile and partially evaluate the Common Expression Language as Kubernetes speaks it.

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
