"""A tool answer as text: the sentence, then every policy that was evaluated, with the lines of the manifests."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.answer import Answer
from tierwall.render.text import Lines, shortened
from tierwall.render.words import phrase


def lines(answer: Answer, source: Lines) -> Iterator[str]:
    """What `tierwall explain tool` prints; `source` gives the lines of the files."""
    yield answer.sentence
    yield ""
    for step in answer.steps:
        subject = f"{step} " if step.policy is not None else ""
        yield f"{step.tier + ':':9}{subject}{phrase(step.verdict, step.reason)}"
        if step.note:
            yield f"         {step.note}"
        if (at := step.at) is not None:
            yield f"         {at}: {shortened((source(at.file, at.line) or '').strip())}"
