"""`tierwall cel`: CEL expressions on the command line (docs/cel.md#from-the-command-line)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tierwall.cli.command import (
    FAILED,
    HAS_FINDINGS,
    Params,
    argument,
    fail,
    flag,
    named_values,
    option,
    output,
    print_line,
    print_output,
    repeated_option,
    runs,
)

if TYPE_CHECKING:
    from tierwall.cel.environment import Environment

# The maximum length of a line of a batch, in characters.
MAX_LINE = 16_000_000


def _release(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Read a Kubernetes release: `1.33` or `33`."""
    if value is None:
        return None
    number = value.removeprefix("1.")
    if not number.isdecimal() or not 23 <= int(number) <= 99:
        raise click.BadParameter(f"expected a Kubernetes release such as `1.33`, found `{value}`")
    return int(number)


class CelParams(Params):
    """The options that choose which functions are available."""

    release: int | None = option(
        last=True,
        callback=_release,
        metavar="1.N",
        help="Kubernetes release whose functions are available; by default the newest.",
    )
    extensions: bool = option(
        last=True, is_flag=True, help="Also offer functions that no Kubernetes release has: math, cel.bind, base64."
    )

    def environment(self, variables: dict[str, Any]) -> Environment:
        """Make the environment of expressions: the functions of the release, and variables by type."""
        from tierwall.cel.environment import NEWEST, Environment

        return Environment(self.release or NEWEST, variables, self.extensions)


@click.group("cel", epilog="Example: tierwall cel eval 'a + 1' --vars facts.json")
def group() -> None:
    """Evaluate, partially evaluate and check CEL expressions, as Kubernetes reads them."""


@contextmanager
def _report_errors(code: int = FAILED) -> Iterator[None]:
    """Print an error of an expression or its evaluation, and exit with a code."""
    from tierwall.cel.errors import Failure, SourceError
    from tierwall.cel.evaluate.encode import EncodingError
    from tierwall.cel.partial_evaluation import PartialError

    try:
        yield
    except SourceError as error:
        fail(*error.render().split("\n"), code=code)
    except (Failure, EncodingError, PartialError) as error:
        fail(str(error))


class CelEvalParams(CelParams):
    """The options of `cel eval`."""

    expression: str = argument()
    variables: str | None = option(
        "--vars", metavar="FILE", help="JSON or YAML object: the variables. `-` is standard input."
    )
    show_cost: bool = flag("Also print the cost of the evaluation to stderr.", "--cost")


@group.command("eval", epilog="Example: tierwall cel eval 'object.spec.replicas <= 3' --vars deployment.json")
@runs(CelEvalParams)
def evaluate(params: CelEvalParams) -> None:
    """Print the value of EXPRESSION as JSON."""
    from tierwall.cel.evaluate.encode import decode, encode
    from tierwall.cel.evaluate.program import compile
    from tierwall.cel.types import DYN
    from tierwall.render.cel import json_line

    with _report_errors():
        values = {name: decode(value) for name, value in read_object(params.variables).items()}
        program = compile(params.expression, params.environment(dict.fromkeys(values, DYN)))
        if params.show_cost:
            value, cost = program.measure(values)
            print_line(f"cost: {cost}", err=True)
        else:
            value = program.evaluate(values)
        click.echo(json_line(encode(value)))


class CelCheckParams(CelParams):
    """The options of `cel check`."""

    expression: str = argument()
    declared: tuple[str, ...] = repeated_option(
        "--var", metavar="NAME:TYPE", help="A variable, such as `object:dyn`. Repeatable."
    )


@group.command("check", epilog="Example: tierwall cel check 'names.all(n, n.size() < 10)' --var 'names:list(string)'")
@runs(CelCheckParams)
def check(params: CelCheckParams) -> None:
    """Print the type of EXPRESSION, checked as Kubernetes does. Exit code 4 if the check fails."""
    from tierwall.cel.check.checker import compile_source
    from tierwall.cel.types import TypeNameError, parse_type

    variables = {}
    for name, text in named_values(params.declared, "--var", "NAME:TYPE"):
        try:
            variables[name] = parse_type(text)
        except TypeNameError as error:
            raise click.BadParameter(str(error), param_hint="--var") from None
    with _report_errors(HAS_FINDINGS):
        print_line(str(compile_source(params.expression, params.environment(variables)).type))


class CelBatchParams(CelParams):
    """The options of `cel batch`."""

    file: str = argument(metavar="FILE")


@group.command("batch", epilog='Example: echo \'{"expr": "a + 1", "vars": {"a": 2}}\' | tierwall cel batch -')
@runs(CelBatchParams)
def batch(params: CelBatchParams) -> None:
    """Answer the questions in FILE, one JSON object per line. Answers come in the same order and form.

    `-` reads standard input. A line that is not a question is answered with an error, and makes the exit code 1.
    """
    from tierwall.cel.batch import Batch, QuestionError
    from tierwall.cel.environment import NEWEST
    from tierwall.core.words import count_noun
    from tierwall.render.cel import json_line

    answers = Batch(params.release or NEWEST, params.extensions)
    bad = 0
    for number, line in enumerate(_lines(params.file), 1):
        if not line.strip():
            continue
        try:
            reply: object = answers.answer(parse_json(line))
        except QuestionError as error:
            bad += 1
            reply = {"error": f"line {number}: {error}"}
        sys.stdout.write(json_line(reply) + "\n")
    sys.stdout.flush()
    if bad:
        fail(f"{count_noun(bad, 'line')} could not be read as a question")


class CelPartialParams(CelParams):
    """The options of `cel partial`."""

    expression: str = argument()
    known: str | None = option(metavar="FILE", help="JSON or YAML object: the known variables. `-` is standard input.")
    unknown: tuple[str, ...] = repeated_option(
        metavar="NAME[,NAME…]", help="Unknown variables, or paths inside known ones such as `request.name`. Repeatable."
    )
    output: str = output("cel partial")


@group.command(
    "partial",
    epilog="Example: tierwall cel partial 'request.verb == \"create\" && object.x == 1' "
    "--known request.json --unknown object",
)
@runs(CelPartialParams)
def partially(params: CelPartialParams) -> None:
    """Print what is left of EXPRESSION if some variables are known.

    The residual expression names no known variable, and gives what EXPRESSION gives for every value of the unknowns.
    `-o json` adds the unknowns that remain and the outcomes that are still possible.
    """
    from tierwall.cel.evaluate.encode import decode
    from tierwall.cel.partial_evaluation import partial_well_typed
    from tierwall.cel.types import DYN

    names = [name.strip() for names in params.unknown for name in names.split(",") if name.strip()]
    with _report_errors():
        values = {name: decode(value) for name, value in read_object(params.known).items()}
        environment = params.environment(dict.fromkeys((*values, *names), DYN))
        residual = partial_well_typed(environment.parse(params.expression), values, names, environment)
        if params.output == "text" and residual.error is not None:
            fail(residual.error)
        print_output("cel partial", params.output, residual)


def _lines(file: str) -> Iterator[str]:
    try:
        with click.open_file(file, encoding="utf-8", errors="strict") as stream:
            while line := stream.readline(MAX_LINE + 1):
                if len(line) > MAX_LINE:
                    fail(f"expected lines of at most {MAX_LINE} characters")
                yield line
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read `{file}`: {getattr(error, 'strerror', None) or error}")


def parse_json(text: str) -> Any:
    """Parse JSON without accepting `NaN`, and without a crash on deep nesting."""
    import json

    from tierwall.cel.batch import QuestionError

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"`{word}` is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise QuestionError(f"expected JSON: {error}") from None


def read_object(file: str | None) -> dict[str, Any]:
    """Read the object in a JSON or YAML file; without a file it is empty.

    Only JSON tells `1.0` from `1`. So what begins as a JSON object is read as one, unless the file is called `.yaml`.
    """
    from tierwall.cel.batch import QuestionError

    if file is None:
        return {}
    text = "".join(_lines(file))
    if text.lstrip().startswith("{") and not file.endswith((".yaml", ".yml")):
        try:
            value: Any = parse_json(text)
        except QuestionError as error:
            fail(f"{file}: {error}")
    else:
        from tierwall.resources.read import read_text

        read = read_text(text, file)
        if read.diagnostics:
            fail(*(f"{problem.at}: {problem.message}" for problem in read.diagnostics))
        if len(read.documents) > 1:
            fail(f"{file}: expected one document, found {len(read.documents)}")
        value = read.documents[0].value if read.documents else {}
    if not isinstance(value, dict):
        fail(f"{file}: expected an object that maps names to values")
    return value
