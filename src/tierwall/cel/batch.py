"""One question in JSON, one answer in JSON (docs/cel.md#questions-and-answers-in-batch).

A question without `check` is evaluated unchecked: all variables are dynamic. With `check` it is checked as Kubernetes
does and not evaluated. With `unknown` it is evaluated as far as the known variables allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tierwall.cel.check.checker import compile_source
from tierwall.cel.environment import NEWEST, Environment
from tierwall.cel.errors import CheckError, Failure, ParseError, SourceError
from tierwall.cel.evaluate.encode import EncodingError, decode, encode
from tierwall.cel.evaluate.program import Program
from tierwall.cel.syntax.printer import to_text
from tierwall.cel.types import DYN, TypeNameError, parse_type
from tierwall.cel.values import type_name

Answer = dict[str, object]


class QuestionError(ValueError):
    """The question is malformed."""


class Batch:
    """Answers questions in the environment of one release."""

    def __init__(self, release: int = NEWEST, extensions: bool = False) -> None:
        self._release = release
        self._extensions = extensions
        self._plain = self._environment(())

    def _environment(self, names: Iterable[str]) -> Environment:
        return Environment(self._release, dict.fromkeys(names, DYN), self._extensions)

    def answer(self, question: object) -> Answer:
        """Answer one question. Errors are answers too; only a malformed question raises `QuestionError`."""
        if not isinstance(question, dict) or not isinstance(question.get("expr"), str):
            raise QuestionError("expected an object with a string as `expr`")
        text: str = question["expr"]
        try:
            if question.get("check"):
                return self._check(text, _mapping(question, "decls"))
            known = {name: decode(value) for name, value in _mapping(question, "vars").items()}
            unknown = question.get("unknown")
            if unknown is not None:
                return self._partial(text, known, _names(unknown))
            return self._evaluate(text, known)
        except ParseError as error:
            return {"parseError": _messages(error), "line": error.line, "column": error.column}
        except CheckError as error:
            return {"checkError": _messages(error), "line": error.line, "column": error.column}
        except Failure as failure:
            return {"error": str(failure)}
        except EncodingError as error:
            return {"error": f"bad value: {error}"}

    def _check(self, text: str, declarations: Mapping[str, object]) -> Answer:
        variables = {}
        for name, declared in declarations.items():
            if not isinstance(declared, str):
                raise QuestionError(f"expected a string as the type of `{name}`")
            try:
                variables[name] = parse_type(declared)
            except TypeNameError as error:
                raise QuestionError(str(error)) from None
        return {"type": str(compile_source(text, Environment(self._release, variables, self._extensions)).type)}

    def _evaluate(self, text: str, variables: dict[str, object]) -> Answer:
        environment = self._environment_for(variables)
        return _value(Program(environment.parse(text), environment).evaluate(variables))

    def _partial(self, text: str, known: dict[str, object], unknown: list[str]) -> Answer:
        from tierwall.cel.partial_evaluation import PartialError, partial_well_typed

        environment = self._environment_for((*known, *unknown))
        try:
            result = partial_well_typed(environment.parse(text), known, unknown, environment)
        except PartialError as error:
            return {"error": str(error)}
        if result.residual is not None:
            return {"residual": to_text(result.residual)}
        return {"error": result.error} if result.error is not None else _value(result.value)

    def _environment_for(self, names: Iterable[str]) -> Environment:
        # Only names with dots change what an unchecked expression means.
        dotted = [name for name in names if "." in name]
        return self._environment(dotted) if dotted else self._plain


def _messages(error: SourceError) -> str:
    """Return the messages of all problems; the answer has the place of the first."""
    first, *others = error.problems
    return "; ".join((first.message, *map(str, others)))


def _value(value: object) -> Answer:
    return {"value": encode(value), "type": type_name(value)}


def _mapping(question: dict[str, object], key: str) -> dict[str, object]:
    value = question.get(key, {})
    if not isinstance(value, dict):
        raise QuestionError(f"expected an object as `{key}`")
    return value


def _names(value: object) -> list[str]:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    raise QuestionError("expected a list of names as `unknown`")
