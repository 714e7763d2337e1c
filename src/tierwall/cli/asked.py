"""A question as the command line takes it, inside an option: `--for 'network --from a/b --to c/d --port 1'`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import click

from tierwall.cli.command import read_params
from tierwall.cli.main import COMMANDS, Lazy, LazyGroup
from tierwall.cli.objects import QuestionParams

_OPTION = "--for"
# The options of `snapshot` itself.
_OF_SOURCES = ("cluster", "context", "kubeconfig", "cluster_as", "cluster_as_group", "files", "without", "exclude")
# The options that hold names of objects, users or hosts.
_NAMES = frozenset(
    (
        *("source", "destination", "gateway", "listener", "listener_set", "route", "rule", "backend", "caller", "host"),
        *("backend_section", "user", "groups", "uid", "namespace", "name"),
    )
)
# Headers whose values are kept.
_TYPES = ("content-type", "accept")


def question_commands() -> Mapping[str, Lazy]:
    """Return the commands that ask one question, by the words that begin it."""
    from tierwall.cli.groups import QUESTIONS

    return {**QUESTIONS, **{name: COMMANDS[name] for name in ("can-i", "effective")}}


class AskedQuestion:
    """One question, with the words that ask it."""

    def __init__(self, text: str) -> None:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise click.BadParameter(f"cannot be read: {str(error).lower()}", param_hint=_OPTION) from None
        while words[:1] and words[0] in ("tierwall", "explain"):
            words = words[1:]
        group = LazyGroup(lazy=question_commands())
        context = click.Context(group, info_name=f"tierwall snapshot {_OPTION}")
        command = group.get_command(context, words[0]) if words else None
        if command is None:
            known = ", ".join(question_commands())
            raise click.BadParameter(f"expected a question that begins with one of {known}", param_hint=_OPTION)
        self.name = words[0]
        self._context = command.make_context(words[0], words[1:], parent=context)
        params = read_params(self._context)
        assert isinstance(params, QuestionParams)
        # The objects are those of the snapshot.
        vars(params)["cluster_to_read"] = None
        given = [name for name in _OF_SOURCES if self._context.params.get(name)]
        if params.namespace is not None and self.name not in ("api", "can-i"):
            given.append("namespace")
        if given:
            name = "-f" if given[0] == "files" else f"--{given[0].replace('_', '-')}"
            raise click.UsageError(f"{_OPTION} takes a question alone: give {name} to `snapshot`")
        self.params = params

    def renamed(self, rename: Callable[[str], str]) -> str:
        """Return the question with other names."""
        words: list[str] = [self.name]
        for parameter in self._context.command.params:
            value = self._context.params.get(parameter.name or "")
            if value is None or value == parameter.get_default(self._context) or value == ():
                continue
            if isinstance(parameter, click.Option) and parameter.is_flag:
                words.append(parameter.opts[-1])
                continue
            for item in value if isinstance(value, tuple) else (value,):
                words += (parameter.opts[-1],) if isinstance(parameter, click.Option) else ()
                words.append(_renamed(parameter.name or "", str(item), rename))
        return shlex.join(words)


def _renamed(option: str, text: str, rename: Callable[[str], str]) -> str:
    if option in _NAMES:
        return rename_name(text, rename)
    if option == "gateway_pods":  # NAMESPACE/KEY=VALUE,…
        namespace, _, labels = text.partition("/")
        pairs = (pair.partition("=") for pair in labels.split(","))
        return f"{rename(namespace)}/{','.join(f'{rename(key)}={rename(value)}' for key, _, value in pairs)}"
    separator: Any = {"what": "/", "answers": "=", "headers": ":"}.get(option)
    if separator is None or separator not in text or text.startswith("/"):
        return text
    before, _, after = text.partition(separator)
    if option == "what":  # RESOURCE/NAME
        return f"{before}/{rename(after)}"
    if option == "headers":
        return text if before.strip().lower() in _TYPES else f"{before}:{rename(after)}"
    return f"{rename_name(before, rename)}={after}"


def rename_name(text: str, rename: Callable[[str], str]) -> str:
    """Return a name in other words. Kinds, `node:` and `outside` stay as they are."""
    if text == "outside":
        return text
    if text.startswith("node:"):
        return f"node:{rename(text.removeprefix('node:'))}"
    kind, slash, rest = text.partition("/")
    if slash and kind[:1].isupper() and kind.replace(".", "").isalpha():
        return f"{kind}/{rename(rest)}"
    return rename(text)
