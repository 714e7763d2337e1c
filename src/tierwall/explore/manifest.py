"""Manifests as pages show them: lines with numbers, and the lines of a rule marked.

A file is shown as it was read. An object of a cluster has no lines (docs/clusters.md#where-a-rule-stands), so it is
written as YAML, and read again to know where its parts are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tierwall.core.answer import Step
from tierwall.core.source import Path
from tierwall.explore.markup import Child, Markup, tag
from tierwall.render.formats import LineLookup
from tierwall.render.manifests import to_yaml
from tierwall.resources.load import load_text
from tierwall.resources.resource import Resource

# The most lines of a manifest, and characters of a line, that a page shows; lines around a rule.
MAX_LINES, MAX_LINE, AROUND = 600, 400, 2
_OF_SERVER = frozenset({"managedFields", "resourceVersion", "uid", "selfLink", "generation"})
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Manifest(Struct, frozen=True):
    """The text of one object: its lines, the number of the first, and the file; without one it was written anew."""

    lines: tuple[str, ...]
    first: int
    file: str
    resource: Resource
    is_cut: bool = False
    # Where the object stands if its text was written anew.
    written_from: str = "as the cluster has it"

    def marked_lines(self, path: Path) -> range:
        """Return the lines of a part: from where it begins to the line before something is indented no deeper."""
        at = self.resource.position(path)
        if at is None or at.is_in_cluster or not self.first <= at.line < self.first + len(self.lines):
            return range(0)
        key = self.resource.position(path, key=True)
        start = min(at.line, key.line) if key is not None else at.line
        head = self.lines[start - self.first]
        depth = _depth(head)
        end = start + 1
        while end < self.first + len(self.lines):
            line = self.lines[end - self.first]
            is_item = line.lstrip().startswith("- ") and not head.lstrip().startswith("- ")
            if line.strip() and not (_depth(line) > depth or (_depth(line) == depth and is_item)):
                break
            end += 1
        return range(start, end)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def manifest(resource: Resource, line: LineLookup) -> Manifest:
    """Return the text of an object."""
    at = resource.position()
    # An item of a List has no end of its own in the file, and JSON is often one line.
    is_alone = at is not None and not at.is_in_cluster and not resource.prefix and not at.file.endswith(".json")
    if at is None or not is_alone or line(at.file, at.line) is None:
        text = to_yaml([shown_value(resource)]).removeprefix("---\n")
        read = load_text(text, str(resource.reference))
        again = read.resources[0] if read.resources else resource
        lines = text.rstrip("\n").split("\n")
        in_file = f"{at.file}:{at.line}, written as YAML" if at is not None and not at.is_in_cluster else ""
        anew = Manifest(tuple(lines[:MAX_LINES]), 1, "", again, len(lines) > MAX_LINES)
        return replace(anew, written_from=in_file) if in_file else anew
    number = at.line
    lines = []
    while len(lines) <= MAX_LINES and (text_line := line(at.file, number)) is not None:
        if lines and text_line.startswith(("---", "...")):
            break
        lines.append(text_line.rstrip("\r\n"))
        number += 1
    while lines and not lines[-1].strip():
        lines.pop()
    return Manifest(tuple(lines[:MAX_LINES]), at.line, at.file, resource, len(lines) > MAX_LINES)


def shown_value(resource: Resource) -> dict[str, Any]:
    """Return an object without what servers keep in it for themselves."""
    metadata = {key: value for key, value in resource.metadata.items() if key not in _OF_SERVER}
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict) and _LAST_APPLIED in annotations:
        metadata["annotations"] = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}
    value = {key: part for key, part in resource.value.items() if key != "status"}
    return {**value, "metadata": metadata} if metadata else value


def listing(shown: Manifest, marked: Iterable[int] = (), label: str = "", only_marked: bool = False) -> Markup:
    """Show a manifest with line numbers and marked lines. With `only_marked`, only what is around them."""
    marks = set(marked)
    wanted = {near for number in marks for near in range(number - AROUND, number + AROUND + 1)}
    rows: list[Child] = []
    last = 0
    for number, text in enumerate(shown.lines, shown.first):
        if only_marked and number not in wanted:
            continue
        if only_marked and last and number > last + 1:
            rows.append(tag("li", "⋯", class_="gap", aria_hidden="true"))
        last = number
        cut = text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}…"
        content = tag("mark", cut) if number in marks else cut
        number_tag = tag("span", str(number), class_="number", aria_hidden="true")
        anchor = None if only_marked else f"L{number}"
        hit = "hit" if number in marks else None
        rows.append(tag("li", number_tag, tag("code", content), id=anchor, class_=hit))
    if shown.is_cut:
        rows.append(tag("li", "… the manifest is longer", class_="gap"))
    where = shown.file or shown.written_from
    return tag(
        "figure",
        tag("figcaption", where),
        tag("ol", rows, class_="manifest", tabindex="0", role="list", aria_label=label or where),
    )


def quoted_steps(steps: Sequence[Step], line: LineLookup) -> list[tuple[Resource, Markup]]:
    """Return the manifests of some steps, each object once, with the lines of their rules marked."""
    by_object: dict[Resource, list[Path]] = {}
    for step in steps:
        if isinstance(step.origin, Resource):
            by_object.setdefault(step.origin, []).append(step.path)
    shown = []
    for resource, paths in by_object.items():
        text = manifest(resource, line)
        marked = [number for path in paths for number in text.marked_lines(path)]
        label = f"{resource.reference}, the lines that count"
        shown.append((resource, listing(text, marked or range(text.first, text.first + 4), label, only_marked=True)))
    return shown
