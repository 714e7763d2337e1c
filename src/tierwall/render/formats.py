"""The table of output formats: for each command and format, the function that writes it.

A function takes what the command found and a `View`. It returns lines, a string, or a document that is written as JSON.
Adding a format: write such a function in the module of its subject, and add a line here. `-o` offers the formats of
this table; the first format of a command is its default.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from tierwall.core.answer import Omission

# Returns a line of a file as it was read, or None.
LineLookup: TypeAlias = Callable[[str, int], str | None]
Rendered: TypeAlias = Iterable[str] | str | dict[str, Any]


def no_line(file: str, number: int) -> None:
    """Return None for every line: no file was read."""


class View(Struct, frozen=True):
    """The context of a format: source lines, omissions, and what the terminal can show."""

    line: LineLookup = no_line
    not_considered: tuple[Omission, ...] = ()
    terminal: bool = False
    colour: bool = False


# Formats of connections: lists of entries, and pictures of groups of endpoints.
LISTS = {
    "text": "connections:text",
    "json": "connections:json",
    "csv": "connections:comma_separated",
    "md": "connections:markdown",
}
PICTURES = {
    "svg": "svg:drawing",
    "dot": "pictures:dot",
    "mermaid": "pictures:mermaid",
    "html": "tierwall.explore.one_file:list_page",
}

# `module:function` below `render`, or with its whole name if it is a page of the explorer, by command,
# or by command and the option that changes its output.
FORMATS: Mapping[str, Mapping[str, str]] = {
    "check": {
        "text": "findings:text",
        "json": "findings:document",
        "sarif": "findings:sarif",
        "github": "findings:github",
        "junit": "junit:findings",
    },
    "test": {"text": "cases:text", "json": "cases:document", "junit": "junit:cases"},
    "explain": {"text": "text:explanation", "json": "json:answer_document"},
    "effective --all": {
        "text": "text:explanations",
        "json": "json:answers_document",
        "md": "settings_review:markdown",
        "html": "settings_review:page",
    },
    "effective --why": {"text": "field_stack:text", "json": "field_stack:document", "md": "field_stack:markdown"},
    "can-i": {"text": "api:yes_or_no", "json": "json:answer_document"},
    "can-i --widest": {"text": "api:selector_lines", "json": "api:selector_list"},
    "can-i --list": {"text": "api:permission_table", "json": "api:permissions_document"},
    "tools": {"text": "tool:tools", "json": "tool:tools_document"},
    "tools --from-log": {"text": "tool_usage:text", "json": "tool_usage:document"},
    "status": {"text": "status:text", "json": "status:document"},
    "list": {**{name: path.replace("connections:", "listing:") for name, path in LISTS.items()}, **PICTURES},
    "list --exposure": LISTS,
    "diff": {
        **LISTS,
        **PICTURES,
        "text": "differences:text",
        "json": "differences:document",
        "md": "differences:markdown",
        "svg": "svg:drawing_of_changes",
        "html": "tierwall.explore.one_file:difference_page",
    },
    "diff --prove": {"text": "proofs:text", "json": "proofs:document", "md": "proofs:markdown"},
    "audit": {"text": "engines:events", "json": "engines:events_json"},
    "audit --hits": {"text": "engines:hits", "json": "engines:hits_json", "prometheus": "engines:metrics"},
    "compile envoy": {"yaml": "envoy:text", "json": "envoy:document"},
    "convert": {"yaml": "manifests:crds_yaml", "json": "manifests:crds_json"},
    "crds": {"yaml": "manifests:crds_yaml", "json": "manifests:crds_json"},
    "cel partial": {"text": "cel:residual", "json": "cel:residual_line"},
}


def renderer(command: str, output: str) -> Callable[[Any, View], Rendered]:
    """Import the function that writes a format."""
    module, _, name = FORMATS[command][output].partition(":")
    whole = module if module.startswith("tierwall.") else f"tierwall.render.{module}"
    function: Callable[[Any, View], Rendered] = getattr(importlib.import_module(whole), name)
    return function
