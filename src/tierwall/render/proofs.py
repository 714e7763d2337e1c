"""The results of proofs (docs/prove.md#results), as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tierwall.core.unprintable import escape_unprintable
from tierwall.proofs.result import ProofResult
from tierwall.render.formats import View
from tierwall.render.json import answer_document, json_line, non_empty, omission_documents
from tierwall.render.text import explanation


def result_document(result: ProofResult) -> dict[str, Any]:
    """Return the document of a result: `got` of a case."""
    example = result.counterexample
    document: dict[str, Any] = {"proof": str(result.proof), "sentence": result.sentence}
    if example is not None:
        document["counterexample"] = {
            "objects": [dict(manifest) for manifest in example.objects],
            "question": {example.question.plane: example.question.to_dict()},
            "answer": answer_document(example.answer),
            **({"before": answer_document(example.before)} if example.before is not None else {}),
        }
    document |= non_empty(why=result.why, assume=dict(result.assume) or None)
    document["notConsidered"] = omission_documents(result.not_considered)
    return document


def summary(result: ProofResult) -> Iterator[str]:
    """Write the sentence of a result, and what was assumed."""
    yield result.sentence
    if result.assume:
        yield f"assumed: {json_line(dict(result.assume))}"


def counterexample(result: ProofResult, view: View) -> Iterator[str]:
    """Write a counterexample: the objects as a manifest, the question, then the explanation of the answer."""
    from tierwall.render.manifests import fragment_yaml, to_yaml  # most proofs have none, and YAML takes its time

    example = result.counterexample
    if example is None:
        return
    if example.objects:
        yield from to_yaml([dict(manifest) for manifest in example.objects]).splitlines()
        yield "---"
    yield from (
        f"# {line}" for line in fragment_yaml({example.question.plane: example.question.to_dict()}).splitlines()
    )
    yield ""
    yield from explanation(example.answer, view)
    if example.before is not None:
        yield ""
        yield "before the change:"
        yield from explanation(example.before, view)


def text(result: ProofResult, view: View) -> Iterator[str]:
    """Write the result of `diff --prove`: a sentence, then the counterexample."""
    yield from summary(result)
    yield from counterexample(result, view)


def document(result: ProofResult, view: View) -> dict[str, Any]:
    """Return the document of `diff --prove -o json`."""
    return result_document(result)


def markdown(result: ProofResult, view: View) -> Iterator[str]:
    """Write the result for a comment on a pull request."""
    lines = [escape_unprintable(line) for line in (*summary(result), *counterexample(result, view))]
    # A fence that no line can close: names of objects come from people.
    fence = "`" * max(3, 1 + max(len(line) - len(line.lstrip("`")) for line in lines))
    yield f"**{result.proof}**"
    yield ""
    yield fence
    yield from lines
    yield fence
