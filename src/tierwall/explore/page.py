"""The form of a page: a document, the same facts as markup, and the command that prints them (docs/explorer.md)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct

from tierwall.core.answer import Decider, Omission
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.reference import Reference
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.explore.markup import Child, Markup, joined, spoken, tag
from tierwall.render.json import diagnostic_document, dump
from tierwall.resources.load import LoadResult
from tierwall.world import World

# Query parameters by name; a name may be repeated.
Query = Mapping[str, tuple[str, ...]]
# The word, the shape and the class of each verdict: never colour alone.
_VERDICTS = {
    "Allow": ("Allowed", "✓", "allow"),
    "Deny": ("Denied", "▬", "deny"),
    "Conditional": ("Conditional", "◆", "conditional"),
    "NoOpinion": ("No opinion", "○", "quiet"),
    "Pass": ("Passed on", "↓", "quiet"),
    "NoMatch": ("No match", "·", "quiet"),
    "NotApplicable": ("Not under policy", "–", "quiet"),
}


class ExploredWorld(Struct, frozen=True):
    """The world that pages show, how it was read, and the options that make a command read the same."""

    world: World
    loaded: LoadResult
    # `-f manifests/ --context prod`, quoted for a shell.
    options: str = ""
    # Where the objects come from, in words, and when they were read, as in RFC 3339; empty if nobody asks.
    source: str = ""
    as_of: str = ""
    # How kubectl is called for the cluster that was read.
    kubectl: str = "kubectl"

    @property
    def has_namespace(self) -> bool:
        """Whether the options name a namespace: commands of the API plane take it as that of the request."""
        return "-n" in shlex.split(self.options)

    def command(self, *words: str) -> str:
        """Return the command that prints what a page shows."""
        return " ".join(filter(None, ("tierwall", *map(shlex.quote, words), self.options)))


class Page(Struct, frozen=True):
    """One page. `document` is what `?format=json` answers; `body` shows the same.

    A document that may be long is a function that returns it as JSON.
    """

    title: str
    document: Any
    body: Markup
    # The command that prints the same; empty if no command does.
    command: str = ""
    # The entry of the navigation that it belongs to.
    room: str = ""
    status: int = 200
    # The question that the ask field shows.
    asked: str = ""
    # Where another page answers this: the browser is sent there.
    moved_to: str = ""
    # Further scripts, by name.
    scripts: tuple[str, ...] = ()

    def json(self) -> str:
        """Return the document as JSON."""
        return str(self.document()) if callable(self.document) else dump(self.document)


def first(query: Query, name: str) -> str:
    """Return the last value of a parameter, or an empty string."""
    values = query.get(name, ())
    return values[-1].strip() if values else ""


def given(query: Query, name: str) -> tuple[str, ...]:
    """Return all values of a parameter that are not empty."""
    return tuple(value.strip() for value in query.get(name, ()) if value.strip())


def counted(number: int, noun: str) -> str:
    """Return a number as people read it, with its noun: `1 pod`, `10,000 pods`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def page_number(query: Query) -> int:
    """Return which page of a long list is wanted, from 1."""
    number = first(query, "page")
    return max(1, int(number)) if number.isascii() and number.isdigit() and len(number) < 7 else 1


def page_links(path: str, page: int, last: int | None, label: str, /, **terms: Any) -> Markup:
    """Make the links from one page of a long list to its neighbours; without `last` nobody knows how many there are."""
    number = f" Page {page:,} of {last:,} " if last is not None else f" Page {page:,} "
    return tag(
        "nav",
        link("Previous", address(path, **terms, page=page - 1)) if page > 1 else None,
        tag("span", number),
        link("Next", address(path, **terms, page=page + 1)) if last is None or page < last else None,
        class_="pages",
        aria_label=label,
    )


def address(path: str, /, **query: Any) -> str:
    """Return an address inside the explorer. Empty values are left out."""
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        values = value if isinstance(value, list | tuple) else (value,)
        pairs += [(name.rstrip("_"), str(each)) for each in values if each not in (None, "")]
    return f"{path}?{urlencode(pairs)}" if pairs else path


def policy_address(reference: Reference, group: str = "") -> str:
    """Return the address of an object's own page."""
    kind = f"{reference.kind}.{group}" if group else reference.kind
    parts = (kind, *((reference.namespace,) if reference.namespace else ()), reference.name)
    return "/policy/" + "/".join(quote(part, safe="") for part in parts)


def opening(title: str, *summary: Child, announced: bool = False) -> Markup:
    """Make what a page begins with: its title and a sentence or two, `announced` if they are a result."""
    words = any(part is not None and part != "" for part in summary)
    role = "status" if announced else None
    return joined(tag("h1", title), tag("p", summary, class_="summary", role=role) if words else None)


def link(text: Child, href: str, **attributes: Any) -> Markup:
    """Make a link inside the explorer."""
    return tag("a", text, href=href, **attributes)


def object_link(reference: Reference | str) -> Markup:
    """Make a link to an object; an authorizer or `Default` is only text."""
    if not isinstance(reference, Reference):
        return tag("span", reference)
    whole = Reference(reference.kind, reference.namespace, reference.name)
    return link(str(reference), policy_address(whole, reference.group), class_="object")


def decider_links(deciders: Iterable[Decider]) -> Markup:
    """Name who decided, each with a link to its manifest."""
    parts: list[Child] = []
    for decider in deciders:
        rule = f" {decider.rule}" if decider.rule and decider.rule != "spec" else ""
        name = f" ({decider.name})" if decider.name else ""
        parts += [", " if parts else "", object_link(decider.policy), rule, name]
    return joined(*parts)


def verdict_mark(verdict: Verdict | StepVerdict | str | None, word: str = "") -> Markup:
    """Show a verdict by word, shape and colour together."""
    words, shape, name = _VERDICTS.get(str(verdict), (str(verdict), "·", "quiet"))
    return tag(
        "span", tag("span", shape, class_="shape", aria_hidden="true"), " ", word or words, class_=f"verdict {name}"
    )


def omission_list(omissions: Iterable[Omission]) -> Markup:
    """Say what was not considered; nothing if nothing was left out."""
    lines = dict.fromkeys(map(str, omissions))
    if not lines:
        return Markup("")
    return tag(
        "section",
        tag("h2", "Not considered"),
        tag("ul", [tag("li", spoken(line)) for line in lines]),
        class_="omissions",
    )


def problem_list(diagnostics: Iterable[Diagnostic]) -> Markup:
    """Name everything that is wrong with a question or a change."""
    items = []
    for problem in diagnostics:
        place = tag("code", str(problem.at)) if problem.at is not None else None
        hint = tag("p", spoken(problem.hint), class_="hint") if problem.hint else None
        items.append(tag("li", tag("p", place, " " if place else "", spoken(problem.message)), hint))
    return tag("div", tag("ul", items, class_="problems"), role="alert")


def failed(title: str, error: InputError, room: str, lead: str = "", **more: Any) -> Page:
    """Return the page of a question that cannot be answered: all its problems, with hints."""
    body = joined(opening(title, lead), problem_list(error.diagnostics))
    document = {"diagnostics": [diagnostic_document(problem) for problem in error.diagnostics]}
    unknown = all(problem.code == "TW704" for problem in error.diagnostics)
    return Page(title, document, body, room=room, status=404 if unknown else 400, **more)


def table(heads: Iterable[Child], rows: Iterable[Markup], label: str, **attributes: Any) -> Markup:
    """Make a table that scripts can sort and filter, in a box that scrolls by itself."""
    head = tag("tr", [tag("th", name, scope="col") for name in heads])
    return tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", rows), data_sortable=True, **attributes),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=label,
    )


def row(*cells: Child, **attributes: Any) -> Markup:
    """Make a row of a table."""
    return tag("tr", [tag("td", cell) for cell in cells], **attributes)
