"""Keeps vague names and odd sentences out (`make check` runs it): `python -m tests.plain_words [FILE...]`.

Names: a loop variable, parameter or result is called after the thing it holds, never `one`, `found`, `this`, `it` or
`own`. Sentences: docstrings, messages and pages do without the patterns below, each of which has a plainer form.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

VAGUE_NAMES = frozenset({"one", "found", "this", "it", "own"})

# What is odd about a sentence, by the pattern that shows it. Code in backticks is not read.
_NO_NOUN = r"(?<![Tt]here )\b(?:is|are|was|were|be|has been) no (?!longer\b|more\b|less\b|fewer\b|different\b|better\b)"
SENTENCES = {
    rf"{_NO_NOUN}[a-z]": "write `is not a …`",
    r"\b(?:is|are|was|were|be) none\b(?! of\b)": "say what it is not",
    r"\bone (?!(?:of|with|in|as|for|to|by|or|at|is|has|that|from|and|on|under|such|which|was) )[a-z-]+ an? [a-z]+": (
        "write `one … per …`"
    ),
    r"\bsays? (?:else|otherwise|so otherwise)\b": "say who decides and what",
    r"\bnames? nobody\b": "say what is missing",
    r"\b(?:not|is) ours to\b": "say who does it",
    r"\bpassed over\b": "write `ignored` or `skipped`",
    r"\bbut for (?!the record\b)": "write `except` or `apart from`",
    r"\boctets?\b": "write `byte`",
}
# A docstring that is a question word and its clause has no main clause.
CLAUSE = re.compile(r"(?:What|Who|Whose|Where|Why|Which)\b(?! is\b| are\b| does\b| do\b)[^?]*$")

_CODE = re.compile(r"```.*?```|``.*?``|`[^`\n]*`", re.DOTALL)
_PATTERNS = {re.compile(pattern): advice for pattern, advice in SENTENCES.items()}
_FOLDERS = ("src", "tests", "bench", "examples", "supply", "docs")
# Texts that quote others: what upstream says stays as it is.
_QUOTING = ("tests/conformance/", "tests/fixtures/", "tests/golden/", "docs/reference/")


def vague_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every variable, parameter or result with a vague name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg) and node.arg in VAGUE_NAMES:
            yield node.lineno, node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name in VAGUE_NAMES:
            yield node.lineno, str(node.name)


def odd_sentences(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, words and advice for every odd sentence of a text."""
    plain = _CODE.sub(lambda code: re.sub(r"[^\n]", "`", code[0]), text)
    for pattern, advice in _PATTERNS.items():
        for match in pattern.finditer(plain):
            yield plain.count("\n", 0, match.start()), match[0], advice


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            match node.body[0]:
                case ast.Expr(value=ast.Constant(value=str(text), lineno=line)):
                    yield line, text


def _texts(tree: ast.AST, text: str) -> Iterator[tuple[int, str]]:
    """Every docstring, string and comment, with its first line."""
    yield from _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _in_python(text: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(text)
    for line, name in vague_names(tree):
        yield line, f"`{name}`: call it after the thing it holds"
    for line, docstring in _docstrings(tree):
        if CLAUSE.match(docstring.partition("\n")[0].partition(". ")[0]):
            yield line, f"`{docstring[:40]}…`: begin with a verb or a noun, not with a clause"
    for first, words in _texts(tree, text):
        for line, odd, advice in odd_sentences(words):
            yield first + line, f"`{odd}`: {advice}"


def problems(path: Path) -> Iterator[str]:
    """Everything that a file should say in plainer words, with its line."""
    text = path.read_text()
    name = path.relative_to(ROOT)
    if path.suffix == ".py":
        for line, problem in sorted(set(_in_python(text))):
            yield f"{name}:{line}: {problem}"
    else:
        for line, words, advice in odd_sentences(text):
            yield f"{name}:{line + 1}: `{words}`: {advice}"


def files() -> Iterator[Path]:
    """Every file that people read: Python and Markdown."""
    yield from (ROOT / page for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if (
                path.suffix in (".py", ".md")
                and not name.startswith(_QUOTING)
                and not path.stem.endswith("plain_words")
            ):
                yield path


def main() -> int:
    """Print every problem; 1 if there is any."""
    chosen = [Path(argument).resolve() for argument in sys.argv[1:]] or list(files())
    lines = [line for path in chosen for line in problems(path)]
    print("\n".join(lines) if lines else f"Plain words in {len(chosen)} files.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
