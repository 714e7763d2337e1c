"""`tierwall cel`: CEL expressions on the command line (docs/cel.md#from-the-command-line)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

FAILED, FOUND = 1, 4
# The longest line of a batch, in characters.
MAX_LINE = 16_000_000


def _release(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """`1.33` or `33`."""
    if value is None:
        return None
    number = value.removeprefix("1.")
    if not number.isdecimal() or not 23 <= int(number) <= 99:
        raise click.BadParameter(f"expected a Kubernetes release such as `1.33`, found `{value}`")
    return int(number)


_release_option = click.option(
    "--release", callback=_release, metavar="1.N", help="Kubernetes release whose functions are offered (newest)."
)
_extensions_option = click.option(
    "--extensions", is_flag=True, help="Also offer what no Kubernetes release does: math, cel.bind, base64."
)


@click.group("cel", epilog="Example: tierwall cel eval 'a + 1' --vars facts.json")
def cel() -> None:
    """Evaluate, partially evaluate and check CEL expressions, as Kubernetes reads them."""


group = cel


@cel.command("eval")
@click.argument("expression")
@click.option("--vars", "variables", metavar="FILE", help="JSON or YAML object: the variables. `-` is standard input.")
@click.option("--cost", "show_cost", is_flag=True, help="Also say on stderr what the evaluation cost.")
@_release_option
@_extensions_option
def evaluate(expression: str, variables: str | None, show_cost: bool, release: int | None, extensions: bool) -> None:
    """Print the value of EXPRESSION as JSON.

    Example: tierwall cel eval 'object.spec.replicas <= 3' --vars deployment.json
    """
    from tierwall.cel.environment import NEWEST, Environment
    from tierwall.cel.errors import Failure, ParseError
    from tierwall.cel.evaluate.encode import EncodingError, decode, encode
    from tierwall.cel.evaluate.program import compile
    from tierwall.cel.types import DYN

    try:
        values = {name: decode(value) for name, value in read_object(variables).items()}
        environment = Environment(release or NEWEST, dict.fromkeys(values, DYN), extensions)
        program = compile(expression, environment)
        if show_cost:
            value, cost = program.measure(values)
            click.echo(f"cost: {cost}", err=True)
        else:
            value = program.evaluate(values)
        click.echo(json_line(encode(value)))
    except ParseError as error:
        fail(error.render())
    except (Failure, EncodingError) as error:
        fail(str(error))


@cel.command("check")
@click.argument("expression")
@click.option(
    "--var", "declared", multiple=True, metavar="NAME:TYPE", help="A variable, such as `object:dyn`. Repeatable."
)
@_release_option
@_extensions_option
def check(expression: str, declared: tuple[str, ...], release: int | None, extensions: bool) -> None:
    """Print the type of EXPRESSION, checked as Kubernetes does; exit with 4 if it has none.

    Example: tierwall cel check 'names.all(n, n.size() < 10)' --var 'names:list(string)'
    """
    from tierwall.cel.check.checker import compile_source
    from tierwall.cel.environment import NEWEST, Environment
    from tierwall.cel.errors import CheckError, ParseError
    from tierwall.cel.types import TypeNameError, parse_type

    variables = {}
    for declaration in declared:
        name, colon, text = declaration.partition(":")
        try:
            if not colon or not name:
                raise TypeNameError(f"expected `name:type`, found `{declaration}`")
            variables[name] = parse_type(text)
        except TypeNameError as error:
            raise click.BadParameter(str(error), param_hint="--var") from None
    try:
        click.echo(str(compile_source(expression, Environment(release or NEWEST, variables, extensions)).type))
    except (ParseError, CheckError) as error:
        fail(error.render(), FOUND)


@cel.command("batch")
@click.argument("file", metavar="FILE")
@_release_option
@_extensions_option
def batch(file: str, release: int | None, extensions: bool) -> None:
    """Answer the questions in FILE, one JSON object a line, with one JSON object a line in the same order.

    `-` reads standard input. A line that is no question is answered by an error too, and makes the exit code 1.

    Example: echo '{"expr": "a + 1", "vars": {"a": 2}}' | tierwall cel batch -
    """
    from tierwall.cel.batch import Batch, QuestionError
    from tierwall.cel.environment import NEWEST

    answers = Batch(release or NEWEST, extensions)
    bad = 0
    for number, line in enumerate(_lines(file), 1):
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
        fail(f"{bad} line{'s' if bad > 1 else ''} could not be read as a question")


@cel.command("partial")
@click.argument("expression")
@click.option("--known", metavar="FILE", help="JSON or YAML object: the known variables. `-` is standard input.")
@click.option(
    "--unknown",
    multiple=True,
    metavar="NAME[,NAME…]",
    help="Unknown variables, or paths inside known ones such as `request.name`. Repeatable.",
)
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
@_release_option
@_extensions_option
def partially(
    expression: str, known: str | None, unknown: tuple[str, ...], output: str, release: int | None, extensions: bool
) -> None:
    """Print what is left of EXPRESSION when only some of its variables are known.

    It names no known variable, and for every value of the unknowns it gives what EXPRESSION gives. With `-o json` the
    answer also has the unknowns that remain and the outcomes still possible.

    Example: tierwall cel partial 'request.verb == "create" && object.x == 1' --known request.json --unknown object
    """
    from tierwall.cel.environment import NEWEST, Environment
    from tierwall.cel.errors import Failure, ParseError
    from tierwall.cel.evaluate.encode import EncodingError, decode
    from tierwall.cel.partial_evaluation import PartialError, report, well_typed
    from tierwall.cel.types import DYN

    names = [name.strip() for each in unknown for name in each.split(",") if name.strip()]
    try:
        values = {name: decode(value) for name, value in read_object(known).items()}
        environment = Environment(release or NEWEST, dict.fromkeys((*values, *names), DYN), extensions)
        left = well_typed(environment.parse(expression), values, names, environment)
        if output == "json":
            click.echo(json_line(report(left)))
        elif left.error is not None:
            fail(left.error)
        else:
            click.echo(left.text)
    except ParseError as error:
        fail(error.render())
    except (Failure, EncodingError, PartialError) as error:
        fail(str(error))


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
    """JSON as Python has it, without `NaN` and without a crash on a thousand brackets."""
    import json

    from tierwall.cel.batch import QuestionError

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"`{word}` is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise QuestionError(f"expected JSON: {error}") from None


def read_object(file: str | None) -> dict[str, Any]:
    """The object in a JSON or YAML file; without a file an empty one."""
    from tierwall.cel.batch import QuestionError

    if file is None:
        return {}
    if file.endswith((".yaml", ".yml")):
        from tierwall.resources.read import read_paths

        read = read_paths([file])
        if read.diagnostics:
            fail("\n".join(f"{one.at}: {one.message}" for one in read.diagnostics))
        value: Any = read.documents[0].value if read.documents else {}
    else:
        try:
            value = parse_json("".join(_lines(file)))
        except QuestionError as error:
            fail(f"{file}: {error}")
    if not isinstance(value, dict):
        fail(f"{file}: expected an object from names to values")
    return value


def json_line(value: object) -> str:
    """One line of JSON."""
    import json

    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace").decode()


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Say why on stderr and exit."""
    sys.stdout.flush()
    click.echo(message, err=True)
    sys.exit(code)
