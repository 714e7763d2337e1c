"""CEL, the Common Expression Language as Kubernetes speaks it: parsed, printed, checked, evaluated, also partially.

Depends on nothing else in the project, except for the diagnostics that `compile` and `partial` raise.

>>> from tierwall import cel
>>> cel.compile("object.spec.replicas <= 3")(object={"spec": {"replicas": 2}})
True
>>> cel.partial("verb == 'create' && object.x == name", {"verb": "create", "name": "n"}, ["object"])
'object.x == "n"'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from tierwall.cel.environment import NEWEST, Environment
from tierwall.cel.errors import CheckError, CostExceeded, EvaluationError, Failure, ParseError, SourceError
from tierwall.cel.evaluate.program import Program

__all__ = [
    "CheckError",
    "CostExceeded",
    "Environment",
    "EvaluationError",
    "Failure",
    "ParseError",
    "Program",
    "compile",
    "partial",
]


def compile(text: str, variables: Mapping[str, str] | None = None) -> Program:
    """Return the program of an expression; call it with the values of its variables.

    With `variables`, a map from names to type names (`int`, `list(string)`, `dyn`), types are checked as Kubernetes
    does. InputError says what is wrong with the text.
    """
    from tierwall.cel.check.checker import compile_source
    from tierwall.cel.types import TypeNameError, parse_type

    try:
        declared = {name: parse_type(type_name) for name, type_name in (variables or {}).items()}
        environment = Environment(NEWEST, declared)
        if variables is not None:
            compile_source(text, environment)
        return Program(environment.parse(text), environment)
    except (ParseError, CheckError, TypeNameError) as error:
        _refuse(error)


def partial(text: str, known: Mapping[str, object], unknown: Iterable[str]) -> str:
    """Evaluate an expression as far as its known variables allow; the answer is an expression, or a constant.

    InputError says what is wrong with the text. Parts that fail stay in the result, so that it fails as the text does.
    """
    from tierwall.cel.partial_evaluation import PartialError
    from tierwall.cel.partial_evaluation import partial as reduced

    environment = Environment()
    # A single string is one name, not a collection of letters.
    names = (unknown,) if isinstance(unknown, str) else tuple(unknown)
    try:
        return reduced(environment.parse(text), known, names, environment=environment).text
    except (ParseError, PartialError) as error:
        _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    from tierwall.core.diagnostics import Diagnostic, InputError
    from tierwall.core.source import Position

    if not isinstance(error, SourceError):
        raise InputError([Diagnostic("TW705", str(error))]) from error
    places = [(problem, Position("<expression>", problem.line, problem.column)) for problem in error.problems]
    raise InputError(
        Diagnostic("TW705", problem.message, at, hint=problem.hint or "") for problem, at in places
    ) from error
