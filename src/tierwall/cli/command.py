"""The base of all commands: options as one value, errors as exit codes, output by format.

A command is a class of options, a function of one value of it, and a registration:

    class ExplainNetworkParams(ObjectParams):
        port: int = option(required=True, help="Destination port number.")
        output: str = output("explain")

    @command("network", epilog="Example: …")
    @runs(ExplainNetworkParams)
    def explain(params: ExplainNetworkParams) -> int | None:
        '''The help text.'''
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import click

from tierwall.cli.sections import SectionedCommand, SectionedOption

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tierwall.core.answer import Omission
    from tierwall.core.diagnostics import Diagnostic
    from tierwall.core.protocols import EngineReport
    from tierwall.core.verdict import StepVerdict, Verdict
    from tierwall.world import World

# docs/reference/exit-codes.md; click itself exits with 2 on wrong usage.
FAILED, DENIED, HAS_FINDINGS, CONDITIONAL, INCOMPLETE = 1, 3, 4, 5, 6
# The planes that a command asks many questions of. A single answer has its own omissions.
_PLANES = {
    "list --exposure": ("network",),
    "effective --all": ("gateway",),
    "status": ("network", "tool", "gateway"),
}
# Where omissions are lines on standard output, and where they would spoil it. JSON has them inside.
_LINES, _DATA = ("text", "md"), ("csv", "svg", "dot", "mermaid", "html", "junit", "github", "sarif")
# What the shell completes, by metavar.
_PATHS = {"FILE": "file", "PATH": "file", "OLD NEW": "file", "FOLDER": "dir"}


class ParamField(NamedTuple):
    """The declaration of one field of `Params`. Fields with `last` come last in the help: many commands share them."""

    decorator: Callable[..., Any]
    names: tuple[str, ...]
    settings: dict[str, Any]
    last: bool = False


def _completed(settings: dict[str, Any]) -> dict[str, Any]:
    """Let the shell complete files and folders, where the metavar says that a value is one."""
    kind = _PATHS.get(settings.get("metavar", "").strip("[]."))
    if kind is None or "shell_complete" in settings:
        return settings

    def complete(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, kind)]

    return {**settings, "shell_complete": complete}


def option(*names: str, last: bool = False, section: str = "", **settings: Any) -> Any:
    """Declare a field that an option fills: `--the-field`, unless other names are given. Help shows the default.

    A `section` of the help (`cli/sections.py`) has what many commands share, so it comes last.
    """
    if section:
        settings |= {"cls": SectionedOption, "section": section}
    shown = {"show_default": settings.get("default", "") != "", **_completed(settings)}
    return ParamField(click.option, names, shown, last or bool(section))


def command(name: str, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """Register a function as a command, with the sections of its options in the help."""
    return click.command(name, cls=SectionedCommand, **settings)


def repeated_option(*names: str, **settings: Any) -> Any:
    """Declare a field that an option fills, which may be repeated."""
    return option(*names, multiple=True, **settings)


def flag(help: str, *names: str, **settings: Any) -> Any:
    """Declare a field that is true if an option is given."""
    return option(*names, is_flag=True, help=help, **settings)


def argument(**settings: Any) -> Any:
    """Declare a field that an argument fills."""
    return ParamField(click.argument, (), _completed(settings))


def choice(*words: str, **settings: Any) -> Any:
    """Declare a field that takes one of some words; the first is the default unless `default` is given."""
    return option(type=click.Choice(words), **{"default": words[0], **settings})


# Of `run`, `compile envoy` and `status` (`tool.profile`).
TOOL_PROFILE = choice(
    "tierwall",
    "kube-agentic-networking",
    help="Whose words denials and statuses of AccessPolicies use; verdicts stay the same.",
)


def output(command: str) -> Any:
    """Declare `-o FORMAT`, with the formats of a command in `render.formats`; the first is the default."""
    from tierwall.render.formats import FORMATS

    words = tuple(FORMATS[command])
    return option("-o", "--output", last=True, type=click.Choice(words), default=words[0], help="Output format.")


class Params:
    """The options of a command, each declared once as a field. An instance has the values of the command line."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"`{name}` is set by the command line alone")

    @classmethod
    def fields(cls) -> Iterator[tuple[str, ParamField]]:
        """Return the fields in the order of the help: those of base classes first, those with `last` last."""
        fields = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
        declared = [(name, field) for name, field in fields.items() if isinstance(field, ParamField)]
        return iter(sorted(declared, key=lambda item: item[1].last))


P = TypeVar("P", bound=Params)
# The options of each command, by its function.
_PARAMS: dict[Callable[..., None], type[Params]] = {}


def read_params(context: click.Context) -> Params:
    """Return the options of a command line that click has read, without running the command."""
    assert context.command.callback is not None
    return _PARAMS[context.command.callback](**context.params)


def runs(params: type[P]) -> Callable[[Callable[[P], int | None]], Callable[..., None]]:
    """Turn a function of one `Params` value into a function that click can call.

    The function returns the exit code, or nothing for 0. InputError and a missing extra are shown
    and end the command with exit code 1.
    """

    def decorate(function: Callable[[P], int | None]) -> Callable[..., None]:
        @wraps(function)
        def run(**given: Any) -> None:
            from tierwall.core.diagnostics import InputError

            try:
                code = function(params(**given))
            except (InputError, ModuleNotFoundError) as error:
                if isinstance(error, ModuleNotFoundError):
                    from tierwall.core.extras import missing_extra

                    error = missing_extra(error)
                print_diagnostics(error.diagnostics, *([error.read] if error.read is not None else worlds_read()))
                code = FAILED
            if given.get("strict") and code in (None, 0, DENIED, HAS_FINDINGS, CONDITIONAL) and _is_incomplete():
                code = INCOMPLETE
            if code:
                sys.exit(code)

        for name, field in reversed(list(params.fields())):
            names = field.names or _names(field, name)
            run = field.decorator(*names, name, **{**_metavar(names, field.settings), **field.settings})(run)
        _PARAMS[run] = params
        return run

    return decorate


def _names(field: ParamField, name: str) -> tuple[str, ...]:
    return () if field.decorator is click.argument else (f"--{name.replace('_', '-')}",)


def _metavar(names: tuple[str, ...], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what the help calls the value of an option that does not say it. Click would say TEXT or FLOAT RANGE."""
    kind = settings.get("type")
    if isinstance(kind, click.IntRange | click.FloatRange):
        return {"metavar": "SECONDS" if isinstance(kind, click.FloatRange) else "NUMBER"}
    long = next((name for name in names if name.startswith("--")), "")
    if kind is not None or not long or settings.get("is_flag") or "/" in long:
        return {}
    return {"metavar": long.rpartition("-")[2].upper()}


def worlds_read() -> list[World]:
    """Return the worlds that the running command has read so far; they have the lines that diagnostics point at."""
    context = click.get_current_context(silent=True)
    return context.meta.setdefault("tierwall.worlds", []) if context is not None else []


def left_out() -> dict[Omission, None]:
    """Return what the running command has left out so far, in order."""
    context = click.get_current_context(silent=True)
    return context.meta.setdefault("tierwall.omissions", {}) if context is not None else {}


def _is_incomplete() -> bool:
    """Tell whether something was left out that could change an answer."""
    return not all(omission.is_harmless for omission in left_out())


def leave_out(command: str, subject: Any) -> dict[Omission, None]:
    """Note what the result of a command did not consider, for `--strict`; return all that the command left out."""
    omissions = left_out()
    for world in worlds_read():
        omissions |= dict.fromkeys(world.omissions(*_PLANES.get(command, ())))
    omissions |= dict.fromkeys(getattr(subject, "not_considered", ()))
    return omissions


def print_output(command: str, output: str, subject: Any) -> None:
    """Print the result of a command in a format, and what it did not consider."""
    from tierwall.render.formats import View, renderer

    omissions = leave_out(command, subject)
    view = View(_line_lookup(worlds_read()), tuple(omissions), sys.stdout.isatty(), colour(sys.stdout))
    rendered = renderer(command, output)(subject, view)
    if isinstance(rendered, dict):
        from tierwall.render.json import dump

        rendered = dump(rendered)
    # The annotations for GitHub begin with what is escaped elsewhere.
    print_lines(rendered.split("\n") if isinstance(rendered, str) else rendered, commands=output == "github")
    if output in (*_LINES, *_DATA):
        is_data = output in _DATA or command in (
            "can-i",
            "can-i --widest",
        )  # People compare the text of `can-i` with `yes`.
        # One line for kinds of the same name in several groups.
        for text in dict.fromkeys(map(str, omissions)):
            print_line(f"not considered: {text}", err=is_data)


def print_unread(world: World, *planes: str) -> None:
    """Print to stderr the kinds of a cluster that could not be read although an engine would enforce their objects."""
    unread = (omission for omission in world.omissions(*planes) if omission.why and omission.owner is None)
    print_lines(dict.fromkeys(f"not considered: {omission}" for omission in unread), err=True)


def print_lines(lines: Iterable[str], err: bool = False, commands: bool = False) -> None:
    """Print lines until nobody reads any more; no line from input can fake another one.

    See docs/semantics.md#output-cannot-be-forged.
    """
    from tierwall.cli.streams import failure
    from tierwall.core.unprintable import PrintableLine, escape_unprintable, printable_line

    escape = escape_unprintable if commands else printable_line
    for line in lines:
        if not err and failure(sys.stdout) is not None:
            break
        click.echo(line if isinstance(line, PrintableLine) else escape(line), err=err)


def print_line(line: str, err: bool = False) -> None:
    """Print one line."""
    print_lines((line,), err)


def print_diagnostics(diagnostics: Iterable[Diagnostic], *read: Any) -> None:
    """Print diagnostics to stderr; on a terminal with the offending line, which `read` has."""
    from tierwall.render import text

    print_lines(text.diagnostics(diagnostics, _line_lookup(read), sys.stderr.isatty(), colour(sys.stderr)), err=True)


def _line_lookup(sources: Iterable[Any]) -> Callable[[str, int], str | None]:
    """Make a function that looks up a line of a file in what was read."""

    def line(file: str, number: int) -> str | None:
        return next((text for source in sources if (text := source.line(file, number)) is not None), None)

    return line


def print_report(report: EngineReport) -> None:
    """Print the report of an engine to stderr, after its diagnostics."""
    print_diagnostics(report.diagnostics, *([report.read] if report.read is not None else []))
    print_line(report.summary, err=True)


def fail(*lines: str, code: int = FAILED) -> NoReturn:
    """Print to stderr why the command ends here, and exit."""
    sys.stdout.flush()
    print_lines(lines, err=True)
    sys.exit(code)


def exit_code(verdict: Verdict | StepVerdict | None) -> int:
    """Return the exit code of a verdict; 0 for settings, which have no verdict."""
    codes = {"Deny": DENIED, "NoOpinion": DENIED, "Conditional": CONDITIONAL}
    return codes.get(str(verdict), 0)


def colour(stream: Any) -> bool:
    """Tell whether to colour: on a terminal that can, unless NO_COLOR is set."""
    import os

    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def address(text: str, option: str, default_host: str = "") -> tuple[str, int]:
    """Read `HOST:PORT`. The host may be left out where there is a default."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or default_host
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"expected HOST:PORT, found `{text}`", param_hint=option)
    return host, int(port)


def named_values(texts: Iterable[str], option: str, form: str = "NAME=VALUE") -> list[tuple[str, str]]:
    """Read `NAME=VALUE` (or another form with one separator); space around the name and the value does not count."""
    separator = form.strip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")[0]
    pairs = []
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition(separator))
        if not sign or not name:
            raise click.BadParameter(f"expected {form}, found `{text}`", param_hint=option)
        pairs.append((name, value))
    return pairs
