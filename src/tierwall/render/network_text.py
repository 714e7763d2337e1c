"""The network plane as text: what `explain network`, `list` and `diff` print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tierwall.core.answer import Answer, Reason
from tierwall.core.verdict import StepVerdict
from tierwall.network.detail import Judgement, Looked, NetworkDetail
from tierwall.render.formats import Lines, View
from tierwall.render.text import phrase, shortened

if TYPE_CHECKING:
    from tierwall.network.reach.listing import Entry

_SIGNS = {"": "", "added": "+ ", "removed": "- ", "changed": "~ "}


def lines(answer: Answer, source: Lines) -> Iterator[str]:
    """The sentence, the walk of each direction, then the lines of the manifests, which `source` gives."""
    detail: NetworkDetail = answer.detail
    yield answer.sentence
    if detail.shadow is not None:
        yield detail.shadow.sentence
    yield ""
    for judgement in (detail.egress, detail.ingress):
        yield f"{judgement.direction:8} {judgement.verdict:14} {walk(judgement)}"
    notes = dict.fromkeys(step.note for step in answer.steps if step.note)
    if notes:
        yield ""
        yield from (f"note: {note}" for note in notes)
    written = [(step, at) for step in answer.steps if (at := step.at) is not None]
    if written:
        yield ""
    for step, at in written:
        yield f"{at}: {step} {phrase(step.verdict, step.reason)}"
        text = source(at.file, at.line)
        if text is not None and text.strip():
            yield f"    {shortened(text.strip())}"


def walk(judgement: Judgement) -> str:
    """`admin: AdminNetworkPolicy/deny-all egress[0] passed → namespace: NetworkPolicy/shop/web allowed`."""
    if judgement.verdict is StepVerdict.NOT_APPLICABLE:
        return "not under policy"
    return " → ".join(_stations(judgement.looked))


def _stations(looked: Sequence[Looked]) -> Iterator[str]:
    silent = 0
    for settler, verdict, reason in looked:
        word = phrase(verdict, reason)
        if verdict is StepVerdict.NO_MATCH and reason is Reason.NO_RULE_MATCHED:
            silent += 1
            continue
        if silent:
            yield _without_match(silent)
            silent = 0
        yield f"default: {word}" if settler is None else f"{settler.tier.lower()}: {settler.decider.short} {word}"
    if silent:
        yield _without_match(silent)


def _without_match(number: int) -> str:
    return f"{number} {'policy' if number == 1 else 'policies'} without a rule for it"


def connections(entries: Iterable[Entry], view: View) -> Iterator[str]:
    """`sources => destinations : ports`, one line an entry; with reasons, one more a flow."""
    for entry in entries:
        yield f"{_SIGNS[entry.change]}{entry.sources} => {entry.destinations} : {entry.ports}"
        for flow in entry.flows:
            if because := flow.because():
                yield f"    {flow}: {because}"
