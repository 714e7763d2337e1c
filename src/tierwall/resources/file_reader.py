"""Parse the text of a file, and tell a broken file from one that does not hold objects (`resources.forms`).

Two objects in one document, for which a `---` is missing, make the document unreadable: of a repeated key the last one
counts, so that the first object would vanish without a word.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tierwall.core.diagnostics import MAX_OF_FILE, Diagnostic
from tierwall.core.source import Position
from tierwall.resources.document import Document, SourceText
from tierwall.resources.file_cache import CachedFile, Stamp
from tierwall.resources.yaml.read import StreamReader

_PROBE = 8192
_CHART_FILES = ("Chart.yaml", "Chart.yml")


class FileReader:
    """Parses one file after another. With `skips`, only manifests can be broken; with `plain`, every file can."""

    def __init__(self, max_depth: int, skips: bool = False, plain: bool = False) -> None:
        self._stream = StreamReader(max_depth)
        self._skips = skips
        self._plain = plain
        self._charts: dict[str, bool] = {}

    def parse_text(self, source: SourceText) -> CachedFile:
        """Parse a text, whose first mistake says more than that it is binary."""
        return self._checked(source, *self._stream.read(source))

    def parse(self, source: SourceText, known: Sequence[Document] = (), lasting: Stamp | None = None) -> CachedFile:
        """Parse a file; a document with the text of a known one reuses its value."""
        if not self._plain and b"{{" in source.data and self._is_in_chart(source.name):
            from tierwall.resources.forms import TEMPLATE

            return CachedFile(lasting, source, (), (), TEMPLATE)
        if problem := _binary(source):
            return self._checked(source, [], [problem], lasting)
        return self._checked(source, *self._stream.read(source, known), lasting)

    def _checked(
        self,
        source: SourceText,
        documents: list[Document],
        problems: list[Diagnostic],
        lasting: Stamp | None = None,
    ) -> CachedFile:
        if self._plain:
            return CachedFile(lasting, source, tuple(documents), tuple(problems))
        if problems and (form := self._form_of_unreadable(source, problems)):
            return CachedFile(lasting, source, (), (), form)
        joined = [
            (document, position)
            for document in documents
            if (document.is_json or document.repeats_keys) and (position := document.second_top_key()) is not None
        ]
        if joined:
            problems += [_joined_objects(source, position) for _, position in joined[:MAX_OF_FILE]]
            left_out = {document for document, _ in joined}
            documents = [document for document in documents if document not in left_out]
        return CachedFile(lasting, source, tuple(documents), tuple(problems))

    def _form_of_unreadable(self, source: SourceText, problems: Sequence[Diagnostic]) -> str:
        from tierwall.resources.forms import OTHER, OTHER_FILE, TEMPLATE, form_of_name, is_manifest, is_template

        if any(problem.code == "TW002" for problem in problems) and is_template(source.data):
            return TEMPLATE
        if is_manifest(source.data):
            return ""
        # Such as a tsconfig.json with comments, which is not JSON and holds no object.
        form = form_of_name(os.path.basename(source.name))
        return form if form != OTHER else OTHER_FILE if self._skips else ""

    def _is_in_chart(self, path: str) -> bool:
        """Tell whether a file is below the `templates` folder of a chart."""
        parts = path.split("/")
        for depth, part in enumerate(parts[:-1]):
            if part == "templates":
                chart = "/".join(parts[:depth]) or ("/" if path.startswith("/") else ".")
                if chart not in self._charts:
                    self._charts[chart] = any(os.path.isfile(os.path.join(chart, name)) for name in _CHART_FILES)
                if self._charts[chart]:
                    return True
        return False


def _joined_objects(source: SourceText, position: Position) -> Diagnostic:
    key = source.line(position.line)[position.column - 1 :].partition(":")[0].strip("\"'{ ")
    return Diagnostic(
        "TW015",
        f"`{key}` is repeated: two objects in one document",
        position,
        hint="put a line with `---` between them",
    )


def _binary(source: SourceText) -> Diagnostic | None:
    """Return a diagnostic if the file is not UTF-8 text at all, which says more than the first parse error."""
    probe = source.data[:_PROBE]
    if probe.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Diagnostic("TW005", "text is UTF-16", source.position(0), hint="save the file as UTF-8")
    at = probe.find(b"\0")
    if at < 0:
        return None
    return Diagnostic("TW005", "file is binary: it has a zero byte", source.position(at))
