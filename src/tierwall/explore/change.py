"""`/change`: manifests that lie over the world, and what they open, close and alter on all planes.

Nothing is applied. The result has the document of `tierwall diff`, and the findings that the change brings.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

from msgspec import Struct

from tierwall.analyze.diff import PlaneComparison, compare, differences
from tierwall.analyze.difference import OF_CONNECTIONS
from tierwall.analyze.network_kept import provide_network_findings
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.explore.findings import finding_item
from tierwall.explore.manifest import shown_value
from tierwall.explore.markup import Child, Markup, joined, raw_text, spoken, tag
from tierwall.explore.page import (
    ExploredWorld,
    Page,
    Query,
    first,
    omission_list,
    opening,
    problem_list,
)
from tierwall.explore.review import checked
from tierwall.network.model.model import provide_network_model
from tierwall.network.reach.own_classes import provide_own_rows
from tierwall.render.connections import BESIDE
from tierwall.render.differences import difference_document, grouped, reasons, sentence, summary
from tierwall.render.json import diagnostic_document, dump, omission_documents
from tierwall.render.manifests import to_yaml
from tierwall.resources.load import load_text
from tierwall.resources.overlay import overlay
from tierwall.world import World

NAME = "change.yaml"
# The most bytes of a change, sentences and findings of a result on a page, and objects that the editor offers.
MAX_BYTES, MAX_SHOWN, MAX_OFFERED = 4 << 20, 100, 2000
# The sentences that stand open, so that the findings are not far below; the rest unfolds.
OPEN = 12
_WORDS = {"opens": ("+", "opens", "allow"), "closes": ("−", "closes", "deny"), "alters": ("~", "alters", "conditional")}


class NotWanted(Exception):
    """Nobody waits for the comparison any more: somebody has typed on."""


class ChangeResult(Struct, frozen=True):
    """The effects of a change: the differences, the findings that it brings, or the problems with it."""

    old: World
    new: World
    compared: PlaneComparison
    findings: tuple[Diagnostic, ...] = ()
    problems: tuple[Diagnostic, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the document of `diff -o json`, with the findings that the change brings."""
        if self.problems:
            return {"diagnostics": [diagnostic_document(problem) for problem in self.problems]}
        # One question for each group of connections: what is made for a page has the groups themselves.
        on_network = (
            differences(self.old.snapshot, self.new.snapshot, ("network",)) if self.compared.connections else ()
        )
        every = [*on_network, *self.compared.differences]
        return {
            "differences": [difference_document(difference) for difference in every],
            "findings": [diagnostic_document(finding) for finding in self.findings],
            "notConsidered": omission_documents(self.compared.not_considered),
        }


def changed(
    explored: ExploredWorld, text: str, grouped: bool = True, is_wanted: Callable[[], bool] = lambda: True
) -> ChangeResult:
    """Lay manifests over the world and compare; all that is wrong with them is in the result.

    A page has connections `grouped`, a document has a question for each group. Between its steps, the comparison ends
    with NotWanted once nobody waits for it.
    """
    _look_whether(is_wanted)
    world = explored.world
    loaded = load_text(text, NAME, world.namespace)
    if loaded.errors or not text.strip():
        problems = loaded.errors if text.strip() else ()
        return ChangeResult(world, world, PlaneComparison(), problems=tuple(problems))
    known = {_fact(finding) for finding in checked(explored).findings}
    new = World(overlay(world.snapshot, loaded.resources), loaded.diagnostics, loaded.read, world.namespace)
    provide_network_model(world.snapshot, new.snapshot)
    provide_own_rows(world.snapshot, new.snapshot)
    provide_network_findings(world.snapshot, new.snapshot)
    _look_whether(is_wanted)
    try:
        compared = compare(world.snapshot, new.snapshot, grouped=grouped, most=MAX_SHOWN if grouped else None)
    except InputError as error:
        # An API server would not start with such a configuration, so there is nothing to compare.
        return ChangeResult(world, new, PlaneComparison(), problems=error.diagnostics)
    _look_whether(is_wanted)
    brought = (finding for finding in new.review().findings if _fact(finding) not in known)
    return ChangeResult(world, new, compared, tuple(brought))


def _look_whether(is_wanted: Callable[[], bool]) -> None:
    if not is_wanted():
        raise NotWanted


def _fact(finding: Diagnostic) -> tuple[str, str, str]:
    """Return what a finding says, wherever it stands: lines move when a file changes."""
    return finding.code, str(finding.reference), finding.message


def change(
    explored: ExploredWorld,
    query: Query,
    text: str | None = None,
    as_json: bool = False,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Page:
    """Show the editor; with a text, also what it changes. The document is at hand sooner with `as_json`."""
    name = first(query, "object")
    text = _start(explored, name) if text is None else text
    result = changed(explored, text, not as_json, is_wanted)
    shown = tag("div", result_body(result), id="result", aria_busy="false")
    # The editor's script has the rest of the page already.
    body = (
        shown
        if first(query, "format") == "html"
        else joined(
            opening("What would this change?", "Manifests below lie over what is loaded. Nothing is applied."),
            tag(
                "form",
                tag("label", "Start from ", _offers(explored, name), class_="offer"),
                tag("label", "Manifests", for_="manifests"),
                tag(
                    "textarea",
                    raw_text(text),
                    id="manifests",
                    name="manifests",
                    rows=16,
                    spellcheck="false",
                    autocapitalize="off",
                    autocomplete="off",
                    aria_describedby="editor-help",
                ),
                tag("p", "Tab leaves the field. The result follows as you type.", id="editor-help", class_="hint"),
                tag(
                    "div",
                    tag("button", "Compare", type="submit"),
                    tag("button", "Undo", type="button", data_action="undo", hidden=True),
                    tag("button", "Redo", type="button", data_action="redo", hidden=True),
                    tag("button", "Download patch", type="button", data_action="download", hidden=True),
                    tag(
                        "button",
                        "Copy kubectl command",
                        type="button",
                        data_action="kubectl",
                        data_command=_kubectl_command(explored),
                        hidden=True,
                    ),
                    tag("button", "Copy link", type="button", data_action="link", hidden=True),
                    class_="actions",
                ),
                action="/change",
                method="post",
                id="change-form",
            ),
            shown,
        )
    )
    return Page(
        "Change",
        lambda: dump(result.document()),
        body,
        command=_diff_command(explored),
        room="change",
        scripts=("change.js",),
        status=422 if result.problems else 200,
    )


def _diff_command(explored: ExploredWorld) -> str:
    """Return the command that prints the same: only a cluster without files of its own has one."""
    words = shlex.split(explored.options)
    is_cluster = "--context" in words or "--cluster" in words
    return f"{explored.command('diff')} -f {NAME}" if is_cluster and not {"-f", "--without"} & set(words) else ""


def _kubectl_command(explored: ExploredWorld) -> str:
    """Return the command that applies the downloaded patch, to the cluster that was read, after a rehearsal."""
    return f"{explored.kubectl} apply --dry-run=server -f {NAME} && {explored.kubectl} apply -f {NAME}"


def _start(explored: ExploredWorld, name: str) -> str:
    """Return the manifest of an object to begin with; Secrets are never shown."""
    if not name:
        return ""
    try:
        resource = explored.world.find(name)
    except InputError:
        return ""
    return "" if resource.kind == "Secret" else to_yaml([shown_value(resource)]).removeprefix("---\n")


def _offers(explored: ExploredWorld, chosen: str) -> Markup:
    """Offer the policies of the world to begin with."""
    names = sorted(
        str(resource.reference)
        for resource in explored.world.snapshot
        if "Policy" in resource.kind or "Role" in resource.kind or resource.kind in ("Namespace", "Gateway")
    )[:MAX_OFFERED]
    if chosen and chosen not in names:
        names.insert(0, chosen)
    options = [tag("option", name, value=name, selected=name == chosen) for name in names]
    return tag("select", tag("option", "an empty editor", value=""), options, name="object", data_action="offer")


def result_body(result: ChangeResult) -> Markup:
    """Show what a change does, and the findings that it brings; or what is wrong with it."""
    if result.problems:
        return joined(tag("h2", "It cannot be read yet"), problem_list(result.problems))
    return joined(comparison_body(result.compared, MAX_SHOWN), _findings(result.findings))


def comparison_body(compared: PlaneComparison, limit: int | None = None, size: int | None = None) -> Markup:
    """Show what differs: a summary, then what opens, closes and alters, so many sentences at most.

    With a `size`, sentences beyond so many bytes are counted, and those that are shown can be filtered. Without one,
    all but the first unfold.
    """
    items = [tag("li", item) for item in _items(compared)]
    ends = accumulate(len(item.encode()) for item in items)
    shown: list[Child] = [item for item, end in zip(items[:limit], ends, strict=False) if size is None or end <= size]
    more = len(items) - len(shown) + sum(compared.more.values())
    folded = shown[OPEN:] if size is None else []
    rest = tag("details", tag("summary", f"Show {len(folded)} more"), tag("ul", folded, class_="changes"))
    label = "Filter these changes" if size is not None else None
    beyond = tag("p", f"and {more:,} more", class_="more") if more else None
    words = summary(compared)
    left_out = spoken("; ".join(map(str, compared.cut)))
    cut = tag("p", "Not all was compared: ", left_out, class_="summary") if compared.cut else None
    return joined(
        tag("div", tag("h2", words[:1].upper() + words[1:]), cut, role="status"),
        tag("ul", shown[: len(shown) - len(folded)], class_="changes", data_filter=label) if shown else None,
        rest if folded else None,
        beyond,
        omission_list(compared.not_considered),
    )


def _findings(findings: Iterable[Diagnostic]) -> Markup | None:
    findings = list(findings)
    if not findings:
        return None
    items = [finding_item(finding) for finding in findings[:MAX_SHOWN]]
    title = tag("h2", "Findings that it brings ", tag("span", len(findings), class_="count"))
    return tag("section", title, tag("ul", items, class_="findings"))


def _items(compared: PlaneComparison) -> Iterator[Markup]:
    for entry in compared.connections:
        beside = BESIDE.get(entry.change, "") if entry.partial else ""
        words = f"{entry.sources} → {entry.destinations} : {entry.ports}{beside}"
        why = [tag("p", f"{flow}: {flow.name_deciders()}", class_="why") for flow in entry.flows[:3]]
        yield _item(OF_CONNECTIONS[entry.change], "network", words, why)
    for together in grouped(compared.differences):
        why = [tag("p", reason, class_="why") for reason in reasons(together)]
        yield _item(together[0].change, together[0].plane, sentence(together), why)


def _item(change_word: str, plane: str, words: str, why: list[Markup]) -> Markup:
    shape, word, name = _WORDS[change_word]
    mark = tag("span", tag("span", shape, class_="shape", aria_hidden="true"), f" {word}", class_=f"verdict {name}")
    return joined(mark, " ", tag("span", plane, class_="tier"), " ", words, why)
