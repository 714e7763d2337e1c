"""`/findings`: everything that `tierwall check` finds, by severity, code, namespace or policy, with its witness."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from tierwall.core.catalogue import CATALOGUE, Severity
from tierwall.core.diagnostics import Diagnostic, Diagnostics
from tierwall.core.reference import Reference
from tierwall.explore.markup import Child, Markup, joined, spoken, tag
from tierwall.explore.page import (
    ExploredWorld,
    Page,
    Query,
    address,
    counted,
    first,
    link,
    object_link,
    omission_list,
    opening,
    policy_address,
)
from tierwall.explore.review import checked
from tierwall.render.findings import document
from tierwall.render.formats import View

# The most findings on a page.
MAX_FINDINGS = 300
GROUPINGS = ("severity", "code", "namespace", "policy")
_SHAPES = {"error": ("▬", "deny"), "warning": ("◆", "conditional"), "note": ("○", "quiet")}
_CONNECTION = re.compile(r"(?P<source>\S+) (?:to|->|=>) (?P<destination>\S+)(?: on (?P<ports>.+))?")


def findings(explored: ExploredWorld, query: Query) -> Page:
    """Show the findings, grouped by `?by=`, or those of one severity, code, namespace or policy."""
    everything = checked(explored)
    by = first(query, "by") if first(query, "by") in GROUPINGS else "severity"
    narrowed = {name: first(query, name) for name in GROUPINGS if first(query, name)}
    chosen = Diagnostics(
        finding
        for finding in everything.findings
        if all(group_of(finding, name) == value for name, value in narrowed.items())
    )
    result = replace(everything, reviewed=replace(everything.reviewed, findings=chosen)) if narrowed else everything
    groups: dict[str, list[Diagnostic]] = {}
    for finding in sorted(chosen, key=lambda finding: (_rank(finding), finding.sort_key())):
        groups.setdefault(group_of(finding, by), []).append(finding)
    words = ", ".join(counted(result.severities[word], word) for word in _SHAPES if result.severities[word])
    if accepted := len(result.reviewed.accepted):
        words = f"{words or 'None'}; {accepted:,} more accepted in the manifests"
    nothing = "Nothing is wrong with what was read." if not narrowed else "No finding matches."
    body = joined(
        opening("Findings", words or nothing, announced=True),
        tag(
            "nav",
            [
                link(
                    f"by {name}", address("/findings", by=name, **narrowed), aria_current="true" if name == by else None
                )
                for name in GROUPINGS
            ],
            class_="tabs",
            aria_label="Group the findings",
        )
        if groups
        else None,
        _narrowing(narrowed),
        *_sections(groups, by),
        omission_list(result.not_considered),
    )
    return Page(
        "Findings",
        document(result, View(not_considered=result.not_considered)),
        body,
        command=_command(explored, narrowed),
        room="findings",
    )


def _command(explored: ExploredWorld, narrowed: dict[str, str]) -> str:
    """Return the command that prints these findings; it has an option for codes alone."""
    if set(narrowed) - {"code"}:
        return ""
    return explored.command("check", *(part for code in narrowed.values() for part in ("--select", code)))


def _rank(finding: Diagnostic) -> int:
    return list(Severity).index(finding.severity)


def group_of(finding: Diagnostic, by: str) -> str:
    """Return the group of a finding: its severity, code, namespace or policy."""
    if by == "severity":
        return str(finding.severity)
    if by == "code":
        return finding.code
    if finding.reference is None:
        return "none"
    return str(finding.reference) if by == "policy" else finding.reference.namespace or "cluster-wide"


def _narrowing(narrowed: dict[str, str]) -> Markup | None:
    if not narrowed:
        return None
    words = ", ".join(f"{name} {value}" for name, value in narrowed.items())
    return tag("p", f"Only {words}. ", link("Show all", "/findings"))


def _sections(groups: dict[str, list[Diagnostic]], by: str) -> Iterable[Markup]:
    left = MAX_FINDINGS
    for name, members in groups.items():
        title = f"{name}: {CATALOGUE[name].title}" if by == "code" and name in CATALOGUE else name
        shown = members[: max(left, 0)]
        left -= len(shown)
        more = None
        if len(members) > len(shown):
            more = tag("p", link(f"{len(members) - len(shown):,} more", address("/findings", **{by: name})))
        total = sum(finding.count for finding in members)
        heading = tag("h2", title, " ", tag("span", total, class_="count"))
        yield tag("section", heading, tag("ul", [finding_item(finding) for finding in shown], class_="findings"), more)


def _drawn(example: str) -> Markup:
    """Draw a connection: its two ends, and the ports on the arrow between them. Read aloud, it is the example."""
    parts = _CONNECTION.fullmatch(example)
    if parts is None:
        return tag("span", example)
    return joined(
        tag("span", parts["source"], class_="end"),
        tag("span", " to ", class_="unseen"),
        tag("span", f" {parts['ports'] or ''} ", class_="edge-line"),
        tag("span", parts["destination"], class_="end"),
    )


def _place(finding: Diagnostic) -> Markup:
    """Say where a finding stands, with a link to the line on the page of its object."""
    shown = tag("code", str(finding.at))
    if finding.reference is None or finding.at is None or finding.at.is_in_cluster:
        return shown
    whole = Reference(finding.reference.kind, finding.reference.namespace, finding.reference.name)
    return link(shown, f"{policy_address(whole, finding.reference.group)}#L{finding.at.line}")


def finding_item(finding: Diagnostic) -> Markup:
    """Show one finding: what, where, the hint, and the connection or object that shows it."""
    severity = str(finding.severity)
    shape, name = _SHAPES[severity]
    mark = tag("span", tag("span", shape, class_="shape", aria_hidden="true"), f" {severity}", class_=f"verdict {name}")
    related: list[Child] = [
        tag("li", spoken(words), ": " if at is not None else "", tag("code", str(at)) if at is not None else None)
        for words, at in finding.related[:10]
    ]
    witness = None
    if finding.example:
        href = address("/ask", q=finding.example.replace("=>", "->"))
        witness = tag("p", "Witness: ", link(_drawn(finding.example), href), class_="witness")
    return tag(
        "li",
        tag(
            "p",
            mark,
            " ",
            tag("code", finding.code),
            " ",
            object_link(finding.reference) if finding.reference else None,
        ),
        tag("p", spoken(finding.message), class_="message"),
        tag("p", _place(finding), class_="place") if finding.at is not None else None,
        witness,
        tag("ul", related) if related else None,
        tag("p", spoken(finding.hint), class_="hint") if finding.hint else None,
    )
